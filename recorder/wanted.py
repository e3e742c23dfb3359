"""Which calls are wanted: what `memorywalker calls` and `tail` filter by. What costs nothing to ask is asked first."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from recorder.call import Call, Outcome
from recorder.errors import FilterError
from recorder.listing import CallRow, row

_AGO = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call must fit all that is set; an empty text and None set nothing. Names may hold `*` and `?`."""

    session: str = ""
    """The id, or its beginning."""
    harness: str = ""
    wire: str = ""
    model: str = ""
    outcome: str = ""
    status: str = ""
    """A number, or a class of them: `429`, `4xx`."""
    since_utc: float | None = None
    until_utc: float | None = None
    min_bytes: int = 0
    """Of request and response together, as on the wire."""

    def __post_init__(self) -> None:
        if self.outcome and self.outcome not in list(Outcome):
            raise FilterError(f"expected an outcome out of {', '.join(Outcome)}; got {self.outcome!r}")
        if self.status and not re.fullmatch(r"[1-5](?:\d\d|xx)", self.status):
            raise FilterError(f"expected a status such as 429 or 4xx, got {self.status!r}")

    def may(self, call: Call) -> bool:
        """False = the call is not wanted, told without reading its bodies."""
        return (
            (not self.outcome or call.outcome == self.outcome)
            and (not self.status or _is_status(call.status, self.status))
            and (self.since_utc is None or call.started_at_utc >= self.since_utc)
            and (self.until_utc is None or call.started_at_utc < self.until_utc)
            and len(call.request_body) + len(call.response_body) >= self.min_bytes
        )

    def fits(self, one: CallRow) -> bool:
        """What only the bodies tell."""
        return (
            (one.session or one.run).startswith(self.session)
            and _like(one.harness, self.harness)
            and _like(one.wire, self.wire)
            and _like(one.model, self.model)
        )


def rows(calls: Iterable[Call], wanted: Wanted) -> Iterator[CallRow]:
    """A line for each call that is wanted."""
    for call in calls:
        if wanted.may(call) and wanted.fits(one := row(call)):
            yield one


def instant(text: str, *, now_utc: float) -> float:
    """Unix seconds of an ISO 8601 date or time (UTC where it names no zone), or of `90s`, `15m`, `2h`, `7d` ago."""
    if ago := re.fullmatch(r"(\d+)([smhdw])", text):
        return now_utc - int(ago[1]) * _AGO[ago[2]]
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise FilterError(f"expected a time such as 2026-11-30T22:00 or 2h (ago), got {text!r}") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def size_bytes(text: str) -> int:
    """Bytes of `1500`, `20k`, `1.5MB`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?", text.strip().lower())
    if not found:
        raise FilterError(f"expected a size such as 1500, 20k or 1.5MB, got {text!r}")
    return round(float(found[1]) * _BYTES[found[2]])


def _is_status(status: int | None, wanted: str) -> bool:
    said = str(status or "")
    return said[:1] == wanted[0] if wanted.endswith("xx") else said == wanted


def _like(name: str, pattern: str) -> bool:
    return not pattern or fnmatchcase(name.lower(), pattern.lower())
