"""Proof that the database still holds what was put in: every hash, length, body and prefix derived again.

What one damaged byte breaks is told by call; a damaged pack breaks every call that shares it, and is named in each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, select

from recorder import rows, schema
from recorder.message import prefix_hash
from recorder.reader import Reader
from recorder.segments import digest

PAGE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Fault:
    seq: int
    """The call it damages; 0 = no call alone."""
    what: str
    """Expected, got, where."""


def faults(connection: Connection) -> Iterator[Fault]:
    """All faults of a database, calls first, in order of their number."""
    reader = Reader()
    last = 0
    while page := connection.execute(
        rows.CALLS.where(schema.call.c.seq > last).order_by(schema.call.c.seq).limit(PAGE_ROWS)
    ).all():
        for row in page:
            yield from _call(connection, reader, row)
        last = page[-1].seq
    joined = connection.scalar(select(func.count()).select_from(rows.CALLS.subquery()))
    stored = connection.scalar(select(func.count()).select_from(schema.call))
    if joined != stored:
        yield Fault(0, f"calls: expected a run and a session for each of {stored}, got them for {joined}")
    yield from _segments(connection, reader)
    yield from _nodes(connection)


def _call(connection: Connection, reader: Reader, row: Row[Any]) -> Iterator[Fault]:
    try:
        call = reader.call(connection, row)  # checks facts, segments and the response on its way
    except (ValueError, TypeError) as e:
        yield Fault(row.seq, f"call: expected what was stored, got {e}")
        return
    if digest(call.request_body) != bytes(row.request_digest):
        yield Fault(row.seq, "call: expected what was stored, got a request body that differs from its digest")
    if row.node is not None:
        yield from _prefix(connection, row.seq, bytes(row.head), bytes(row.node))


def _prefix(connection: Connection, seq: int, head: bytes, leaf: bytes) -> Iterator[Fault]:
    """The leaf and the root must be there; `_nodes` shows that all between them is."""
    there = {bytes(i) for i in connection.scalars(select(schema.node.c.id).where(schema.node.c.id.in_([head, leaf])))}
    for name, node in (("head", head), ("prefix", leaf)):
        if node not in there:
            yield Fault(seq, f"{name}: expected node {node.hex()}, got none")


def _segments(connection: Connection, reader: Reader) -> Iterator[Fault]:
    """Every segment is derived again, also one that no call names any more."""
    c = schema.segment.c
    last = 0
    while page := connection.execute(select(schema.segment).where(c.id > last).order_by(c.id).limit(500)).all():
        for row in page:
            try:
                piece = reader.pack(connection, row.pack)[row.start : row.start + row.length]
            except ValueError as e:
                yield Fault(0, f"segment {row.id}: expected its bytes, got {e}")
                continue
            if digest(piece) != bytes(row.digest):
                yield Fault(
                    0, f"segment {row.id}: expected digest {bytes(row.digest).hex()}, got {digest(piece).hex()}"
                )
        last = page[-1].id


def _nodes(connection: Connection) -> Iterator[Fault]:
    """Each node is the hash of its parent and message, and its parent is there."""
    n, parent = schema.node.c, schema.node.alias("parent")
    query = select(n.id, n.parent, n.message, parent.c.id.label("found")).outerjoin_from(
        schema.node, parent, n.parent == parent.c.id
    )
    for row in connection.execute(query.where(n.parent.is_not(None))):
        if row.found is None:
            yield Fault(0, f"node {bytes(row.id).hex()}: expected parent {bytes(row.parent).hex()}, got none")
        derived = prefix_hash(bytes(row.parent), bytes(row.message or b""))
        if derived != bytes(row.id):
            yield Fault(0, f"node {bytes(row.id).hex()}: expected the hash of parent and message, got {derived.hex()}")
