"""The database of calls behind one small class: calls go in as dataclasses and come out equal, byte for byte.

A request is durable when `start` returns; whoever dies then leaves a call that reads back as cut, with what had arrived.
Any number of threads and processes may write: a transaction is a few milliseconds, and the database numbers the calls.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Connection, Row, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError

from recorder import database, schema, segments, wire
from recorder.call import Call, Outcome
from recorder.errors import StoreError
from recorder.headers import clean_url, kept
from recorder.message import Exchange, Hints, prefix_hash
from recorder.packing import pack, unpack

UNFINISHED = "recorder ended before the response did"
"""`Call.error` of a call that was started and never finished."""
MAX_CHAIN = 32
"""Recipes to read for one body at most; a full recipe every so often costs little, following a long chain much. Ours."""
PAGE_ROWS = 64
RETRIES = 5
SELECT_IDS = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionInfo:
    session: str
    """The harness's own session id; the run's id where it has none."""
    harness: str
    calls: int
    first_at_utc: float
    last_at_utc: float
    models: tuple[str, ...]
    bytes: int
    """Request and response bodies as they were on the wire."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    run: str
    calls: int
    first_at_utc: float
    last_at_utc: float


@dataclass(frozen=True, slots=True)
class Fault:
    seq: int
    """The call it damages; 0 = no single call."""
    what: str


@dataclass(frozen=True, slots=True)
class _Base:
    """The newest recipe of a session, over which the next one is told."""

    seq: int
    ids: tuple[int, ...]
    depth: int


