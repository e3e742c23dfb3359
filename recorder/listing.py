"""One line about a call: when, which model, how it ended, how large, the tokens it used."""

from dataclasses import dataclass
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
    wire: str
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
    reply = exchange.reply if exchange else None
    return CallRow(
        seq=call.seq,
        source=call.source,
        run=call.run,
        session=wire.hints(call).session,
        wire=meaning.wire,
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
