"""Read of a request only what its session's last one did not have: a history that only grows is parsed once.

    before: {"model":"m","messages":[ A , B ],"system":..    marks: the ends of A and B, and their digests
    body:   {"model":"m","messages":[ A , B , C ],"system":..
    read:   {"model":"m","messages":[ C ],"system":..        and A, B are known

The result is that of reading the whole body; whatever is not certain is read whole.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recorder import wire
from recorder.call import Call
from recorder.message import Exchange, Hints
from recorder.segments import Cut
from recorder.wire.openai_responses import MORE_TOOLS

_KEYS = {"openai_responses": b'"input"', "gemini": b'"contents"'}
_MESSAGES = b'"messages"'
_ELEMENT = b"{["
"""Open brackets where an element of such an array ends: the body's own and the array's."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was learned of a body."""

    wire: str = ""
    start: int = 0
    """Offset of the first message; 0 = not found, or nothing to build on."""
    ends: Sequence[int] = ()
    """Offset after each message."""
    digests: Sequence[bytes] = ()
    """Of each message."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """A request's meaning as far as the store needs it."""

    hints: Hints
    exchange: Exchange | None
    """None = opaque. Its messages begin behind the `known` first ones."""
    digests: Sequence[bytes] = ()
    """Of all messages."""
    known: int = 0


NOTHING = Known()


def read(call: Call, before: Known = NOTHING, shared: int = 0) -> Meaning:
    """The meaning of a request that begins with the same `shared` bytes as one of which `before` is known."""
    call = replace(call, response_body=b"")
    count = bisect_right(before.ends, shared)
    if count and not call.request_header("content-encoding") and call.status != 101:
        end = before.ends[count - 1]
        rest = call.request_body[end:].lstrip()
        if rest.startswith((b",", b"]")) and _key(before.wire) not in rest and MORE_TOOLS.encode() not in rest:
            shorter = call.request_body[: before.start] + rest.removeprefix(b",")
            exchange = wire.read(replace(call, request_body=shorter))
            if isinstance(exchange, Exchange) and exchange.wire == before.wire:
                digests = [*before.digests[:count], *(m.digest for m in exchange.messages)]
                return Meaning(exchange.hints, exchange, digests, count)
    whole = wire.read(call)
    if isinstance(whole, Exchange):
        return Meaning(whole.hints, whole, [m.digest for m in whole.messages])
    return Meaning(wire.hints(call), None)


def learn(cut: Cut, meaning: Meaning, before: Known = NOTHING) -> Known:
    """Where the messages of a body end, by its segments; `NOTHING` unless every message is found.

    `before` is what `read` was given: messages that were not read again end where they ended.
    """
    if meaning.exchange is None:
        return NOTHING
    start, ends = (before.start, list(before.ends[: meaning.known])) if meaning.known else (0, [])
    form = meaning.exchange.wire
    at = ends[-1] if ends else 0
    for index in range(bisect_right(cut.ends, at) if at else 0, len(cut.ends)):
        end = cut.ends[index]
        if cut.nested[index] == _ELEMENT:
            if not start:
                start = end if _opens(cut.body[max(at, end - 99) : end], _key(form)) else 0
            elif cut.body[end - 1] in b"}]":
                ends.append(end)
            elif cut.body[at:end].strip() != b",":
                break
        at = end
    return Known(form, start, ends, meaning.digests) if start and len(ends) == len(meaning.digests) else NOTHING


def _opens(text: bytes, key: bytes) -> bool:
    """Whether a text that ends with a bracket ends with `"messages": [`, its first quote not an escaped one."""
    before, found, between = text.rpartition(key)
    return bool(found) and between.replace(b" ", b"") == b":[" and not before.endswith(b"\\")


def _key(form: str) -> bytes:
    return _KEYS.get(form, _MESSAGES)