class Store:
    """Open with `Store.open(target)`, use as a context manager. Safe to share between threads."""

    def __init__(self, engine: "database.Engine", where: str) -> None:
        self._engine = engine
        self.where = where
        self.unparsed = 0
        """Calls whose meaning could not be read because a parser failed; their bytes are stored all the same."""
        self._lock = threading.RLock()
        self._ids: dict[bytes, int] = {}
        self._bases: dict[str, _Base] = {}
        self._recipes: dict[int, tuple[int, ...]] = {}
        self._segments: dict[int, bytes] = {}

    @classmethod
    def open(cls, target: str | Path, *, create: bool = True) -> Self:
        """A file path or a database URL. StoreError when it cannot be opened at this schema version."""
        return cls(database.connect(target, create=create), str(target))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    # ---- writing

    def put(self, call: Call) -> int:
        """Store a whole call; its seq."""
        return self._write(lambda c, after: self._insert(c, call, after, finished=True, once=None) or 0)

    def put_new(self, calls: Iterable[Call]) -> int:
        """Store those calls whose run and source are not in the database yet, in one transaction; how many they were."""
        batch = list(calls)

        def work(connection: Connection, after: list[Callable[[], None]]) -> int:
            keys = [segments.digest(f"{c.run}\0{c.source}".encode("utf-8", "surrogatepass")) for c in batch]
            there = set(connection.scalars(select(schema.call.c.once).where(schema.call.c.once.in_(keys))))
            count = 0
            for call, key in zip(batch, keys, strict=True):
                if key not in there:
                    there.add(key)
                    self._insert(connection, call, after, finished=True, once=key)
                    count += 1
            return count

        return self._write(work)

    def start(self, call: Call) -> int:
        """Store a request whose response is still to come; durable when this returns. What `call` says of the response
        (status, headers, times, body) waits for `finish`."""
        return self._write(lambda c, after: self._insert(c, call, after, finished=False, once=None))

    def append(self, seq: int, data: bytes) -> None:
        """Response bytes of a started call, so that they survive this process. `finish` replaces them."""

        def work(connection: Connection, _: list[Callable[[], None]]) -> None:
            place = connection.scalar(
                select(func.coalesce(func.max(schema.chunk.c.place), -1) + 1).where(schema.chunk.c.seq == seq)
            )
            connection.execute(insert(schema.chunk).values(seq=seq, place=place, data=data))

        self._write(work)

    def finish(self, seq: int, call: Call) -> None:
        """The response of a started call. The request stays as `start` got it."""

        def work(connection: Connection, _: list[Callable[[], None]]) -> None:
            row = connection.execute(_CALL_ROWS.where(schema.call.c.seq == seq)).one_or_none()
            if row is None:
                raise StoreError(f"call {seq}: expected a started call, got no such call at {self.where}")
            values = {**row._asdict(), **_response_values(call)}
            values["row_digest"] = _row_digest(values)
            connection.execute(
                update(schema.call)
                .where(schema.call.c.seq == seq)
                .values({k: values[k] for k in (*_RESPONSE_COLUMNS, "row_digest")})
            )
            connection.execute(delete(schema.chunk).where(schema.chunk.c.seq == seq))

        self._write(work)

    def _write(self, work: Callable[[Connection, list[Callable[[], None]]], T]) -> T:
        """Run one transaction, again when another writer was in the way; what it learned is kept once it is committed."""
        with self._lock, database.errors(self.where):
            for attempt in range(RETRIES):
                after: list[Callable[[], None]] = []
                try:
                    with self._engine.begin() as connection:
                        result = work(connection, after)
                except DBAPIError as e:
                    if attempt == RETRIES - 1 or not database.is_transient(e):
                        raise
                    time.sleep(0.05 * 2**attempt)
                    continue
                for learn in after:
                    learn()
                return result
        raise AssertionError("the loop returns or raises")

    def _insert(
        self, connection: Connection, call: Call, after: list[Callable[[], None]], *, finished: bool, once: bytes | None
    ) -> int:
        meaning, hints = self._read(call)
        session = _key(hints.session or call.run)
        head, node = self._insert_prefix(connection, meaning)
        ids = self._insert_segments(connection, call.request_body, after)
        base = self._bases.get(session)
        if base is not None and base.depth >= MAX_CHAIN:
            base = None
        values: dict[str, object] = {
            "once": once,
            "model": _key(meaning.head.model) if meaning else "",
            "started_at_utc": call.started_at_utc,
            "request_length": len(call.request_body),
            "request_digest": segments.digest(call.request_body),
            "head": head,
            "node": node,
            "base": base.seq if base else None,
            "recipe": segments.encode_recipe(ids, base.ids if base else ()),
            "request_meta": pack(_json([call.method, clean_url(call.url), kept(call.request_headers), call.source])),
            **(_response_values(call) if finished else _NO_RESPONSE),
        }
        run_key = _key(call.run)
        values["row_digest"] = _row_digest({**values, "run_key": run_key, "session_key": session})
        values["run"] = self._key_id(connection, schema.run, run_key)
        values["session"] = self._key_id(connection, schema.session, session, harness=_key(hints.harness))
        seq = int(connection.execute(insert(schema.call).values(values).returning(schema.call.c.seq)).scalar_one())
        learned = _Base(seq, tuple(ids), base.depth + 1 if base else 0)

        def learn() -> None:
            self._bases.pop(session, None)
            self._bases[session] = learned
            while len(self._bases) > 64:
                del self._bases[next(iter(self._bases))]

        after.append(learn)
        return seq

    def _read(self, call: Call) -> tuple[Exchange | None, Hints]:
        try:
            meaning = wire.read(call)
            return (meaning, meaning.hints) if isinstance(meaning, Exchange) else (None, wire.hints(call))
        except Exception:  # noqa: BLE001  observing never disturbs: the bytes are stored, the failure is counted
            self.unparsed += 1
            return None, Hints()

    def _key_id(self, connection: Connection, table: "database.Table", key: str, **more: str) -> int:
        found = connection.scalar(select(table.c.id).where(table.c.key == key))
        if found is None:
            connection.execute(database.ignoring_duplicates(connection, table).values(key=key, **more))
            found = connection.execute(select(table.c.id).where(table.c.key == key)).scalar_one()
        return int(found)

    def _insert_prefix(self, connection: Connection, meaning: Exchange | None) -> tuple[bytes | None, bytes | None]:
        if meaning is None:
            return None, None
        parent = meaning.head.digest
        rows: list[dict[str, object]] = [{"id": parent, "parent": None, "message": None}]
        for message in meaning.messages:
            node = prefix_hash(parent, message.digest)
            rows.append({"id": node, "parent": parent, "message": message.digest})
            parent = node
        new = rows[self._known_nodes(connection, [bytes(r["id"]) for r in rows]) :]  # type: ignore[call-overload]
        if new:
            connection.execute(database.ignoring_duplicates(connection, schema.node), new)
        return meaning.head.digest, parent

    def _known_nodes(self, connection: Connection, path: Sequence[bytes]) -> int:
        """How many leading nodes of a path are stored. A node is stored after its parent, so a search by halves finds it."""
        low, high = 0, len(path)
        while low < high:
            middle = (low + high + 1) // 2
            if connection.scalar(select(schema.node.c.id).where(schema.node.c.id == path[middle - 1])) is None:
                high = middle - 1
            else:
                low = middle
        return low

    def _insert_segments(self, connection: Connection, body: bytes, after: list[Callable[[], None]]) -> list[int]:
        parts = segments.split(body)
        digests = [segments.digest(p) for p in parts]
        known = {d: self._ids[d] for d in digests if d in self._ids}
        unknown = {d: p for d, p in zip(digests, parts, strict=True) if d not in known}
        if unknown:
            known.update(self._select_ids(connection, list(unknown)))
            new = {d: p for d, p in unknown.items() if d not in known}
            if new:
                data = b"".join(new.values())
                pack_id = connection.execute(
                    insert(schema.pack).values(data=pack(data)).returning(schema.pack.c.id)
                ).scalar_one()
                rows: list[dict[str, object]] = []
                start = 0
                for d, p in new.items():
                    rows.append({"digest": d, "pack": pack_id, "start": start, "length": len(p)})
                    start += len(p)
                connection.execute(database.ignoring_duplicates(connection, schema.segment), rows)
                known.update(self._select_ids(connection, list(new)))
            found = {d: known[d] for d in unknown}

            def learn() -> None:
                if len(self._ids) > 500_000:
                    self._ids.clear()
                self._ids.update(found)

            after.append(learn)
        return [known[d] for d in digests]

    def _select_ids(self, connection: Connection, digests: Sequence[bytes]) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for at in range(0, len(digests), SELECT_IDS):
            some = digests[at : at + SELECT_IDS]
            rows = connection.execute(
                select(schema.segment.c.digest, schema.segment.c.id).where(schema.segment.c.digest.in_(some))
            )
            found.update((bytes(d), int(i)) for d, i in rows)
        return found

    # ---- reading

    def calls(self, *, session: str | None = None, run: str | None = None) -> Iterator[Call]:
        """All calls, or those of a session or run, in order of start; read page by page, so writers are not kept waiting."""
        query = _CALL_ROWS
        if session is not None:
            query = query.where(schema.session.c.key == session)
        if run is not None:
            query = query.where(schema.run.c.key == run)
        last = 0
        while True:
            with self._lock, database.errors(self.where), self._reading() as connection:
                rows = connection.execute(
                    query.where(schema.call.c.seq > last).order_by(schema.call.c.seq).limit(PAGE_ROWS)
                ).all()
                page = [self._call(connection, row) for row in rows]
            yield from page
            if len(page) < PAGE_ROWS:
                return
            last = page[-1].seq

    def call(self, seq: int) -> Call:
        with self._lock, database.errors(self.where), self._reading() as connection:
            row = connection.execute(_CALL_ROWS.where(schema.call.c.seq == seq)).one_or_none()
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
            .group_by(schema.session.c.id, s.key, s.harness)
            .order_by(func.min(c.seq))
        )
        models = select(s.key, c.model).join_from(schema.session, schema.call).distinct().order_by(c.model)
        with self._lock, database.errors(self.where), self._reading() as connection:
            names: dict[str, list[str]] = {}
            for key, model in connection.execute(models):
                names.setdefault(key, []).extend([model] if model else [])
            return [
                SessionInfo(key, harness, calls, first, last, tuple(names.get(key, ())), int(total))
                for key, harness, calls, first, last, total in connection.execute(facts)
            ]

    def runs(self) -> list[RunInfo]:
        """In order of their first call."""
        c, r = schema.call.c, schema.run.c
        query = (
            select(r.key, func.count(), func.min(c.started_at_utc), func.max(c.started_at_utc))
            .join_from(schema.run, schema.call)
            .group_by(r.id, r.key)
            .order_by(func.min(c.seq))
        )
        with self._lock, database.errors(self.where), self._reading() as connection:
            return [RunInfo(*row) for row in connection.execute(query)]

    def verify(self) -> list[Fault]:
        """Re-derive every hash, length and body; one fault for each that does not come out. An empty list = all is well."""
        faults: list[Fault] = []
        with self._lock, database.errors(self.where), self._reading() as connection:
            self._segments.clear()
            self._recipes.clear()
            for row in connection.execute(_CALL_ROWS.order_by(schema.call.c.seq)).all():
                values = row._asdict()
                if _row_digest(values) != bytes(row.row_digest):
                    faults.append(Fault(row.seq, "row: its facts differ from the digest taken when it was stored"))
                try:
                    call = self._call(connection, row)
                except StoreError as e:
                    faults.append(Fault(row.seq, str(e)))
                    continue
                if segments.digest(call.request_body) != bytes(row.request_digest):
                    faults.append(Fault(row.seq, "request body: differs from its digest"))
                if row.response_digest is not None and segments.digest(call.response_body) != bytes(
                    row.response_digest
                ):
                    faults.append(Fault(row.seq, "response body: differs from its digest"))
        return faults

    def _reading(self) -> Connection:
        return self._engine.connect().execution_options(reading=True)

    def _call(self, connection: Connection, row: "Row[tuple[object, ...]]") -> Call:
        try:
            ids = self._recipe(connection, row.seq, row.recipe, row.base)
            body = b"".join(self._fetch(connection, ids))
            method, url, request_headers, source = json.loads(unpack(row.request_meta))
            finished = row.response_meta is not None
            response_headers, error = json.loads(unpack(row.response_meta)) if finished else ([], UNFINISHED)
            response = unpack(row.response) if finished else self._chunks(connection, row.seq)
        except (ValueError, TypeError, KeyError) as e:
            raise StoreError(f"call {row.seq}: expected what was stored, got {e}, at {self.where}") from e
        outcome = Outcome(row.outcome) if finished else (Outcome.TRUNCATED if response else Outcome.UNANSWERED)
        return Call(
            method=method,
            url=url,
            status=row.status,
            outcome=outcome,
            request_headers=tuple((n, v) for n, v in request_headers),
            response_headers=tuple((n, v) for n, v in response_headers),
            request_body=body,
            response_body=response,
            started_at_utc=row.started_at_utc,
            first_byte_s=row.first_byte_s,
            duration_s=row.duration_s,
            error=error,
            source=source,
            run=row.run_key,
            seq=row.seq,
        )

    def _chunks(self, connection: Connection, seq: int) -> bytes:
        query = select(schema.chunk.c.data).where(schema.chunk.c.seq == seq).order_by(schema.chunk.c.place)
        return b"".join(bytes(d) for d in connection.scalars(query))

    def _recipe(self, connection: Connection, seq: int, recipe: bytes, base: int | None) -> tuple[int, ...]:
        if seq in self._recipes:
            return self._recipes[seq]
        over: tuple[int, ...] = ()
        if base is not None:
            if base >= seq:
                raise ValueError(f"recipe: expected a base before call {seq}, got {base}")
            row = connection.execute(
                select(schema.call.c.recipe, schema.call.c.base).where(schema.call.c.seq == base)
            ).one_or_none()
            if row is None:
                raise ValueError(f"recipe: expected base call {base}, got none")
            over = self._recipe(connection, base, bytes(row.recipe), row.base)
        ids = tuple(segments.decode_recipe(bytes(recipe), over))
        if len(self._recipes) > 4 * PAGE_ROWS:
            self._recipes.clear()
        self._recipes[seq] = ids
        return ids

    def _fetch(self, connection: Connection, ids: Sequence[int]) -> list[bytes]:
        missing = [i for i in dict.fromkeys(ids) if i not in self._segments]
        if len(self._segments) > 100_000:
            self._segments.clear()
            missing = list(dict.fromkeys(ids))
        for at in range(0, len(missing), SELECT_IDS):
            some = missing[at : at + SELECT_IDS]
            rows = connection.execute(select(schema.segment).where(schema.segment.c.id.in_(some))).all()
            packs = {r.pack for r in rows}
            data = {
                int(i): unpack(bytes(d))
                for i, d in connection.execute(select(schema.pack).where(schema.pack.c.id.in_(packs)))
            }
            for r in rows:
                if r.pack not in data:
                    raise ValueError(f"segment {r.id}: expected pack {r.pack}, got none")
                piece = data[r.pack][r.start : r.start + r.length]
                if segments.digest(piece) != bytes(r.digest):
                    raise ValueError(f"segment {r.id}: its bytes differ from its digest")
                self._segments[r.id] = piece
        lost = next((i for i in missing if i not in self._segments), None)
        if lost is not None:
            raise ValueError(f"segment {lost}: expected it stored, got none")
        return [self._segments[i] for i in ids]


