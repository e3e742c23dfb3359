"""OpenAI chat completions. The role comes first, a tool's id and name only in its first chunk, the usage after all."""

from collections.abc import Iterator

from proxy.gateway.completion import Close, Completion, Fault, Open, Piece, Start, Stop, StopReason, Text
from proxy.gateway.formats import Json, dumps
from recorder.message import Block, Usage

FINISH: dict[StopReason, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class ChatEncoder:
    def __init__(self, *, reply_id: str, model: str, created: int, include_usage: bool) -> None:
        self._id = reply_id
        self._model = model
        self._include_usage = include_usage
        self._created = created
        self._tools = -1
        self._kind = ""
        self._usage = Usage()

    def frames(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Start():
                yield self._chunk({"role": "assistant", "content": ""})
            case Open(block=block):
                self._kind = block.kind
                if block.kind == "tool_call":
                    self._tools += 1
                    call = {"index": self._tools, **_call(block, "")}
                    yield self._chunk({"tool_calls": [call]})
            case Text(text=text):
                yield self._chunk(self._delta(text))
            case Close():
                return
            case Stop(reason=reason, usage=usage):
                self._usage = usage
                yield self._chunk({}, FINISH[reason])
            case Fault(type=kind, message=message):
                yield _data({"error": {"message": message, "type": kind, "param": None, "code": None}})

    def end(self) -> Iterator[bytes]:
        if self._include_usage:
            yield _data({**self._top("chat.completion.chunk"), "choices": [], "usage": _usage(self._usage)})
        yield b"data: [DONE]\n\n"

    def body(self, completion: Completion) -> Json:
        text = "".join(b.text for b in completion.blocks if b.kind == "text")
        thinking = "".join(b.text for b in completion.blocks if b.kind == "thinking")
        calls = [_call(b, b.text) for b in completion.blocks if b.kind == "tool_call"]
        message: Json = {"role": "assistant", "content": text or None, "refusal": None}
        if thinking:
            message["reasoning_content"] = thinking
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH[completion.stop]}
        return {**self._top("chat.completion"), "choices": [choice], "usage": _usage(completion.usage)}

    def _top(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage: Json = {"usage": None} if self._include_usage else {}
        return _data({**self._top("chat.completion.chunk"), "choices": [choice], **usage})

    def _delta(self, text: str) -> Json:
        if self._kind == "tool_call":
            return {"tool_calls": [{"index": self._tools, "function": {"arguments": text}}]}
        return {"reasoning_content" if self._kind == "thinking" else "content": text}


def _data(value: Json) -> bytes:
    return f"data: {dumps(value)}\n\n".encode("utf-8", "surrogatepass")


def _call(block: Block, arguments: str) -> Json:
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _usage(usage: Usage) -> Json:
    prompt = (usage.input or 0) + (usage.cache_read or 0) + (usage.cache_write or 0)
    output = usage.output or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read or 0},
    }
