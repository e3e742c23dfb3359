"""Read a reply while it arrives: events, one JSON body or websocket frames, told apart by their first byte.

The first byte is surer than content-type: an event stream never starts with `{`, a JSON object always does, and an
RFC 7464 sequence starts with 0x1E.
"""

from typing import Protocol

from recorder.errors import WireError
from recorder.message import Reply
from recorder.wire import sse
from recorder.wire.body import Json, parse

_RECORD = b"\x1e"


class Gatherer(Protocol):
    """What a wire module brings: it gathers events, or one whole body, into a reply."""

    def event(self, data: Json, name: str) -> None: ...

    def done(self) -> None:
        """The stream said `[DONE]`."""

    def whole(self, body: Json) -> None: ...

    def reply(self) -> Reply | None: ...


class ReplyReader:
    """Feed the decoded body in any chunks; `finish` gives the reply, or None when nothing readable came."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._gatherer = gatherer
        self._sse: sse.Decoder | None = None
        self._chunks: list[bytes] = []
        self._buffered = False

    def feed(self, chunk: bytes) -> None:
        if self._sse is None and not self._buffered:
            self._chunks.append(chunk)
            head = b"".join(self._chunks)
            start = head.lstrip(b" \t\r\n")
            if not start:
                return
            if start[:1] in (b"{", b"[", _RECORD):
                self._buffered = True
                return
            self._sse = sse.Decoder()
            self._chunks, chunk = [], head
        if self._sse is not None:
            self._take(self._sse.feed(chunk))
        else:
            self._chunks.append(chunk)

    def finish(self) -> Reply | None:
        if self._sse is not None:
            self._take(self._sse.finish())
        elif self._buffered:
            body = b"".join(self._chunks).strip(b" \t\r\n")
            if body.startswith(_RECORD):
                self._take([sse.Event("", frame.decode("utf-8", "replace")) for frame in frames(body)])
            else:
                self._whole(body)
        return self._gatherer.reply()

    def _take(self, events: list[sse.Event]) -> None:
        for event in events:
            if event.data.strip() == "[DONE]":
                self._gatherer.done()
                continue
            try:
                data = parse(event.data, "event")
            except WireError:
                continue  # the last event of a cut stream, or a vendor's keep-alive
            self._gatherer.event(data, event.name)

    def _whole(self, body: bytes) -> None:
        try:
            parsed = parse(body, "reply")
        except WireError:
            return
        self._gatherer.whole(parsed)


def frames(body: bytes) -> list[bytes]:
    """The texts of an RFC 7464 sequence."""
    return [frame.strip() for frame in body.split(_RECORD) if frame.strip()]


def body_error(body: Json) -> str:
    """The error of a body that is no reply, in the shapes that servers and gateways use; empty = none said."""
    if body.get("error"):
        return error_text(body["error"])
    said = body.get("message") or body.get("Message") or body.get("detail")
    if not said:
        return ""
    return error_text({"type": body.get("type") or body.get("code"), "message": said})


def error_text(error: object) -> str:
    """`type: message` of the error objects of all formats; a bare string as it is."""
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return ""
    kind = error.get("type") or error.get("code") or error.get("status")
    return ": ".join(str(part) for part in (kind, error.get("message")) if part not in (None, "")) or "error"