_CALL_ROWS = (
    select(schema.call, schema.run.c.key.label("run_key"), schema.session.c.key.label("session_key"))
    .join_from(schema.call, schema.run)
    .join(schema.session)
)

_RESPONSE_COLUMNS = (
    "status",
    "outcome",
    "first_byte_s",
    "duration_s",
    "response_length",
    "response_digest",
    "response_meta",
    "response",
)
_NO_RESPONSE: dict[str, object] = {**dict.fromkeys(_RESPONSE_COLUMNS), "outcome": Outcome.UNANSWERED.value}
_DIGESTED = tuple(sorted(c.name for c in schema.call.c if c.name not in ("seq", "run", "session", "row_digest"))) + (
    "run_key",
    "session_key",
)


def _response_values(call: Call) -> dict[str, object]:
    return {
        "status": call.status,
        "outcome": call.outcome.value,
        "first_byte_s": call.first_byte_s,
        "duration_s": call.duration_s,
        "response_length": len(call.response_body),
        "response_digest": segments.digest(call.response_body),
        "response_meta": pack(_json([kept(call.response_headers), call.error])),
        "response": pack(call.response_body),
    }


def _row_digest(values: dict[str, object]) -> bytes:
    """16 bytes over every column of a call that is not its number, keys in place of ids."""
    h = blake2b(b"call\0", digest_size=16)
    for name in _DIGESTED:
        value = values[name]
        data = bytes(value) if isinstance(value, bytes | memoryview) else repr(value).encode()
        h.update(f"{name}\0{len(data)}\0".encode())
        h.update(data)
    return h.digest()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _key(text: str) -> str:
    """Text that every database can hold and index."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")[:512]
