"""Calls as a HAR 1.2 file, one entry written at a time; `recorder.importing.read_har` reads the same calls from it.

Bodies that are no UTF-8, and those whose content-encoding still holds, stand as base64. A turn of a websocket is an
entry with its frames in `_webSocketMessages`.
"""

import base64
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from tempfile import NamedTemporaryFile

import orjson

from recorder.call import Call, Outcome
from recorder.errors import SourceError

Json = dict[str, object]


def write_har(path: str | Path, calls: Iterable[Call]) -> int:
    """How many were written. The file is private, and there only when whole. SourceError: it cannot be written."""
    path, count = Path(path), 0
    try:
        with NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(b'{"log":{"version":"1.2","creator":{"name":"memorywalker","version":"1"},"entries":[')
                for count, call in enumerate(calls, 1):
                    file.write((b"\n" if count == 1 else b",\n") + orjson.dumps(_entry(call)))
                file.write(b"\n]}}\n")
                file.flush()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as e:
        raise SourceError(f"HAR: expected a place to write, got {e.strerror} at {path}") from e
    return count


def _entry(call: Call) -> Json:
    content = _content(call.response_body, call.response_header("content-encoding"))
    content = {"size": len(call.response_body), "mimeType": call.response_header("content-type"), **content}
    error = call.error
    if call.outcome is Outcome.ABORTED and "client disconnected" not in error.lower():
        error = f"Client disconnected. {error}".strip()
    socket = call.status == 101
    entry: Json = {
        "comment": call.source.partition("#")[2] or str(call.seq),
        "startedDateTime": datetime.fromtimestamp(call.started_at_utc, UTC).isoformat() if call.started_at_utc else "",
        "time": -1 if call.duration_s is None else call.duration_s * 1000,
        "request": {
            "method": call.method,
            "url": call.url,
            "httpVersion": "HTTP/1.1",
            "headers": _headers(call.request_headers),
            "queryString": [],
            "cookies": [],
            "headersSize": -1,
            "bodySize": len(call.request_body),
        },
        "response": {
            "status": call.status or 0,
            "statusText": _reason(call.status),
            "httpVersion": "HTTP/1.1",
            "headers": _headers(call.response_headers),
            "cookies": [],
            "content": {"size": 0, "mimeType": ""} if socket else content,
            "redirectURL": "",
            "headersSize": -1,
            "bodySize": len(call.response_body),
            "_error": error if call.outcome not in (Outcome.COMPLETE, Outcome.STREAM_ERROR) else None,
        },
        "cache": {},
        "timings": {"send": 0, "wait": -1 if call.first_byte_s is None else call.first_byte_s * 1000, "receive": -1},
    }
    if socket:
        start, first = call.started_at_utc, call.started_at_utc + (call.first_byte_s or 0.0)
        answers = [a.removesuffix(b"\n") for a in call.response_body.split(b"\x1e")[1:]]
        last = start + (call.duration_s or 0.0)
        times = [first, *[last] * (len(answers) - 1)]
        entry["_webSocketMessages"] = [
            _frame("send", call.request_body, start),
            *(_frame("receive", a, at) for a, at in zip(answers, times, strict=False)),
        ]
    else:
        media = call.request_header("content-type") or "application/json"
        post = {"mimeType": media, **_content(call.request_body, call.request_header("content-encoding"))}
        entry["request"] = {**_object(entry["request"]), "postData": post}
    return entry


def _object(value: object) -> Json:
    assert isinstance(value, dict)
    return value


def _content(body: bytes, encoding: str) -> Json:
    if not encoding:
        try:
            return {"text": body.decode()}
        except UnicodeDecodeError:
            pass
    return {"text": base64.b64encode(body).decode(), "encoding": "base64"}


def _frame(way: str, data: bytes, at_utc: float) -> Json:
    content = _content(data, "")
    return {"type": way, "time": at_utc, "opcode": 2 if "encoding" in content else 1, "data": content["text"]}


def _headers(headers: tuple[tuple[str, str], ...]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in headers]


def _reason(status: int | None) -> str:
    try:
        return HTTPStatus(status or 0).phrase
    except ValueError:
        return ""
