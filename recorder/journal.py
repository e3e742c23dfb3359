"""What a recorder was given and has not stored yet, in a file beside the database; whoever opens that next stores it.

Storing takes milliseconds and can wait its turn; appending takes none, and what is appended outlives the process. The
recorder holds a lock on its file for as long as it lives: a file nobody holds was left behind by one that was killed.

    traces.db.pending-3f2a...    begin k1, begin k2, piece k1, piece k1, end k1, ...    empty again once all is stored

A call is stored under its key, so that one that was stored already, or half, is not stored twice.
"""

import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from recorder.call import Call, Outcome
from recorder.outcome import settle
from recorder.reader import UNFINISHED

try:
    import fcntl
except ImportError:
    LOCKS = False
else:
    LOCKS = True
"""False = a system without such locks, and so no journal: `Journal` raises OSError."""

BEGIN, PIECE, END = b"b", b"p", b"e"
HEAD = struct.Struct("<4sc16sIQI")
"""Magic with the version, kind, key, bytes of facts, bytes of body, CRC-32 of both."""
MAGIC = b"mwj1"
COMPACT_BYTES = 64 << 20
"""A file this long, and twice as long as what is still to be stored, is written anew without the rest. Ours."""
WAIT_S = 30.0
"""How long an opener waits for another that stores what was left behind. Ours."""

PENDING, REPLAYING = ".pending-", ".replaying-"


class Keyed(Protocol):
    """The slice of `recorder.store.Store` that stores again what was left behind."""

    def put(self, call: Call, once: bytes | None = None, /) -> int: ...


class Journal:
    """One recorder's file. For one thread. OSError wherever the disk says so; what was appended stays whole."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(f"{database.name}{PENDING}{uuid4().hex}")
        self._file = _locked(self.path)
        self._size = 0
        self._live: dict[bytes, list[tuple[int, int]]] = {}
        """Key -> offset and size of each of its records."""
        self._live_bytes = 0

    def begin(self, key: bytes, call: Call) -> None:
        """The request; what the call says of a response is not kept."""
        facts = [call.method, call.url, call.request_headers, call.started_at_utc, call.source, call.run]
        self._append(BEGIN, key, facts, call.request_body)

    def piece(self, key: bytes, data: bytes, head: Call | None = None) -> None:
        """More of the response; `head` where its status and headers have not been told yet."""
        self._append(PIECE, key, None if head is None else _response(head), data)

    def end(self, key: bytes, call: Call, rest: bytes) -> None:
        """How it ended; `rest` is what no piece has told of the body."""
        self._append(END, key, _response(call), rest)

    def forget(self, key: bytes) -> None:
        """The call is stored, or given up."""
        self._live_bytes -= sum(size for _, size in self._live.pop(key, ()))
        if not self._live:
            os.ftruncate(self._file, 0)
            self._size = 0
        elif self._size > COMPACT_BYTES and self._size > 2 * self._live_bytes:
            self._compact()

    def leave(self) -> None:
        """In a forked child: the lock is the parent's alone, and ends with it."""
        os.close(self._file)

    def close(self, *, keep: bool = False) -> None:
        """`keep` = what is in it is for whoever opens the database next."""
        if not (keep and self._live):
            with suppress(FileNotFoundError):
                self.path.unlink()
        os.close(self._file)

    def _append(self, kind: bytes, key: bytes, facts: object, body: bytes) -> None:
        told = json.dumps(facts, separators=(",", ":")).encode()
        head = HEAD.pack(MAGIC, kind, key, len(told), len(body), zlib.crc32(body, zlib.crc32(told)))
        size = len(head) + len(told) + len(body)
        try:
            written = os.writev(self._file, [head, told, body])
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        if written < size:
            os.ftruncate(self._file, self._size)
            raise OSError(f"expected to write {size} bytes, got {written} written, at {self.path}")
        self._live.setdefault(key, []).append((self._size, size))
        self._size += size
        self._live_bytes += size

    def _compact(self) -> None:
        draft = self.path.with_name(self.path.name + "-new")
        file = _locked(draft)
        try:
            live: dict[bytes, list[tuple[int, int]]] = {}
            at = 0
            for key, records in self._live.items():
                for offset, size in records:
                    data = os.pread(self._file, size, offset)
                    if os.write(file, data) < size:
                        raise OSError(f"expected to write {size} bytes, at {draft}")
                    live.setdefault(key, []).append((at, size))
                    at += size
            os.replace(draft, self.path)
        except OSError:
            os.close(file)
            draft.unlink(missing_ok=True)
            return  # the longer file is as good
        os.close(self._file)
        self._file, self._live, self._size = file, live, at


