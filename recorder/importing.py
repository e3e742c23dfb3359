"""Read what people already have into calls. Only model calls are taken; what else a file holds is counted.

A file is read twice: once to know that all of it can be read, once to store it. A call is known by its file's content
and its source: storing a file again adds nothing, and an import that was interrupted is finished by starting it again.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from recorder import har
from recorder.call import Call
from recorder.errors import SourceError
from recorder.imports import claude_trace, raw_bodies
from recorder.outcome import settled

BATCH = 32
"""Calls in a transaction: others may write in between."""


class Sink(Protocol):
    """The slice of `recorder.store.Store` used here."""

    def put_new(self, calls: list[Call], /) -> int: ...


Progress = Callable[[int, int], None]
"""Called after each stored batch: calls done, calls in all."""

_PAIR = re.compile(rb'\s*\{\s*"(?:request|response|logged_at)"\s*:')


class Reader(Protocol):
    """Reads one format. SourceError, naming the place, where the file is not in it."""

    def __call__(self, path: Path, *, counts: "Counts | None" = None) -> Iterator[Call]: ...


@dataclass(slots=True)
class Counts:
    calls: int = 0
    others: int = 0
    """Requests in the file that are no model calls."""


@dataclass(frozen=True, slots=True)
class Imported:
    path: str
    run: str
    added: int
    already: int
    """Model calls of the file that an earlier import had stored."""
    others: int


def import_path(
    store: Sink, path: str | Path, *, reader: Reader | None = None, progress: Progress | None = None
) -> Imported:
    """Store the model calls of a HAR, of claude-trace's JSONL or of a folder of raw API bodies, told by their content.

    `reader` reads a format that is not known here. SourceError, and nothing stored, when any part cannot be read.
    """
    path = Path(path)
    read, counts = reader or reader_of(path), Counts()
    for _ in read(path, counts=counts):
        pass
    added = 0
    run = raw_bodies.RUN if path.is_dir() else run_of(path)
    batch: list[Call] = []
    for done, call in enumerate(read(path), 1):
        batch.append(call)
        if len(batch) == BATCH or done == counts.calls:
            added += store.put_new(batch)
            batch = []
            if progress:
                progress(done, counts.calls)
    return Imported(str(path), run, added, counts.calls - added, counts.others)


def import_har(store: Sink, path: str | Path) -> Imported:
    """Store the model calls of a HAR file. SourceError, and nothing stored, when any part of it cannot be read."""
    return import_path(store, path, reader=read_har)


def reader_of(path: Path) -> Reader:
    """By content; whatever is no folder and no pair of claude-trace's is taken for a HAR, whose reader then objects."""
    if path.is_dir():
        if not raw_bodies.is_folder(path):
            raise SourceError(f"import: expected files named *{raw_bodies.REQUEST}, got none in the folder {path}")
        return read_raw_bodies
    try:
        with open(path, "rb") as file:
            start = file.read(4096).removeprefix(b"\xef\xbb\xbf")
    except OSError as e:
        raise SourceError(f"import: expected a file to read, got {e.strerror} at {path}") from e
    return read_claude_trace if _PAIR.match(start) else read_har


def read_har(path: str | Path, *, counts: Counts | None = None) -> Iterator[Call]:
    """The model calls of a HAR 1.2 file in its order, one entry in memory at a time. `counts` is filled on the way.

    SourceError names the file and the entry where it is not one.
    """
    path, counts = Path(path), counts or Counts()
    run = run_of(path)
    used: Counter[str] = Counter()
    for index, entry in har.entries(path):
        comment = entry.get("comment")
        name = comment if isinstance(comment, str) and comment else str(index)
        used[name] += 1
        source = f"{path.name}#{name}" + (f"~{used[name]}" if used[name] > 1 else "")
        yield from _counted(har.calls(entry, source, run), f"entry {index} of {path}", counts)


def read_claude_trace(path: str | Path, *, counts: Counts | None = None) -> Iterator[Call]:
    """The model calls of claude-trace's JSONL in the order of its lines."""
    path, counts = Path(path), counts or Counts()
    run = run_of(path)
    for number, pair in claude_trace.pairs(path):
        yield from _counted(claude_trace.calls(pair, f"{path.name}#{number}", run), f"line {number} of {path}", counts)


def read_raw_bodies(path: str | Path, *, counts: Counts | None = None) -> Iterator[Call]:
    """The calls of a folder of raw API bodies in the order of their requests; responses to none count as others."""
    path, counts = Path(path), counts or Counts()
    found, spare = raw_bodies.pairs(path)
    for request, response in found:
        counts.calls += 1
        yield raw_bodies.call(request, response)
    counts.others += spare


def _counted(calls: Iterator[Call], where: str, counts: Counts) -> Iterator[Call]:
    try:
        found = [settled(call) for call in calls]
    except SourceError as e:
        raise SourceError(f"import: {e}, at {where}") from e
    counts.calls += len(found)
    counts.others += not found
    yield from found


def run_of(path: str | Path) -> str:
    """Id of an import: a hash of the file's content, so that the same file is the same run wherever it lies."""
    h = blake2b(digest_size=8)
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                h.update(block)
    except OSError as e:
        raise SourceError(f"import: expected a file to read, got {e.strerror} at {path}") from e
    return "import-" + h.hexdigest()
