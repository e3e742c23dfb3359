"""One line about a call: when, which model, how it ended, how large, the tokens it used. Sums of them by session."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from recorder import wire
from recorder.call import Call
from recorder.message import Exchange, Usage


@dataclass(frozen=True, slots=True)
class CallRow:
    """As `memorywalker calls --json` prints it."""

    seq: int
    source: str
    run: str
    session: str
    """The harness's own id; empty = it says none."""
    harness: str
    """Empty = not said."""
    wire: str
    kind: str
    """generate | count_tokens | warmup; empty = the call could not be read."""
    model: str
    started_at_utc: float
    first_byte_s: float | None
    duration_s: float | None
    status: int | None
    outcome: str
    error: str
    request_bytes: int
    response_bytes: int
    messages: int
    stop_reason: str
    usage: Usage
    opaque: str
    """Why the bodies could not be read; empty = they could."""

    def text(self) -> str:
        at = datetime.fromtimestamp(self.started_at_utc, UTC)
        cells = (
            f"{self.seq:>5}  {at:%H:%M:%S}" if self.started_at_utc else f"{self.seq:>5}  --:--:--",
            f"{self.session[:12] or '-':<12}",
            f"{self.wire:<16}",
            f"{self.model[:24] or '-':<24}",
            f"{self.status or '-':>3} {self.outcome:<12}",
            f"{self.messages:>4} msg  {self.request_bytes:>9,} B",
            f"{self.duration_s:>7.2f}s" if self.duration_s is not None else f"{'-':>8}",
            f"{_count(self.usage.input)}+{_count(self.usage.cache_read)}c>{_count(self.usage.output)}",
            self.error or self.opaque,
        )
        return "  ".join(cells).rstrip()


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else str(tokens)


def row(call: Call) -> CallRow:
    """What there is to say about a call; reads its bodies."""
    meaning = wire.read(call)
    exchange = meaning if isinstance(meaning, Exchange) else None
    hints = exchange.hints if exchange else wire.hints(call)
    reply = exchange.reply if exchange else None
    return CallRow(
        seq=call.seq,
        source=call.source,
        run=call.run,
        session=hints.session,
        harness=hints.harness,
        wire=meaning.wire,
        kind=exchange.kind if exchange else "",
        model=exchange.head.model if exchange else "",
        started_at_utc=call.started_at_utc,
        first_byte_s=call.first_byte_s,
        duration_s=call.duration_s,
        status=call.status,
        outcome=call.outcome.value,
        error=call.error or (reply.error if reply else ""),
        request_bytes=len(call.request_body),
        response_bytes=len(call.response_body),
        messages=len(exchange.messages) if exchange else 0,
        stop_reason=reply.stop_reason if reply else "",
        usage=reply.usage if reply else Usage(),
        opaque="" if exchange else getattr(meaning, "reason", ""),
    )


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """Tokens of a session as its servers reported them; calls that only count tokens are left out."""

    session: str
    """As in `Store.sessions`: the harness's own id, or the run's where it says none."""
    calls: int
    reported: int
    """Calls whose reply told its usage; the sums are over these."""
    usage: Usage
    """None = no call reported it."""

    @property
    def cache_share(self) -> float | None:
        """Of the input tokens, those read from the server's cache; None = no input reported."""
        read = self.usage.cache_read or 0
        total = (self.usage.input or 0) + read + (self.usage.cache_write or 0)
        return read / total if total else None


def usage(rows: Iterable[CallRow]) -> Iterator[SessionUsage]:
    """Sums by session, in order of first call; rows are read once and not kept."""
    found: dict[str, SessionUsage] = {}
    for one in rows:
        key = one.session or one.run
        before = found.get(key, SessionUsage(key, 0, 0, Usage()))
        counts = one.kind == "generate" and one.usage != Usage()
        found[key] = SessionUsage(
            key,
            before.calls + 1,
            before.reported + counts,
            added(before.usage, one.usage) if counts else before.usage,
        )
    yield from found.values()


def added(one: Usage, other: Usage) -> Usage:
    """Sums; what neither reported stays None."""
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(Usage)]
    return Usage(*(a if b is None else b if a is None else a + b for a, b in pairs))
