"""OpenAI Responses. Every event is numbered; an output item is added, grows part by part, and is done as a whole."""

from collections.abc import Callable, Iterator

from proxy.gateway.completion import Close, Completion, Fault, Open, Piece, Start, Stop, StopReason, Text
from proxy.gateway.formats import Json, event
from proxy.gateway.formats.anthropic import signature
from proxy.gateway.ids import fresh
from recorder.message import Block, Usage

_ITEM_IDS = {"text": "msg_", "thinking": "rs_", "tool_call": "fc_"}
_INCOMPLETE: dict[StopReason, str] = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
}


class ResponsesEncoder:
    def __init__(self, *, reply_id: str, model: str, created: int, new_id: Callable[[str], str] = fresh) -> None:
        self._id = reply_id
        self._model = model
        self._created = created
        self._new_id = new_id
        self._number = -1
        self._output: list[Json] = []
        self._item_id = ""
        self._block = Block("text")
        self._text = ""

    def frames(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Start():
                for name in ("response.created", "response.in_progress"):
                    yield self._event(name, {"response": self._response("in_progress", [])})
            case Open(block=block):
                yield from self._open(block)
            case Text(text=text):
                self._text += text
                yield self._event(
                    f"{_GROWS[self._block.kind]}.delta", {**self._place(), "delta": text, **self._extra()}
                )
            case Close():
                yield from self._close()
            case Stop(reason=reason, usage=usage):
                name = "response.incomplete" if reason in _INCOMPLETE else "response.completed"
                yield self._event(name, {"response": self._final(self._output, reason, usage)})
            case Fault(type=kind, message=message):
                yield self._event("error", {"code": kind, "message": message, "param": None})

    def end(self) -> Iterator[bytes]:
        return iter(())

    def body(self, completion: Completion) -> Json:
        items = [_item(b, self._new_id(_ITEM_IDS[b.kind])) for b in completion.blocks]
        return self._final(items, completion.stop, completion.usage)

    def _event(self, name: str, data: Json) -> bytes:
        self._number += 1
        return event(name, {"type": name, "sequence_number": self._number, **data})

    def _place(self) -> Json:
        """Where a part's event belongs."""
        place: Json = {"item_id": self._item_id, "output_index": len(self._output)}
        if self._block.kind == "text":
            place["content_index"] = 0
        elif self._block.kind == "thinking":
            place["summary_index"] = 0
        return place

    def _extra(self) -> Json:
        return {"logprobs": []} if self._block.kind == "text" else {}

    def _open(self, block: Block) -> Iterator[bytes]:
        self._block, self._text = block, ""
        self._item_id = self._new_id(_ITEM_IDS[block.kind])
        item = _item(block, self._item_id, done=False)
        yield self._event("response.output_item.added", {"output_index": len(self._output), "item": item})
        if block.kind != "tool_call":
            yield self._event(f"{_PART[block.kind]}.added", {**self._place(), "part": _part(block)})

    def _close(self) -> Iterator[bytes]:
        block = Block(self._block.kind, self._text, self._block.name, self._block.id)
        field = "arguments" if block.kind == "tool_call" else "text"
        yield self._event(f"{_GROWS[block.kind]}.done", {**self._place(), field: block.text, **self._extra()})
        if block.kind != "tool_call":
            yield self._event(f"{_PART[block.kind]}.done", {**self._place(), "part": _part(block)})
        item = _item(block, self._item_id)
        yield self._event("response.output_item.done", {"output_index": len(self._output), "item": item})
        self._output.append(item)

    def _response(self, status: str, output: list[Json], **changed: object) -> Json:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
            **changed,
        }

    def _final(self, output: list[Json], reason: StopReason, usage: Usage) -> Json:
        if reason in _INCOMPLETE:
            details = {"reason": _INCOMPLETE[reason]}
            return self._response("incomplete", output, usage=_usage(usage), incomplete_details=details)
        return self._response("completed", output, usage=_usage(usage))


_GROWS = {
    "text": "response.output_text",
    "thinking": "response.reasoning_summary_text",
    "tool_call": "response.function_call_arguments",
}
_PART = {"text": "response.content_part", "thinking": "response.reasoning_summary_part"}


def _part(block: Block) -> Json:
    if block.kind == "thinking":
        return {"type": "summary_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}


def _item(block: Block, item_id: str, *, done: bool = True) -> Json:
    if block.kind == "thinking":
        summary = [_part(block)] if done else []
        hidden = "gAAAAA" + signature(block.text) if done else ""
        return {"id": item_id, "type": "reasoning", "summary": summary, "encrypted_content": hidden}
    status = "completed" if done else "in_progress"
    if block.kind == "tool_call":
        return {
            "id": item_id,
            "type": "function_call",
            "status": status,
            "arguments": block.text if done else "",
            "call_id": block.id,
            "name": block.name,
        }
    content = [_part(block)] if done else []
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def _usage(usage: Usage) -> Json:
    prompt = (usage.input or 0) + (usage.cache_read or 0) + (usage.cache_write or 0)
    output = usage.output or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read or 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }
