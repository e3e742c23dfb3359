"""Bytes -> messages, one module for each wire format. `read` never raises: what it cannot read is `Opaque`, and why."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from recorder.call import Call
from recorder.encoding import decode
from recorder.errors import WireError
from recorder.message import Exchange, Head, Hints, Message, Reply
from recorder.wire import anthropic, bedrock, gemini, openai_chat, openai_responses
from recorder.wire.body import SHARED, Json, parse
from recorder.wire.reply import Gatherer, ReplyReader
from recorder.wire.routes import Route, route
from recorder.wire.speaker import speaker

__all__ = ["Opaque", "ReplyReader", "classify", "hints", "read", "reply_reader"]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A call that is kept as bytes and not understood."""

    wire: str
    """Empty = not a model call at all."""
    reason: str
    """Expected, got, where."""


class _ReadHead(Protocol):
    def __call__(self, body: Json, *, model: str = "") -> Head: ...


@dataclass(frozen=True, slots=True)
class _Format:
    head: _ReadHead
    messages: Callable[[Json], tuple[Message, ...]]
    compacted: Callable[[tuple[Message, ...]], bool]
    """Did the server put a summary that we cannot see in the place of some of these messages?"""
    gatherer: Callable[[], Gatherer]


def _never(prefix: tuple[Message, ...]) -> bool:
    return False


_FORMATS = {
    "anthropic": _Format(anthropic.head, anthropic.messages, anthropic.compacted, anthropic.Gatherer),
    "openai_chat": _Format(openai_chat.head, openai_chat.messages, _never, openai_chat.Gatherer),
    "openai_responses": _Format(
        openai_responses.head, openai_responses.messages, openai_responses.compacted, openai_responses.Gatherer
    ),
    "gemini": _Format(gemini.head, gemini.messages, _never, gemini.Gatherer),
    "bedrock": _Format(bedrock.head, bedrock.messages, anthropic.compacted, bedrock.Gatherer),
}


def classify(method: str, url: str) -> str:
    """Name of the wire format, or empty when the address is not a model call's. Only the path counts, not the host."""
    return route(method, url).wire


def reply_reader(wire: str) -> ReplyReader:
    """A reader to feed with a reply's decoded bytes as they come. KeyError for a format that is not ours."""
    return ReplyReader(_FORMATS[wire].gatherer())


def hints(call: Call) -> Hints:
    """Who speaks; a body that cannot be read leaves what the headers say."""
    try:
        body = _body(call)
    except (WireError, RecursionError):
        body = {}
    return speaker(call.request_headers, body)


def read(call: Call) -> Exchange | Opaque:
    """A call's meaning."""
    found = route(call.method, call.url)
    if not found.wire:
        return Opaque("", f"expected a model call, got {call.method} {call.url.partition('?')[0]}")
    try:
        return _exchange(call, found)
    except WireError as error:
        return Opaque(found.wire, str(error))
    except RecursionError:
        return Opaque(found.wire, "expected JSON of sane depth, got more than Python can walk")


def _body(call: Call) -> Json:
    body = parse(decode(call.request_body, call.request_header("content-encoding")), "request")
    return openai_responses.unframed(body) if call.status == 101 else body


def _exchange(call: Call, found: Route) -> Exchange:
    if call.method.upper() == "GET" and call.status != 101:
        raise WireError(f"handshake: expected status 101, got {call.status}: no model call was made on it")
    body = _body(call)
    how = _FORMATS[found.wire]
    prefix = how.messages(body)
    reply = _reply(call, how)
    if reply is not None and how.compacted(prefix):
        reply = replace(reply, server_edits=tuple(dict.fromkeys((*reply.server_edits, "compaction"))))
    return Exchange(
        wire=found.wire,
        kind="warmup" if body.get("generate") is False and found.wire == "openai_responses" else found.kind,
        head=SHARED.head(how.head(body, model=found.model)),
        messages=prefix,
        reply=reply,
        hints=speaker(call.request_headers, body),
    )


def _reply(call: Call, how: _Format) -> Reply | None:
    if not call.response_body:
        return None
    reader = ReplyReader(how.gatherer())
    reader.feed(decode(call.response_body, call.response_header("content-encoding")))
    try:
        return reader.finish()
    except WireError as error:  # a reply that cannot be read must not hide the request
        return Reply(Message("assistant", ()), stop_reason="", complete=False, error=str(error))
