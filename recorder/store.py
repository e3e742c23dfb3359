"""The database of calls behind one small class: calls go in as dataclasses and come out equal, byte for byte.

A request is durable when `start` returns; who dies then leaves a call that reads back as cut, with what had arrived.
Any number of threads and processes may write: a transaction is a few milliseconds, and the database numbers the calls.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, Select, func, select

from recorder import database, families, journal, outcome, rewards, rows, schema
from recorder.call import Call
from recorder.errors import StoreError
from recorder.outcome import Repeat
from recorder.reader import UNFINISHED, CallRow, Reader
from recorder.rewards import Reward
from recorder.segments import digest
from recorder.verify import Fault, faults
from recorder.writer import Writer

__all__ = ["UNFINISHED", "Fault", "RunInfo", "SessionInfo", "Store"]

PAGE_ROWS = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionInfo:
    session: str
    """The harness's own session id; the run's id where it has none."""
    harness: str
    calls: int
    first_at_utc: float
    last_at_utc: float
    """Start of the last call."""
    models: tuple[str, ...]
    bytes: int
    """Request and response bodies as they were on the wire."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    run: str
    calls: int
    first_at_utc: float
    last_at_utc: float


class Store:
    """Open with `Store.open(target)`, use as a context manager. Threads may share it."""

    def __init__(self, target: str | Path, engine: Engine, *, patience_s: float) -> None:
        self.where = database.shown(target)
        self._target = target
        self._engine = engine
        self._patience_s = patience_s
        self._lock = threading.RLock()
        self._reader = Reader()
        self._writer = Writer(Reader())

    @classmethod
    def open(cls, target: str | Path, *, create: bool = True, patience_s: float = database.BUSY_TIMEOUT_S) -> Self:
        """A file path or a database URL. StoreError when it cannot be opened at this schema version.

        `patience_s`: how long a write waits for other writers before it fails; nothing of it is stored then. What a
        killed recorder left behind is stored first.
        """
        store = cls(target, database.connect(target, create=create, patience_s=patience_s), patience_s=patience_s)
        if path := database.file(target):
            with suppress(StoreError, OSError):  # the next to open it tries again
                journal.replay(path, store)
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    @property
    def unparsed(self) -> int:
        """Calls stored by this Store whose parser failed: their bytes are there, their prefix node is not."""
        return self._writer.unparsed

    def put(self, call: Call, once: bytes | None = None) -> int:
        """Store a whole call; its seq. `once` (16 bytes): a call of that key that is there already is not stored again,
        only finished."""

        def work(connection: Connection) -> int:
            seq = self._known(connection, once)
            if seq:
                self._writer.finish(connection, seq, call)
            return seq or self._writer.insert(connection, call, finished=True, once=once)

        return self._write(work)

    def put_new(self, calls: Iterable[Call]) -> int:
        """Store, in one transaction, the calls whose run and source were not put this way before; how many."""
        batch = {digest(f"{c.run}\0{c.source}".encode("utf-8", "surrogatepass")): c for c in calls}

        def work(connection: Connection) -> int:
            there = set(connection.scalars(select(schema.call.c.once).where(schema.call.c.once.in_(list(batch)))))
            new = {once: call for once, call in batch.items() if once not in there}
            for once, call in new.items():
                self._writer.insert(connection, call, finished=True, once=once)
            return len(new)

        return self._write(work)

    def start(self, call: Call, once: bytes | None = None) -> int:
        """Store a request whose response is still to come; durable when this returns. What `call` says of the response
        (status, headers, times, body) is for `finish` to say. `once` as for `put`."""

        def work(connection: Connection) -> int:
            known = self._known(connection, once)
            return known or self._writer.insert(connection, call, finished=False, once=once)

        return self._write(work)

    def append(self, pieces: Mapping[int, bytes]) -> None:
        """Response bytes of started calls by seq, so that they outlive this process. `finish` replaces them."""
        self._write(lambda connection: self._writer.append(connection, pieces))

    def finish(self, seq: int, call: Call) -> None:
        """The response of a started call; one that has its response keeps it. The request stays as `start` got it.
        StoreError: there is no such call."""
        if not self._write(lambda connection: self._writer.finish(connection, seq, call)):
            raise StoreError(f"call {seq}: expected a started call, got none of that number at {self.where}")

    def calls(
        self, *, session: str | None = None, sessions: Collection[str] | None = None, run: str | None = None
    ) -> Iterator[Call]:
        """All calls, or those of a session, some or a run, in order of start. Read in pages: no writer waits for a
        reader."""
        query = rows.CALLS.order_by(schema.call.c.seq).limit(PAGE_ROWS)
        if session is not None:
            query = query.where(schema.session.c.key == session)
        if sessions is not None:
            query = query.where(schema.session.c.key.in_(sessions))
        if run is not None:
            query = query.where(schema.run.c.key == run)
        last = 0
        while True:
            with self._read() as connection:
                page = connection.execute(query.where(schema.call.c.seq > last)).all()
            for row in page:
                with self._read() as connection:
                    call = self._call(connection, row)
                yield call
            if len(page) < PAGE_ROWS:
                return
            last = page[-1].seq

    def call(self, seq: int) -> Call:
        with self._read() as connection:
            row = connection.execute(rows.CALLS.where(schema.call.c.seq == seq)).one_or_none()
            if row is None:
                raise StoreError(f"call {seq}: expected a stored call, got none of that number at {self.where}")
            return self._call(connection, row)

    def sessions(self) -> list[SessionInfo]:
        """In order of their first call."""
        c, s = schema.call.c, schema.session.c
        size = func.sum(c.request_length + func.coalesce(c.response_length, 0))
        facts = (
            select(s.key, s.harness, func.count(), func.min(c.started_at_utc), func.max(c.started_at_utc), size)
            .join_from(schema.session, schema.call)
            .group_by(s.id, s.key, s.harness)
            .order_by(func.min(c.seq))
        )
        models = select(s.key, c.model).join_from(schema.session, schema.call).where(c.model != "").distinct()
        with self._read() as connection:
            names: dict[str, list[str]] = {}
            for key, model in connection.execute(models.order_by(c.model)):
                names.setdefault(key, []).append(model)
            return [
                SessionInfo(key, harness, count, first, last, tuple(names.get(key, ())), int(total))
                for key, harness, count, first, last, total in connection.execute(facts)
            ]

    def families(self, *, together: Iterable[Collection[str]] = ()) -> list[tuple[str, ...]]:
        """Every session with those that share its trunk; `together`: sessions that are to be with each other."""
        with self._read() as connection:
            return families.families(connection, together)

    def reward(self, given: Iterable[Reward]) -> None:
        """Store what sessions earned, all or none; one of the same session and name is replaced."""
        listed = list(given)
        self._write(lambda connection: rewards.put(connection, listed))

    def unreward(self, sessions: Sequence[str], *, name: str = rewards.NAME) -> int:
        """Forget the rewards of that name; how many there were."""
        return self._write(lambda connection: rewards.remove(connection, sessions, name))

    def rewards(self, name: str | None = None) -> list[Reward]:
        """All, or those of one name, ordered by session and name."""
        with self._read() as connection:
            return rewards.get(connection, name)

    def runs(self) -> list[RunInfo]:
        """In order of their first call."""
        c, r = schema.call.c, schema.run.c
        query = (
            select(r.key, func.count(), func.min(c.started_at_utc), func.max(c.started_at_utc))
            .join_from(schema.run, schema.call)
            .group_by(r.id, r.key)
            .order_by(func.min(c.seq))
        )
        with self._read() as connection:
            return [RunInfo(*row) for row in connection.execute(query)]

    def repeats(self, *, session: str | None = None) -> dict[int, Repeat]:
        """Seq of each call that asks again what an earlier one of its run and session asked, and of which."""
        query: Select[Any] = rows.ASKED if session is None else rows.ASKED.where(schema.session.c.key == session)
        with self._read() as connection:
            found = list(outcome.repeats(rows.asked(row) for row in connection.execute(query)))
        return {seq: it for seq, it in found if outcome.confirmed(it.how, self.call(it.of), self.call(seq))}

    def verify(self) -> list[Fault]:
        """Re-derive every hash, length and body; one fault for each that does not come out. Empty = all is well."""
        with self._read() as connection:
            return list(faults(connection))

    def held(self, run: str) -> int:
        """Finished calls of a run, as whoever opens the database next will find them; the newest is read to prove it.

        StoreError: it is not there any more, or cannot be read.
        """
        c = schema.call.c
        mine = (schema.run.c.key == rows.key(run)) & c.response_pack.is_not(None)
        count = select(func.count(), func.max(c.seq)).join_from(schema.call, schema.run).where(mine)
        with Store.open(self._target, create=False) as anew:
            with anew._read() as connection:
                held, newest = connection.execute(count).one()
            if held:
                anew.call(newest)
        return int(held)

    def _known(self, connection: Connection, once: bytes | None) -> int:
        """Seq of the call stored under that key; 0 = none."""
        if once is None:
            return 0
        return connection.scalar(select(schema.call.c.seq).where(schema.call.c.once == once)) or 0

    def _call(self, connection: Connection, row: CallRow) -> Call:
        try:
            return self._reader.call(connection, row)
        except (ValueError, TypeError) as e:
            self._reader.forget()
            raise StoreError(f"call {row.seq}: expected what was stored, got {e}, at {self.where}") from e

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        """A connection that takes no write lock."""
        with self._lock, database.errors(self.where), self._engine.connect() as connection:
            yield connection.execution_options(reading=True)

    def _write(self, work: Callable[[Connection], T]) -> T:
        """One transaction, tried again while another writer is in the way."""

        def once() -> T:
            try:
                with self._engine.begin() as connection:
                    return work(connection)
            except BaseException:
                self._writer.forget()
                raise

        with self._lock, database.errors(self.where):
            return database.patiently(once, self._patience_s)
