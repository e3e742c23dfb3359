"""Writes calls: what is new becomes a pack, what is known becomes a recipe. One Writer per Store, under its lock.

What a Writer remembers (last bodies of a session, ids of segments, the end of the pack chain) only saves work: it is
read from the database when missing and thrown away when a transaction fails.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Table, bindparam, delete, func, insert, select, update

from recorder import database, growing, idruns, packs, recipe, rows, schema, segments
from recorder.call import Call
from recorder.growing import Known, Meaning
from recorder.message import Hints, prefix_hash
from recorder.reader import Reader
from recorder.recipe import shared_start
from recorder.wire.speaker import speaker

MAX_RECIPE_CHAIN = 32
"""Recipes to read for one body at most; a whole recipe now and then costs little, following a long chain much. Ours."""
SESSIONS = 64
SESSION_BODIES = 4
"""Threads of a session whose last body is kept in memory: main, title, subagents."""
KNOWN_IDS = 500_000
KNOWN_NODES = 200_000
SELECT_IDS = 500

_INSERT_CALL = insert(schema.call).returning(schema.call.c.seq)
_SEGMENT_IDS = select(schema.segment.c.digest, schema.segment.c.id).where(
    schema.segment.c.digest.in_(bindparam("digests", expanding=True))
)


@dataclass(slots=True)
class _Last:
    """A body that the next one may grow from."""

    seq: int
    ids: list[int]
    chain: int
    cut: segments.Cut
    known: Known = growing.NOTHING
    hashes: segments.Hashes = ()


@dataclass(slots=True)
class _Session:
    id: int
    link: packs.Link | None = None
    parent: str = ""
    """The session that started it, once that is stored; empty = none, or not seen by this Writer."""
    bodies: list[_Last] = field(default_factory=list)


class Writer:
    def __init__(self, reader: Reader) -> None:
        self.unparsed = 0
        self._reader = reader
        self._ids: dict[bytes, int] = {}
        self._nodes: dict[bytes, bytes] = {}
        """Parent and message -> node, for nodes that are stored."""
        self._runs: dict[str, int] = {}
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def forget(self) -> None:
        """A transaction failed: what was learned in it may not be so."""
        self._ids.clear()
        self._nodes.clear()
        self._runs.clear()
        self._sessions.clear()
        self._reader.forget()

    def insert(self, connection: Connection, call: Call, *, finished: bool, once: bytes | None = None) -> int:
        """Store a call, with its response when it is finished; its seq."""
        body = call.request_body
        before, shared = _nearest(self._likely(call), body)
        known = before.known if before else growing.NOTHING
        meaning = self._read(call, known, shared)
        session_key, run_key = rows.key(meaning.hints.session or call.run), rows.key(call.run)
        session = self._session(connection, session_key, rows.key(meaning.hints.harness))
        if meaning.hints.parent_session and session.parent != meaning.hints.parent_session:
            session.parent = meaning.hints.parent_session
            kin = {"session": session_key, "parent": rows.key(session.parent)}
            connection.execute(database.ignoring_duplicates(connection, schema.kin), kin)
        if before not in session.bodies:
            before, shared = _nearest(session, body)
        if run_key not in self._runs:
            self._runs[run_key] = _key_id(connection, schema.run, run_key)
        meta = rows.request_meta(call)
        cut = segments.cut(body, before.cut, shared) if before else segments.cut(body)
        request_digest, hashes = segments.digest_along(body, before.hashes if before else (), shared)
        ids, request_pack = self._store_segments(connection, session, meta, cut, before)
        base = before if before and before.chain < MAX_RECIPE_CHAIN else None
        head, node = self._store_prefix(connection, meaning)
        values: dict[str, object] = {
            "once": once,
            "model": rows.key(meaning.exchange.head.model) if meaning.exchange else "",
            "started_at_utc": call.started_at_utc,
            "request_length": len(body),
            "request_digest": request_digest,
            "head": head,
            "node": node,
            "base": base.seq if base else None,
            "recipe": recipe.encode(ids, base.ids if base else ()),
            "request_pack": request_pack,
            "response_pack": None,
            **(rows.response_columns(call) if finished else rows.OPEN),
        }
        if finished:
            values["response_pack"] = self._store_response(connection, session, call)
        values["row_digest"] = rows.row_digest(
            {**values, "run_key": run_key, "session_key": session_key},
            meta,
            rows.response_meta(call) if finished else b"",
        )
        values |= {"run": self._runs[run_key], "session": session.id}
        seq = int(connection.execute(_INSERT_CALL, values).scalar_one())
        if before and 2 * shared >= len(before.cut.body):
            session.bodies.remove(before)
        session.bodies.append(_Last(seq, ids, base.chain + 1 if base else 0, cut, growing.learn(cut, meaning), hashes))
        del session.bodies[:-SESSION_BODIES]
        return seq

    def finish(self, connection: Connection, seq: int, call: Call) -> bool:
        """Store the response of a started call that has none yet; False when there is no such call."""
        row = connection.execute(rows.CALLS.where(schema.call.c.seq == seq)).one_or_none()
        if row is None:
            return False
        if row.response_pack is not None:
            return True
        session = self._session(connection, row.session_key, "")
        pack = self._store_response(connection, session, call)
        values: dict[str, object] = {**rows.response_columns(call), "response_pack": pack}
        meta = rows.part(self._reader.pack(connection, row.request_pack))[0]
        values["row_digest"] = rows.row_digest({**row._asdict(), **values}, meta, rows.response_meta(call))
        connection.execute(update(schema.call).where(schema.call.c.seq == seq).values(values))
        connection.execute(delete(schema.chunk).where(schema.chunk.c.seq == seq))
        return True

    def append(self, connection: Connection, pieces: Mapping[int, bytes]) -> None:
        c = schema.chunk.c
        found = connection.execute(select(c.seq, func.max(c.place)).where(c.seq.in_(list(pieces))).group_by(c.seq))
        last = {row[0]: row[1] for row in found}
        connection.execute(
            insert(schema.chunk), [{"seq": s, "place": last.get(s, -1) + 1, "data": d} for s, d in pieces.items()]
        )

    def _likely(self, call: Call) -> _Session | None:
        """The session that the headers name, or else the run's, if its bodies are in memory."""
        said = speaker(call.request_headers, {}).session or call.run
        return self._sessions.get(rows.key(said))

    def _read(self, call: Call, known: Known, shared: int) -> Meaning:
        try:
            return growing.read(call, known, shared)
        except Exception:  # noqa: BLE001  observing never disturbs: the bytes are stored, the failure is counted
            self.unparsed += 1
            return Meaning(Hints(), None)

    def _session(self, connection: Connection, key: str, harness: str) -> _Session:
        if key in self._sessions:
            self._sessions.move_to_end(key)
            return self._sessions[key]
        session = _Session(_key_id(connection, schema.session, key, harness=harness))
        newest = connection.execute(
            select(schema.call).where(schema.call.c.session == session.id).order_by(schema.call.c.seq.desc()).limit(1)
        ).one_or_none()
        if newest is not None:
            try:
                session.link = self._reader.link(connection, newest.response_pack or newest.request_pack)
                ids, chain = self._reader.recipe(connection, newest.seq)
                session.bodies = [_Last(newest.seq, ids, chain, segments.EMPTY)]
            except ValueError:  # damaged: begin a chain of its own; `verify` tells
                session.link = None
        self._sessions[key] = session
        while len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def _store_segments(
        self, connection: Connection, session: _Session, meta: bytes, cut: segments.Cut, before: _Last | None
    ) -> tuple[list[int], int]:
        unknown = self._unknown(connection, cut.digests)
        pack = self._store_new(connection, session, meta, {d: cut.segment(cut.digests.index(d)) for d in unknown})
        return [self._ids[d] for d in cut.digests], pack

    def _store_response(self, connection: Connection, session: _Session, call: Call) -> int:
        """The pack of a response; a run of ids in it is segments of a pack before."""
        run = None
        if (found := idruns.cut(call.response_body)) is not None:
            at, pieces = found
            named = {segments.digest(piece): piece for piece in pieces}
            if unknown := self._unknown(connection, list(named)):
                self._store_new(connection, session, b"", {d: named[d] for d in unknown})
            run = at, sum(map(len, pieces)), [self._ids[segments.digest(piece)] for piece in pieces]
        session.link = packs.add(connection, rows.join_response(call, run), session.link)
        return session.link.id

    def _unknown(self, connection: Connection, digests: Sequence[bytes]) -> list[bytes]:
        """Those of some segments that are not stored; of all others the ids are known from now on."""
        known = self._ids
        asked = [d for d in dict.fromkeys(digests) if d not in known]
        if asked:
            if len(known) > KNOWN_IDS:
                known.clear()
                asked = list(dict.fromkeys(digests))
            known.update(_segment_ids(connection, asked))
        return [d for d in asked if d not in known]

    def _store_new(self, connection: Connection, session: _Session, meta: bytes, new: Mapping[bytes, bytes]) -> int:
        """A pack with these segments behind `meta`; its id."""
        content = rows.join(meta, b"".join(new.values()))
        session.link = packs.add(connection, content, session.link)
        if new:
            start = len(content) - sum(map(len, new.values()))
            places: list[dict[str, object]] = []
            for name, data in new.items():
                places.append({"digest": name, "pack": session.link.id, "start": start, "length": len(data)})
                start += len(data)
            connection.execute(database.ignoring_duplicates(connection, schema.segment), places)
            self._ids.update(_segment_ids(connection, list(new)))
        return session.link.id

    def _store_prefix(self, connection: Connection, meaning: Meaning) -> tuple[bytes | None, bytes | None]:
        """Store the nodes of the trie that are not there yet; the ids of root and leaf."""
        if meaning.exchange is None:
            return None, None
        if len(self._nodes) > KNOWN_NODES:
            self._nodes.clear()
        known = self._nodes
        parent = root = meaning.exchange.head.digest
        new: list[dict[str, bytes | None]] = []
        if root not in known:
            known[root] = root
            new.append({"id": root, "parent": None, "message": None})
        for message in meaning.digests:
            step = parent + message
            node = known.get(step)
            if node is None:
                node = known[step] = prefix_hash(parent, message)
                new.append({"id": node, "parent": parent, "message": message})
            parent = node
        if new:
            connection.execute(database.ignoring_duplicates(connection, schema.node), new)
        return root, parent


def _nearest(session: _Session | None, body: bytes) -> tuple[_Last | None, int]:
    """The body of the session that this one shares the longest start with, the newest of equals, and that length."""
    found, longest = None, -1
    for last in reversed(session.bodies if session else ()):
        shared = shared_start(last.cut.body, body)
        if shared > longest:
            found, longest = last, shared
    return found, max(longest, 0)


def _segment_ids(connection: Connection, digests: Sequence[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for at in range(0, len(digests), SELECT_IDS):
        for name, number in connection.execute(_SEGMENT_IDS, {"digests": digests[at : at + SELECT_IDS]}):
            found[bytes(name)] = int(number)
    return found


def _key_id(connection: Connection, table: Table, key: str, **more: str) -> int:
    found = connection.scalar(select(table.c.id).where(table.c.key == key))
    if found is None:
        connection.execute(database.ignoring_duplicates(connection, table).values(key=key, **more))
        found = connection.execute(select(table.c.id).where(table.c.key == key)).scalar_one()
    return int(found)
