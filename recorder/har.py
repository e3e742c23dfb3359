"""A HAR file, one entry at a time: found by its brackets in the mapped file, so that memory holds one entry only.

`_webSocketMessages` (as browsers and mitmproxy write them) become one call for each client frame that asks for a reply.
"""

import base64
import json
import mmap
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

import orjson

from recorder import wire
from recorder.call import Call, Outcome
from recorder.errors import SourceError
from recorder.headers import clean_url, kept
from recorder.imports import shapes
from recorder.imports.shapes import Json
from recorder.imports.websocket import Frame, turns
from recorder.segments import BRACKET

_ENTRIES = re.compile(rb'"entries"\s*:\s*\[\Z')
_CLIENT_LEFT = ("client disconnected", "net::err_aborted", "ns_binding_aborted")
"""What mitmproxy, Chrome and Firefox say when it was the client who broke off."""


def entries(path: Path) -> Iterator[tuple[int, Json]]:
    """Entries of a HAR with their index. SourceError, one line, where the file stops being one."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, 2) == 0:
                raise SourceError(f"import: expected a HAR, got an empty file at {path}")
            data: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as e:
        raise SourceError(f"import: expected a HAR file, got {e.strerror} at {path}") from e
    for index, (start, end) in enumerate(_spans(data, path)):
        where = f"entry {index} of {path}"
        yield index, shapes.mapping(_loads(data[start:end], where), where)


def _spans(data: mmap.mmap | bytes, path: Path) -> Iterator[tuple[int, int]]:
    """Where the elements of log.entries stand."""
    opening = data[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if opening != b"{":
        raise SourceError(f"import: expected JSON of a HAR, got {bytes(data[:20])!r} at the start of {path}")
    containers = bytearray()
    position, start, gap, seen, count = 0, 0, 0, False, 0
    while found := BRACKET.match(data, position):
        end = found.end()
        bracket = data[end - 1]
        if bracket in b"[{":
            if containers == b"{{" and bracket == ord("[") and _ENTRIES.search(data[max(0, end - 64) : end]):
                seen, gap = True, end
            elif seen and containers == b"{{[":
                start = end - 1
                if data[gap:start].strip() != (b"," if count else b""):
                    raise SourceError(
                        f"import: expected entries apart by a comma, got others before byte {start} of {path}"
                    )
            containers.append(bracket)
        elif not containers or bracket != containers[-1] + 2:  # "]" is "[" + 2, "}" is "{" + 2
            raise SourceError(f"import: expected JSON, got a bracket that closes nothing at byte {end - 1} of {path}")
        else:
            del containers[-1]
            if seen and containers == b"{{[":
                yield start, end
                gap, count = end, count + 1
            elif seen and containers == b"{{":
                if data[gap : end - 1].strip():
                    raise SourceError(f"import: expected objects in log.entries, got others at byte {gap} of {path}")
                seen = False
                gap = -1
            elif not containers:
                break
        position = end
    if containers:
        raise SourceError(f"import: expected JSON to its end, got the end of the file at byte {len(data)} of {path}")
    if gap != -1:
        raise SourceError(f"import: expected a HAR with log.entries, got other JSON in {path}")


def calls(entry: Json, source: str, run: str) -> Iterator[Call]:
    """The model calls of an entry, none when it is something else. SourceError when a field is not what HAR says."""
    request, response = (
        shapes.mapping(entry.get("request"), "request"),
        shapes.mapping(entry.get("response") or {}, "response"),
    )
    method, url = shapes.text(request.get("method"), "request.method"), shapes.text(request.get("url"), "request.url")
    frames = entry.get("_webSocketMessages")
    socket = bool(frames) and bool(wire.classify("GET", url) or wire.classify("POST", url))
    if not socket and (frames or method.upper() != "POST" or not wire.classify(method, url)):
        return
    status, content = _status(response), shapes.mapping(response.get("content") or {}, "response.content")
    said = shapes.text(response.get("_error") or "", "response._error")
    outcome, error = _outcome(status, said), said
    if outcome in (Outcome.COMPLETE, Outcome.HTTP_ERROR) and not socket and _missing(content):
        outcome, error = Outcome.TRUNCATED, "recorder: the HAR does not hold the body"
    post = shapes.mapping(request.get("postData") or {}, "request.postData")
    call = Call(
        method=method,
        url=clean_url(url),
        status=status,
        outcome=outcome,
        request_headers=_headers(request, post, "request"),
        response_headers=_headers(response, content, "response"),
        request_body=_content(post, "request.postData"),
        response_body=_content(content, "response.content"),
        started_at_utc=_unix(entry.get("startedDateTime")),
        first_byte_s=_first_byte(entry.get("timings")),
        duration_s=_seconds(entry.get("time")),
        error=error,
        source=source,
        run=run,
    )
    if socket:
        listed = shapes.array(frames, "_webSocketMessages")
        yield from turns(call, [_frame(shapes.mapping(f, f"_webSocketMessages[{i}]")) for i, f in enumerate(listed)])
    else:
        yield call


def _outcome(status: int | None, said: str) -> Outcome:
    if any(words in said.lower() for words in _CLIENT_LEFT):
        return Outcome.ABORTED
    if status is None:
        return Outcome.UNANSWERED
    if said:
        return Outcome.TRUNCATED
    return Outcome.HTTP_ERROR if status >= 400 else Outcome.COMPLETE


def _missing(content: Json) -> bool:
    """There was a body and the file does not hold it: Chrome gives it up, Firefox has a switch for it."""
    return not content.get("text") and shapes.number(content.get("size"), "HAR") > 0


def _frame(frame: Json) -> Frame:
    data = shapes.text(frame.get("data"), "_webSocketMessages.data")
    return Frame(
        frame.get("type") in ("send", "request"),
        _base64(data, "_webSocketMessages.data") if frame.get("opcode") == 2 else _bytes(data),
        shapes.number(frame.get("time"), "HAR"),
    )


def _content(content: Json, where: str) -> bytes:
    text = shapes.text(content.get("text") or "", f"{where}.text")
    if not text and content.get("params"):
        pairs = [shapes.mapping(p, f"{where}.params") for p in shapes.array(content["params"], f"{where}.params")]
        return urlencode([(str(p.get("name", "")), str(p.get("value") or "")) for p in pairs]).encode()
    return _base64(text, f"{where}.text") if content.get("encoding") == "base64" else _bytes(text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as e:
        raise SourceError(f"{where}: expected base64, got {e}") from e


def _headers(message: Json, content: Json, where: str) -> tuple[tuple[str, str], ...]:
    """Content held as text has its content-encoding undone: what the header says of it is true no more."""
    pairs = (
        shapes.mapping(h, f"{where}.headers") for h in shapes.array(message.get("headers") or [], f"{where}.headers")
    )
    found = kept((shapes.text(h.get("name"), f"{where}.headers.name"), _value(h.get("value"))) for h in pairs)
    undone = content.get("encoding") != "base64" and content.get("text")
    return tuple((name, value) for name, value in found if not undone or name != "content-encoding")


def _value(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _status(response: Json) -> int | None:
    return int(shapes.number(response.get("status"), "HAR")) or None


def _unix(value: object) -> float:
    """Unix seconds of an ISO 8601 time, UTC where it names no zone; 0.0 = not said."""
    if not value:
        return 0.0
    text = shapes.text(value, "startedDateTime")
    try:
        when = datetime.fromisoformat(text)
    except ValueError as e:
        raise SourceError(f"startedDateTime: expected an ISO 8601 time, got {text[:40]!r}") from e
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _seconds(milliseconds: object) -> float | None:
    number = shapes.number(milliseconds, "HAR")
    return number / 1000 if milliseconds is not None and number >= 0 else None


def _first_byte(timings: object) -> float | None:
    """`send` and `wait` are the time to the first byte; writers that do not know put 0 or -1."""
    said = shapes.mapping(timings or {}, "timings")
    parts = [shapes.number(v, "HAR") for k, v in said.items() if k in ("send", "wait")]
    return sum(p for p in parts if p > 0) / 1000 or None


def _loads(data: bytes, where: str) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as strict:
        try:
            return json.loads(data)  # takes lone surrogates, which a cut of UTF-16 text leaves
        except ValueError:
            raise SourceError(f"import: expected JSON, got {strict} at {where}") from strict
