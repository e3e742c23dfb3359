"""Read what people already have: a HAR becomes calls. Only model calls are taken; what else the file holds is counted.

A file is read twice: once to know that all of it can be read, once to store it. A call is known by its file's content and
its source, so storing a file again adds nothing, and an import that was interrupted is finished by starting it again.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from recorder import wire
from recorder.call import Call, Outcome
from recorder.errors import SourceError
from recorder.headers import clean_url, kept

if TYPE_CHECKING:
    from recorder.store import Store

BATCH = 64


@dataclass(slots=True)
class Counts:
    """What a file held beside its model calls."""

    calls: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True)
class Imported:
    path: str
    run: str
    added: int
    already: int
    others: int


def import_har(store: "Store", path: str | Path) -> Imported:
    """Store the model calls of a HAR file. SourceError, and nothing stored, when any part of it cannot be read."""
    counts = Counts()
    for _ in read_har(path, counts=counts):
        pass
    run, added = run_of(path), 0
    batch: list[Call] = []
    for call in read_har(path):
        batch.append(call)
        if len(batch) == BATCH:
            added += store.put_new(batch)
            batch.clear()
    added += store.put_new(batch)
    return Imported(str(path), run, added, counts.calls - added, counts.others)


def run_of(path: str | Path) -> str:
    """Id of the import: a hash of the file's content."""
    h = blake2b(digest_size=8)
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return "har-" + h.hexdigest()


def read_har(path: str | Path, *, counts: Counts | None = None) -> Iterator[Call]:
    """The model calls of a HAR 1.2 file, in file order. SourceError names the file and the entry."""
    counts = counts if counts is not None else Counts()
    name = Path(path).name
    try:
        run = run_of(path)
        entries = _entries(Path(path).read_bytes(), name)
    except OSError as e:
        raise SourceError(f"import: expected a HAR file, got {e.strerror} at {path}") from e
    for index, entry in enumerate(entries):
        try:
            calls = list(_calls(entry, f"{name}#{entry.get('comment') or index}", run))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            what = f"no {e}" if isinstance(e, KeyError) else " ".join(str(e).split())
            raise SourceError(f"import: expected a HAR entry, got {what}, at entry {index} of {path}") from e
        counts.calls += len(calls)
        counts.others += not calls
        yield from calls


def _entries(data: bytes, name: str) -> list[dict]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as strict:
        try:
            document = json.loads(data.decode("utf-8-sig", "surrogatepass"))
        except ValueError:
            raise SourceError(f"import: expected JSON, got {strict} in {name}") from strict
    try:
        entries = document["log"]["entries"]
    except (KeyError, TypeError) as e:
        raise SourceError(f"import: expected a HAR with log.entries, got other JSON in {name}") from e
    return entries


def _calls(entry, source, run):
    request, response = entry["request"], entry["response"]
    frames = entry.get("_webSocketMessages")
    if frames:
        if wire.classify("POST", request["url"]) or wire.classify(request["method"], request["url"]):
            yield from _turns(entry, frames, source, run)
        return
    if not wire.classify(request["method"], request["url"]):
        return
    body = _content(response["content"])
    status = response["status"] or None
    said = response.get("_error") or ""
    yield Call(
        method=request["method"],
        url=clean_url(request["url"]),
        status=status,
        outcome=_outcome(status, body, said),
        request_headers=_headers(request),
        response_headers=_headers(response),
        request_body=_content(request.get("postData") or {}),
        response_body=body,
        started_at_utc=_unix(entry.get("startedDateTime", "")),
        first_byte_s=_first_byte(entry.get("timings") or {}),
        duration_s=entry["time"] / 1000 if entry.get("time", -1) >= 0 else None,
        error=said,
        source=source,
        run=run,
    )


def _outcome(status, body, said):
    if said:
        if "client disconnected" in said.lower():
            return Outcome.ABORTED
        return Outcome.TRUNCATED if status else Outcome.UNANSWERED
    if status is None:
        return Outcome.UNANSWERED
    return Outcome.HTTP_ERROR if status >= 400 else Outcome.COMPLETE


def _turns(entry, frames, source, run):
    request, response = entry["request"], entry["response"]
    turn = None
    number = 0
    for frame in [*frames, None]:
        if frame is not None and frame["type"] == "receive":
            if turn:
                turn[1].append(frame)
            continue
        if turn:
            yield _turn(entry, *turn, f"{source}.ws{number:03d}", run)
            turn = None
        if frame is None:
            break
        number += 1
        data = _frame(frame)
        try:
            is_create = orjson.loads(data)["type"] == "response.create"
        except (orjson.JSONDecodeError, KeyError, TypeError):
            is_create = False
        turn = (frame, []) if is_create else None


def _turn(entry, sent, received, source, run):
    start = sent.get("time", 0.0)
    last = received[-1] if received else None
    said = entry["response"].get("_error") or ""
    return Call(
        method=entry["request"]["method"],
        url=clean_url(entry["request"]["url"]),
        status=entry["response"]["status"] or None,
        outcome=Outcome.COMPLETE if received else Outcome.UNANSWERED,
        request_headers=_headers(entry["request"]),
        response_headers=_headers(entry["response"]),
        request_body=_frame(sent),
        response_body=b"".join(b"\x1e" + _frame(f) + b"\n" for f in received),
        started_at_utc=start,
        first_byte_s=received[0]["time"] - start if received else None,
        duration_s=last["time"] - start if last else None,
        error=said,
        source=source,
        run=run,
    )


def _frame(frame):
    return (
        base64.b64decode(frame["data"]) if frame.get("opcode") == 2 else frame["data"].encode("utf-8", "surrogatepass")
    )


def _content(content):
    text = content.get("text") or ""
    if content.get("encoding") == "base64":
        return base64.b64decode(text, validate=True)
    return text.encode("utf-8", "surrogatepass")


def _headers(message):
    return kept((h["name"], h["value"]) for h in message["headers"])


def _unix(text):
    if not text:
        return 0.0
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _first_byte(timings):
    parts = [timings.get("send", 0), timings.get("wait", 0)]
    return sum(parts) / 1000 if sum(parts) > 0 else None
