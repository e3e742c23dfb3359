"""How a call ended, as far as only its bytes can say, and which earlier call it repeats. Headers are not asked.

The transport knows who cut a connection; it takes a stream that ends in order for whole. Whether the stream had come to
its own end, or told of an error on the way, stands in its events.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from recorder import canonical, wire
from recorder.call import Call, Outcome
from recorder.encoding import decode

CUT = "upstream: the stream ended before its last event"
_JSON_EVENT = re.compile(rb"^data: ?\{", re.MULTILINE)
_BETWEEN_EVENTS = (b"\n\n", b"\r\n\r\n", b"\r\r")


@dataclass(frozen=True, slots=True)
class Repeat:
    """A call that asks again what an earlier call of its run and session asked."""

    of: int
    """Seq of the newest such call."""
    how: Literal["retry", "fallback"]
    """retry = the same bytes; fallback = the same prefix, no longer as a stream, after a stream that failed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one call asked, in order of seq, for `repeats`."""

    seq: int
    run: str
    session: str
    digest: bytes
    """Of the request body."""
    node: bytes | None
    """Its prefix in the trie; None = the body could not be read."""
    model: str
    outcome: Outcome


def settled(call: Call) -> Call:
    """The call with the outcome that its own stream tells; what the transport found wrong stays as it is."""
    if call.outcome is not Outcome.COMPLETE:
        return call
    if call.status != 101 and "event-stream" not in call.response_header("content-type"):
        return call
    form = wire.classify(call.method, call.url)
    if not form:
        return call
    body = decode(call.response_body, call.response_header("content-encoding"))
    reader = wire.reply_reader(form)
    reader.feed(body)
    reply = reader.finish()
    if reply is not None and reply.error:
        return replace(call, outcome=Outcome.STREAM_ERROR, error=reply.error)
    if reply.complete if reply is not None else _foreign(body):
        return call
    return replace(call, outcome=Outcome.TRUNCATED, error=CUT)


def settle(call: Call) -> Call:
    """`settled`; a body that breaks a parser stays as the transport saw it."""
    try:
        return settled(call)
    except Exception:  # noqa: BLE001  # observing never disturbs: the call is stored like any other
        return call


def repeats(asked: Iterable[Asked]) -> Iterator[tuple[int, Repeat]]:
    """Calls that seem to ask again: `confirmed` knows when it has seen both."""
    same_bytes: dict[tuple[str, str, bytes], int] = {}
    failed: dict[tuple[str, str, bytes, str], int] = {}
    for one in asked:
        exact = (one.run, one.session, one.digest)
        prefix = (one.run, one.session, one.node or b"", one.model)
        if exact in same_bytes:
            yield one.seq, Repeat(same_bytes[exact], "retry")
        elif one.node is not None and prefix in failed:
            yield one.seq, Repeat(failed[prefix], "fallback")
        same_bytes[exact] = one.seq
        if one.outcome is not Outcome.COMPLETE:
            failed[prefix] = one.seq


def confirmed(how: str, earlier: Call, later: Call) -> bool:
    """Whether `later` went to the same address and, as a fallback, gave up the stream that `earlier` asked for."""
    return earlier.url == later.url and (how == "retry" or (_is_stream(earlier) and not _is_stream(later)))


def _is_stream(call: Call) -> bool:
    try:
        body = canonical.loads(decode(call.request_body, call.request_header("content-encoding")))
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("stream") is True


def _foreign(body: bytes) -> bool:
    """Whole events, none of them JSON: another language, of whose end nothing is known."""
    return body.endswith(_BETWEEN_EVENTS) and not _JSON_EVENT.search(body)
