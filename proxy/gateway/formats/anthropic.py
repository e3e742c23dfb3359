"""Anthropic Messages. The usage of message_delta is cumulative; each block opens, grows and closes by its index."""

import base64
import hashlib
import json
from collections.abc import Iterator

from proxy.gateway.completion import Close, Completion, Fault, Open, Piece, Start, Stop, StopReason, Text
from proxy.gateway.formats import Json, event
from recorder.message import Block, Usage


class AnthropicEncoder:
    def __init__(self, *, reply_id: str, model: str) -> None:
        self._id = reply_id
        self._model = model
        self._index = -1
        self._kind = ""
        self._text = ""

    def frames(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Start(usage=usage):
                message = self._message([], None, _usage(usage, output=1))
                yield event("message_start", {"type": "message_start", "message": message})
            case Open(block=block):
                yield from self._open(block)
            case Text(text=text):
                self._text += text
                yield self._delta(_DELTA[self._kind](text))
            case Close():
                if self._kind == "thinking":
                    yield self._delta({"type": "signature_delta", "signature": signature(self._text)})
                yield event("content_block_stop", {"type": "content_block_stop", "index": self._index})
            case Stop(reason=reason, usage=usage):
                delta = {"stop_reason": reason, "stop_sequence": None}
                yield event("message_delta", {"type": "message_delta", "delta": delta, "usage": _usage(usage)})
                yield event("message_stop", {"type": "message_stop"})
            case Fault(type=kind, message=message):
                yield event("error", {"type": "error", "error": {"type": kind, "message": message}})

    def end(self) -> Iterator[bytes]:
        return iter(())

    def body(self, completion: Completion) -> Json:
        return self._message([_block(b) for b in completion.blocks], completion.stop, _usage(completion.usage))

    def _message(self, content: list[Json], reason: StopReason | None, usage: Json) -> Json:
        return {
            "model": self._model,
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def _open(self, block: Block) -> Iterator[bytes]:
        self._index += 1
        self._kind, self._text = block.kind, ""
        start: Json = {"type": "text", "text": ""}
        if block.kind == "thinking":
            start = {"type": "thinking", "thinking": "", "signature": ""}
        elif block.kind == "tool_call":
            start = {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
        data = {"type": "content_block_start", "index": self._index, "content_block": start}
        yield event("content_block_start", data)
        if self._index == 0:
            yield event("ping", {"type": "ping"})
        if block.kind == "tool_call":
            yield self._delta(_DELTA["tool_call"](""))

    def _delta(self, delta: Json) -> bytes:
        return event("content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta})


_DELTA = {
    "text": lambda text: {"type": "text_delta", "text": text},
    "thinking": lambda text: {"type": "thinking_delta", "thinking": text},
    "tool_call": lambda text: {"type": "input_json_delta", "partial_json": text},
}


def signature(thinking: str) -> str:
    """Opaque to clients, but the same for the same reasoning."""
    return base64.b64encode(hashlib.sha256(thinking.encode("utf-8", "surrogatepass")).digest() * 4).decode()


def _block(block: Block) -> Json:
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": block.text, "signature": signature(block.text)}
    if block.kind == "tool_call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": _arguments(block.text)}
    return {"type": "text", "text": block.text}


def _arguments(text: str) -> object:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {}  # a whole message has no place for arguments that do not parse


def _usage(usage: Usage, *, output: int | None = None) -> Json:
    return {
        "input_tokens": usage.input or 0,
        "cache_creation_input_tokens": usage.cache_write or 0,
        "cache_read_input_tokens": usage.cache_read or 0,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write or 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": (usage.output or 0) if output is None else output,
        "service_tier": "standard",
    }
