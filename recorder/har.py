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

import orjson

from recorder import wire
from recorder.call import Call, Outcome
from recorder.errors import SourceError
from recorder.headers import clean_url, kept
from recorder.segments import BRACKET

Json = dict[str, object]

_ENTRIES = re.compile(rb'"entries"\s*:\s*\[\Z')
_CREATE = "response.create"
_LAST = frozenset(("response.completed", "response.failed", "response.incomplete", "response.cancelled", "error"))
"""Event types after which the server sends nothing more for a turn (Responses over websocket)."""


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
        yield index, _object(_loads(data[start:end], where), where)


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
    request, response = _object(entry.get("request"), "request"), _object(entry.get("response"), "response")
    method, url = _text(request.get("method"), "request.method"), _text(request.get("url"), "request.url")
    frames = entry.get("_webSocketMessages")
    if frames:
        if wire.classify("GET", url) or wire.classify("POST", url):
            yield from _turns(entry, request, response, _array(frames, "_webSocketMessages"), source, run)
        return
    if method.upper() != "POST" or not wire.classify(method, url):
        return
    body = _content(response.get("content"), "response.content")
    status = _status(response)
    said = _text(response.get("_error") or "", "response._error")
    yield Call(
        method=method,
        url=clean_url(url),
        status=status,
        outcome=_outcome(status, said),
        request_headers=_headers(request, "request"),
        response_headers=_headers(response, "response"),
        request_body=_content(request.get("postData"), "request.postData"),
        response_body=body,
        started_at_utc=_unix(entry.get("startedDateTime")),
        first_byte_s=_first_byte(entry.get("timings")),
        duration_s=_seconds(entry.get("time")),
        error=said,
        source=source,
        run=run,
    )


def _turns(entry: Json, request: Json, response: Json, frames: list[object], source: str, run: str) -> Iterator[Call]:
    """A turn = a client frame `response.create` and the server frames up to the next client frame."""
    turns: list[tuple[int, Json, list[Json]]] = []
    sent = 0
    for index, each in enumerate(frames):
        frame = _object(each, f"_webSocketMessages[{index}]")
        if frame.get("type") in ("send", "request"):
            sent += 1
            if _kind(frame) == _CREATE:
                turns.append((sent, frame, []))
        elif turns:
            turns[-1][2].append(frame)
    said = _text(response.get("_error") or "", "response._error")
    for number, ask, answers in turns:
        started = _number(ask.get("time")) or _unix(entry.get("startedDateTime"))
        whole = bool(answers) and _kind(answers[-1]) in _LAST
        error = "" if whole else said or "the websocket ended before the turn did"
        cut = Outcome.ABORTED if "client disconnected" in said.lower() else Outcome.TRUNCATED
        yield Call(
            method=_text(request.get("method"), "request.method"),
            url=clean_url(_text(request.get("url"), "request.url")),
            status=_status(response),
            outcome=Outcome.COMPLETE if whole else cut if answers else Outcome.UNANSWERED,
            request_headers=_headers(request, "request"),
            response_headers=_headers(response, "response"),
            request_body=_frame(ask),
            response_body=b"".join(b"\x1e" + _frame(a) + b"\n" for a in answers),
            started_at_utc=started,
            first_byte_s=max(0.0, _number(answers[0].get("time")) - started) if answers else None,
            duration_s=max(0.0, _number(answers[-1].get("time")) - started) if answers else None,
            error=error,
            source=f"{source}.ws{number:03d}",
            run=run,
        )


def _outcome(status: int | None, said: str) -> Outcome:
    if "client disconnected" in said.lower():  # mitmproxy's words
        return Outcome.ABORTED
    if status is None:
        return Outcome.UNANSWERED
    if said:
        return Outcome.TRUNCATED
    return Outcome.HTTP_ERROR if status >= 400 else Outcome.COMPLETE


def _kind(frame: Json) -> object:
    try:
        said = orjson.loads(_frame(frame))
    except orjson.JSONDecodeError:
        return None
    return said.get("type") if isinstance(said, dict) else None


def _frame(frame: Json) -> bytes:
    data = _text(frame.get("data"), "_webSocketMessages.data")
    return _base64(data, "_webSocketMessages.data") if frame.get("opcode") == 2 else _bytes(data)


def _content(value: object, where: str) -> bytes:
    content = _object(value or {}, where)
    text = _text(content.get("text") or "", f"{where}.text")
    return _base64(text, f"{where}.text") if content.get("encoding") == "base64" else _bytes(text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as e:
        raise SourceError(f"{where}: expected base64, got {e}") from e


def _headers(message: Json, where: str) -> tuple[tuple[str, str], ...]:
    pairs = (_object(h, f"{where}.headers") for h in _array(message.get("headers") or [], f"{where}.headers"))
    return kept(
        (_text(h.get("name"), f"{where}.headers.name"), _text(h.get("value"), f"{where}.headers")) for h in pairs
    )


def _status(response: Json) -> int | None:
    return int(_number(response.get("status"))) or None


def _unix(value: object) -> float:
    """Unix seconds of an ISO 8601 time, UTC where it names no zone; 0.0 = not said."""
    if not value:
        return 0.0
    text = _text(value, "startedDateTime")
    try:
        when = datetime.fromisoformat(text)
    except ValueError as e:
        raise SourceError(f"startedDateTime: expected an ISO 8601 time, got {text[:40]!r}") from e
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _seconds(milliseconds: object) -> float | None:
    number = _number(milliseconds)
    return number / 1000 if milliseconds is not None and number >= 0 else None


def _first_byte(timings: object) -> float | None:
    """`send` and `wait` are the time to the first byte; writers that do not know put 0 or -1."""
    parts = [_number(v) for k, v in _object(timings or {}, "timings").items() if k in ("send", "wait")]
    return sum(p for p in parts if p > 0) / 1000 or None


def _number(value: object) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SourceError(f"HAR: expected a number, got {type(value).__name__}")
    return float(value)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise SourceError(f"{where}: expected text, got {type(value).__name__}")
    return value


def _object(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise SourceError(f"{where}: expected an object, got {type(value).__name__}")
    return value


def _array(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise SourceError(f"{where}: expected an array, got {type(value).__name__}")
    return value


def _loads(data: bytes, where: str) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as strict:
        try:
            return json.loads(data)  # takes lone surrogates, which a cut of UTF-16 text leaves
        except ValueError:
            raise SourceError(f"import: expected JSON, got {strict} at {where}") from strict
