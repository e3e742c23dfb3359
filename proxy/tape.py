"""One call being recorded, as it happens, and what may be stored of it.

The event loop alone writes a tape, one list append per chunk; the journal's and the writer's threads read it. List
appends and attribute stores are atomic in CPython, so that they need no lock.
"""

import os
from dataclasses import dataclass, field

from recorder.call import Call, Outcome
from recorder.headers import clean_url, kept

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True, eq=False)
class Tape:
    """A call as it happens. Headers and URL are raw here; the writer cleans them before anything is stored."""

    method: str
    url: str
    request_headers: Fields
    request_body: bytes
    started_at_utc: float
    started: float
    """`time.perf_counter` at the start; the times below are on the same clock."""
    status: int | None = None
    response_headers: Fields = ()
    chunks: list[bytes] = field(default_factory=list)
    first_byte: float | None = None
    ended: float | None = None
    outcome: Outcome | None = None
    """None = still running."""
    error: str = ""
    overflow: bool = False
    """The writer fell too far behind and what had arrived was given up."""
    key: bytes = field(default_factory=lambda: os.urandom(16))
    """Under which it is stored, so that a second try stores nothing twice."""
    taken: bool = True
    """False = the sink has yet to make the request durable, or to fail at it; it says so when it begins."""


def call_of(tape: Tape, *, run: str) -> Call:
    """What may be stored of a tape: allow-listed headers, a URL without keys. A running call reads as truncated."""
    outcome, error = tape.outcome, tape.error
    if tape.overflow:
        outcome, error = Outcome.TRUNCATED, "recorder: the body was given up, the store was too slow"
    elif outcome is None:
        outcome = Outcome.TRUNCATED if tape.status else Outcome.UNANSWERED
        error = "recorder: in flight"
    return Call(
        method=tape.method,
        url=clean_url(tape.url),
        status=tape.status,
        outcome=outcome,
        request_headers=kept(_text(tape.request_headers)),
        response_headers=kept(_text(tape.response_headers)),
        request_body=tape.request_body,
        response_body=b"".join(tape.chunks),
        started_at_utc=tape.started_at_utc,
        first_byte_s=None if tape.first_byte is None else tape.first_byte - tape.started,
        duration_s=None if tape.ended is None else tape.ended - tape.started,
        error=error,
        source="proxy",
        run=run,
    )


def _text(fields: Fields) -> tuple[tuple[str, str], ...]:
    return tuple((n.decode("latin-1").lower(), v.decode("latin-1")) for n, v in fields)