def _locked(path: Path) -> int:
    if not LOCKS:
        raise OSError("expected a system with file locks")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _response(call: Call) -> list[object]:
    return [call.status, call.response_headers, call.outcome, call.error, call.first_byte_s, call.duration_s]


@dataclass(slots=True)
class _Left:
    """A call as the records tell it so far."""

    request: Call
    pieces: list[bytes] = field(default_factory=list)
    response: Any = None
    ended: bool = False

    def call(self) -> Call:
        body = b"".join(self.pieces)
        if self.response is None:
            return self.request
        status, headers, outcome, error, first_byte_s, duration_s = self.response
        call = replace(
            self.request,
            status=status,
            response_headers=_pairs(headers),
            response_body=body,
            first_byte_s=first_byte_s,
        )
        if not self.ended:
            return replace(call, outcome=Outcome.TRUNCATED)
        return settle(replace(call, outcome=Outcome(outcome), error=error, duration_s=duration_s))


def read(path: Path) -> Iterator[tuple[bytes, Call]]:
    """The calls of a file, in order of their begin, each as far as it had come; up to the first record that is not
    whole."""
    left: dict[bytes, _Left] = {}
    with path.open("rb") as file:
        while len(head := file.read(HEAD.size)) == HEAD.size:
            magic, kind, key, told_bytes, body_bytes, crc = HEAD.unpack(head)
            if magic != MAGIC:
                break
            told, body = file.read(told_bytes), file.read(body_bytes)
            if len(body) != body_bytes or zlib.crc32(body, zlib.crc32(told)) != crc:
                break
            facts = json.loads(told)
            if kind == BEGIN:
                left[key] = _Left(_request(facts, body))
            elif key in left:
                left[key].pieces.append(body)
                left[key].response = facts or left[key].response
                left[key].ended = kind == END
    for key, one in left.items():
        yield key, one.call()


def _request(facts: Any, body: bytes) -> Call:
    method, url, headers, started_at_utc, source, run = facts
    return Call(
        method=method,
        url=url,
        status=None,
        outcome=Outcome.UNANSWERED,
        request_headers=_pairs(headers),
        response_headers=(),
        request_body=body,
        response_body=b"",
        started_at_utc=started_at_utc,
        error=UNFINISHED,
        source=source,
        run=run,
    )


def _pairs(headers: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in headers)


def replay(database: Path, store: Keyed) -> int:
    """Store what killed recorders left behind beside `database`; how many calls. Those that live are left alone."""
    if not LOCKS:
        return 0
    stored, name = 0, escape(database.name)
    for path in sorted(database.parent.glob(f"{name}{PENDING}*")):
        with suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if path.exists():
                ours = path.with_name(path.name.replace(PENDING, REPLAYING))
                path.rename(ours)
                stored += _store(ours, store)
    for path in sorted(database.parent.glob(f"{name}{REPLAYING}*")):
        with suppress(FileNotFoundError), path.open("rb") as file:
            if _patiently_locked(file.fileno()) and path.exists():  # who began it was killed as well
                stored += _store(path, store)
    return stored


def _patiently_locked(file: int) -> bool:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        else:
            return True


def _store(path: Path, store: Keyed) -> int:
    count = 0
    for key, call in read(path):
        store.put(call, key)
        count += 1
    path.unlink(missing_ok=True)
    return count
