"""Frames of a recorded websocket -> one call for each frame with which the client asks for a reply."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import orjson

from recorder.call import Call, Outcome

_CREATE = "response.create"
_LAST = frozenset(("response.completed", "response.failed", "response.incomplete", "response.cancelled", "error"))
"""Event types after which the server sends nothing more for a turn (Responses over websocket)."""


@dataclass(frozen=True, slots=True)
class Frame:
    sent: bool
    """By the client."""
    data: bytes
    at_utc: float
    """Unix seconds; 0.0 = the source did not say."""


def turns(handshake: Call, frames: Iterable[Frame]) -> Iterator[Call]:
    """A turn = a client frame `response.create` and the server frames up to the next client frame.

    `handshake.error` says how the connection broke, if it did; `handshake.source` gets `.ws` and the frame's number.
    """
    number, ask = 0, None
    answers: list[Frame] = []
    for frame in frames:
        if frame.sent:
            if ask is not None:
                yield _turn(handshake, number, ask, answers)
                ask, answers = None, []
            number += 1
            if _kind(frame) == _CREATE:
                ask = frame
        elif ask is not None:
            answers.append(frame)
    if ask is not None:
        yield _turn(handshake, number, ask, answers)


def _turn(handshake: Call, number: int, ask: Frame, answers: list[Frame]) -> Call:
    started = ask.at_utc or handshake.started_at_utc
    whole = bool(answers) and _kind(answers[-1]) in _LAST
    cut = Outcome.ABORTED if "client disconnected" in handshake.error.lower() else Outcome.TRUNCATED
    return replace(
        handshake,
        outcome=Outcome.COMPLETE if whole else cut if answers else Outcome.UNANSWERED,
        request_body=ask.data,
        response_body=b"".join(b"\x1e" + a.data + b"\n" for a in answers),
        started_at_utc=started,
        first_byte_s=max(0.0, answers[0].at_utc - started) if answers else None,
        duration_s=max(0.0, answers[-1].at_utc - started) if answers else None,
        error="" if whole else handshake.error or "the websocket ended before the turn did",
        source=f"{handshake.source}.ws{number:03d}",
    )


def _kind(frame: Frame) -> object:
    try:
        said = orjson.loads(frame.data)
    except orjson.JSONDecodeError:
        return None
    return said.get("type") if isinstance(said, dict) else None
