"""Read what people already have into calls. Only model calls are taken; what else a file holds is counted.

A file is read twice: once to know that all of it can be read, once to store it. A call is known by its file's content
and its source: storing a file again adds nothing, and an import that was interrupted is finished by starting it again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from recorder import har
from recorder.call import Call
from recorder.errors import SourceError
from recorder.outcome import settled

BATCH = 32
"""Calls in a transaction: others may write in between."""


class Sink(Protocol):
    """The slice of `recorder.store.Store` used here."""

    def put_new(self, calls: list[Call], /) -> int: ...


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


def import_har(store: Sink, path: str | Path) -> Imported:
    """Store the model calls of a HAR file. SourceError, and nothing stored, when any part of it cannot be read."""
    counts = Counts()
    for _ in read_har(path, counts=counts):
        pass
    added = 0
    batch: list[Call] = []
    for call in read_har(path):
        batch.append(call)
        if len(batch) == BATCH:
            added += store.put_new(batch)
            batch = []
    added += store.put_new(batch)
    return Imported(str(path), run_of(path), added, counts.calls - added, counts.others)


def read_har(path: str | Path, *, counts: Counts | None = None) -> Iterator[Call]:
    """The model calls of a HAR 1.2 file in its order, one entry in memory at a time. `counts` is filled on the way.

    SourceError names the file and the entry where it is not one.
    """
    path, counts = Path(path), counts or Counts()
    run = run_of(path)
    for index, entry in har.entries(path):
        comment = entry.get("comment")
        source = f"{path.name}#{comment if isinstance(comment, str) and comment else index}"
        try:
            found = [settled(call) for call in har.calls(entry, source, run)]
        except SourceError as e:
            raise SourceError(f"import: {e}, at entry {index} of {path}") from e
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
