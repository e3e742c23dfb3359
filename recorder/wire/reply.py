"""Read a reply while it arrives: events, JSON, websocket frames or AWS frames, told apart by their first byte.

The first byte is surer than content-type: server-sent events never start with `{` or `[`, JSON always does, an RFC 7464
sequence starts with 0x1E, and an AWS frame with the high byte of its length, which is 0.
"""

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from recorder.errors import WireError
from recorder.message import Reply
from recorder.wire import eventstream, sse
from recorder.wire.body import Json, parse, string

_RECORD = b"\x1e"
_BETWEEN = re.compile(r"[\s,]*")


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
        self._aws: eventstream.Decoder | None = None
        self._chunks: list[bytes] = []
        self._faults: list[str] = []
        self._buffered = False

    def feed(self, chunk: bytes) -> None:
        if self._sse is None and self._aws is None and not self._buffered:
            self._chunks.append(chunk)
            head = b"".join(self._chunks)
            start = head.lstrip(b" \t\r\n")
            if not start:
                return
            if start[:1] in (b"{", b"[", _RECORD):
                self._buffered = True
                return
            if start[:1] == b"\0":
                self._aws = eventstream.Decoder()
            else:
                self._sse = sse.Decoder()
            self._chunks, chunk = [], head
        if self._sse is not None:
            self._take(self._sse.feed(chunk))
        elif self._aws is not None:
            for frame in self._aws.feed(chunk):
                self._frame(frame)
        else:
            self._chunks.append(chunk)

    def finish(self) -> Reply | None:
        if self._sse is not None:
            self._take(self._sse.finish())
        elif self._buffered:
            body = b"".join(self._chunks).strip(b" \t\r\n")
            if body.startswith(_RECORD):
                self._take([sse.Event("", frame.decode("utf-8", "replace")) for frame in frames(body)])
            elif body.startswith(b"["):
                for element in _elements(body.decode("utf-8", "replace")):
                    self._event(element, "")
            else:
                self._whole(body)
        if self._aws is not None and self._aws.error:
            self._faults.append(self._aws.error)
        reply = self._gatherer.reply()
        return replace(reply, notes=(*reply.notes, *self._faults)) if reply and self._faults else reply

    def _event(self, data: Json, name: str) -> None:
        try:
            self._gatherer.event(data, name)
        except WireError as error:  # one event that breaks its format must not cost the others
            self._faults.append(f"an event was left out: {error}")

    def _take(self, events: list[sse.Event]) -> None:
        for event in events:
            if event.data.strip() == "[DONE]":
                self._gatherer.done()
                continue
            try:
                data = parse(event.data, "event")
            except WireError:
                continue  # the last event of a cut stream, or a vendor's keep-alive
            self._event(data, event.name)

    def _frame(self, frame: eventstream.Frame) -> None:
        """An AWS frame: its payload is the event, or carries it as base64 in `bytes`."""
        try:
            data = parse(frame.payload, "frame")
            if "bytes" in data:
                data = parse(b64decode(string(data["bytes"])), "frame")
        except (WireError, Base64Error):
            return
        exception = frame.headers.get(":exception-type") or frame.headers.get(":error-code", "")
        if exception:
            said = {"type": exception, "message": data.get("message")}
            self._event({"type": "error", "error": said}, "error")
        else:
            self._event(data, frame.headers.get(":event-type", ""))

    def _whole(self, body: bytes) -> None:
        try:
            parsed = parse(body, "reply")
        except WireError:
            return
        self._gatherer.whole(parsed)


def _elements(text: str) -> Iterator[Json]:
    """The objects of a JSON array, as far as it came: Gemini streams one where `alt=sse` is not asked for."""
    decoder, at = json.JSONDecoder(), 1
    while True:
        try:
            value, at = decoder.raw_decode(text, _BETWEEN.match(text, at).end())  # type: ignore[union-attr]
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield value


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
