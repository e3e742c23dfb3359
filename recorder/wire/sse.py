"""Server-sent events from bytes, in any chunking. Lines end at CR, LF or CRLF bytes and nowhere else.

Lines are cut before they are decoded, so that neither U+2028 nor a character split across chunks can break one.
Follows https://html.spec.whatwg.org/multipage/server-sent-events.html, except that `finish` hands out an event whose
closing blank line never came: servers leave it off, and a cut stream still tells something.
"""

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
_ENDS = b"\r\n"


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    """The `event:` field; empty = not given."""
    data: str
    """`data:` lines joined by newlines."""


class Decoder:
    """Feed chunks, get the events they complete."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the line still open, joined once: a long line in many chunks stays linear
        self._skip_lf = False
        self._first = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if not chunk:
            return []
        lines = chunk.splitlines(keepends=True)
        ended = lines[-1][-1] in _ENDS
        if self._pieces and (ended or len(lines) > 1):
            lines[0] = b"".join((*self._pieces, lines[0]))
            self._pieces = []
        if not ended:
            self._pieces.append(lines.pop())
        self._skip_lf = chunk[-1:] == b"\r"
        return self._events(lines)

    def finish(self) -> list[Event]:
        """The event left open, if it holds any data."""
        rest = b"".join(self._pieces)
        self._pieces = []
        return self._events([rest, b""])

    def _events(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for raw in lines:
            line = raw.rstrip(b"\r\n")
            if self._first:
                line = line.removeprefix(_BOM)
                self._first = False
            if not line:
                if self._data:
                    events.append(Event(self._name, "\n".join(self._data)))
                self._name, self._data = "", []
                continue
            field, _, value = line.partition(b":")
            text = value.removeprefix(b" ").decode("utf-8", "replace")
            if field == b"data":
                self._data.append(text)
            elif field == b"event":
                self._name = text
        return events
