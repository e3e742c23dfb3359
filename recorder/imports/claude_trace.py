"""claude-trace's JSONL: a line for each pair of request and response, as fetch saw them inside the client.

A line is `{"request": {timestamp, method, url, headers, body}, "response": {timestamp, status_code, headers, body or
body_raw} or null, "logged_at", "note"?}`; times are Unix seconds, `body` is parsed JSON, `body_raw` the text of a
stream. Read from the RawPair type of github.com/badlogic/lemmy, apps/claude-trace. Bodies come out as the client's
JSON.stringify writes them; the content-encoding is undone already.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import orjson

from recorder import wire
from recorder.call import Call, Outcome
from recorder.errors import SourceError
from recorder.headers import clean_url, kept
from recorder.imports import shapes
from recorder.imports.shapes import Json

_UNDONE = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that were true of the bytes on the wire and are not of what the file holds."""


def pairs(path: Path) -> Iterator[tuple[int, Json]]:
    """Lines with their number, from 1. SourceError where one is no pair."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _pair(line, f"line {number} of {path}")
    except OSError as e:
        raise SourceError(f"import: expected claude-trace JSONL, got {e.strerror} at {path}") from e


def calls(pair: Json, source: str, run: str) -> Iterator[Call]:
    """The model call of a pair, none when it is something else. SourceError when a field is not what it should be."""
    request = shapes.mapping(pair.get("request"), "request")
    method, url = shapes.text(request.get("method"), "request.method"), shapes.text(request.get("url"), "request.url")
    if method.upper() != "POST" or not wire.classify(method, url):
        return
    response = pair.get("response")
    answer = shapes.mapping(response, "response") if response is not None else {}
    started, ended = (shapes.number(one.get("timestamp"), "claude-trace") for one in (request, answer))
    status = int(shapes.number(answer.get("status_code"), "claude-trace")) or None
    held = "body" in answer or "body_raw" in answer
    error = (
        "" if held else "recorder: the log holds no response" if status is None else "recorder: the log holds no body"
    )
    outcome = Outcome.UNANSWERED if status is None else Outcome.TRUNCATED
    if held:
        outcome = Outcome.HTTP_ERROR if status is not None and status >= 400 else Outcome.COMPLETE
    yield Call(
        method=method,
        url=clean_url(url),
        status=status,
        outcome=outcome,
        request_headers=_headers(request, "request"),
        response_headers=_headers(answer, "response"),
        request_body=_body(request.get("body")),
        response_body=_body(answer["body"] if "body" in answer else answer.get("body_raw")),
        started_at_utc=started,
        duration_s=max(0.0, ended - started) if started and ended else None,
        error=error,
        source=source,
        run=run,
    )


def _pair(line: bytes, where: str) -> Json:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as strict:
        try:
            value = json.loads(line)  # takes lone surrogates, which JavaScript writes
        except (ValueError, RecursionError):
            raise SourceError(f"import: expected a JSON object, got {strict} at {where}") from strict
    if not isinstance(value, dict) or "request" not in value:
        raise SourceError(f"import: expected a pair of request and response, got other JSON at {where}")
    return value


def _body(value: object) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _headers(message: Json, where: str) -> tuple[tuple[str, str], ...]:
    found = kept((n, str(v)) for n, v in shapes.mapping(message.get("headers") or {}, f"{where}.headers").items())
    return tuple((name, value) for name, value in found if name not in _UNDONE)
