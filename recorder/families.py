"""Which sessions share a trunk, found on the stored trie of prefixes alone: no body is read.

    session A   m1 m2            m1 m2 r2 m3         m1 m2 r2 m3 r3 m4
    session B                    m1 m2 r2 m3         m1 m2 r2 m3 s3 m5     forked from A, or a rollout of the same task
    session C   m7               m7 r7 m8

A and B are one family: a prefix that A was sent (a leaf) starts, or is, one of B's. A leaf that nothing grows from says
nothing, for every session of a harness may make the same side call: unless the session has no other, and then it is
that of its largest request. What a session begins with is compared under any head, for a head changes from one day to
the next; what started a session, by its headers, is of its family too.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from itertools import groupby

from sqlalchemy import Connection, func, literal, select

from recorder import schema
from recorder.message import prefix_hash


def families(connection: Connection, together: Iterable[Collection[str]] = ()) -> list[tuple[str, ...]]:
    """Every session in one family; families and members in order of their first call. `together`: sessions that are
    to be of one family whatever they share."""
    c, s = schema.call.c, schema.session.c
    order = [
        key
        for (key,) in connection.execute(
            select(s.key).join_from(schema.session, schema.call).group_by(s.id, s.key).order_by(func.min(c.seq))
        )
    ]
    joined = _Joined(order)
    sessions, largest = _leaves(connection)
    grown: set[bytes] = set()
    starts: dict[bytes, tuple[bytes, ...]] = {}
    for leaf, above, messages in _walks(connection):
        if above is None:
            starts[leaf] = _headless(messages)
        else:
            grown.add(above)
            joined.join((*sessions[leaf], sessions[above][0]))
    for leaf in grown:
        joined.join(sessions[leaf])
    alone = set(largest).difference(*(sessions[leaf] for leaf in grown))
    speaking = {leaf: [*sessions[leaf]] for leaf in starts if leaf in grown}
    for session in alone:
        speaking.setdefault(largest[session], []).append(session)
    same: dict[bytes, str] = {}
    for leaf, mine in speaking.items():
        joined.join(mine)
        if leaf in starts:
            joined.join((mine[0], same.setdefault(starts[leaf][-1], mine[0])))
    for leaf, mine in speaking.items():
        joined.join((mine[0], *(same[prefix] for prefix in starts.get(leaf, ()) if prefix in same)))
    for child, parent in connection.execute(select(schema.kin.c.session, schema.kin.c.parent)):
        joined.join((child, parent))
    for some in together:
        joined.join(some)
    return joined.families()


class _Joined:
    """Sessions with the family each is in: a union-find."""

    def __init__(self, order: list[str]) -> None:
        self._head = {session: session for session in order}

    def join(self, sessions: Iterable[str]) -> None:
        first, *rest = [session for session in sessions if session in self._head] or [""]
        for other in rest:
            self._head[self._of(other)] = self._of(first)

    def _of(self, session: str) -> str:
        while self._head[session] != session:
            self._head[session] = session = self._head[self._head[session]]
        return session

    def families(self) -> list[tuple[str, ...]]:
        members: dict[str, list[str]] = {}
        for session in self._head:
            members.setdefault(self._of(session), []).append(session)
        return [tuple(mine) for mine in members.values()]


def _leaves(connection: Connection) -> tuple[dict[bytes, list[str]], dict[str, bytes]]:
    """Leaf -> the sessions that were sent it; session -> the leaf of its largest request."""
    c = schema.call.c
    query = (
        select(schema.session.c.key, c.node, func.max(c.request_length))
        .join_from(schema.session, schema.call)
        .where(c.node != c.head)
        .group_by(schema.session.c.id, schema.session.c.key, c.node)
    )
    sessions: dict[bytes, list[str]] = defaultdict(list)
    largest: dict[str, tuple[int, bytes]] = {}
    for key, node, size in connection.execute(query):
        sessions[bytes(node)].append(key)
        largest[key] = max(largest.get(key, (-1, b"")), (size, bytes(node)))
    return sessions, {key: node for key, (_, node) in largest.items()}


def _walks(connection: Connection) -> Iterator[tuple[bytes, bytes | None, list[bytes]]]:
    """For each leaf the next one above it, or None and the digests of its messages from the root down."""
    n, c = schema.node.c, schema.call.c
    leaves = select(c.node).where(c.node != c.head).distinct().cte("leaves")
    up = select(leaves.c.node.label("leaf"), leaves.c.node.label("at"), literal(0).label("steps")).cte(
        "up", recursive=True
    )
    above = (
        select(up.c.leaf, n.parent, up.c.steps + 1)
        .join_from(up, schema.node, n.id == up.c.at)
        .where(n.parent.is_not(None))
        .where((up.c.steps == 0) | up.c.at.not_in(select(leaves.c.node)))
    )
    up = up.union_all(above)
    query = (
        select(up.c.leaf, up.c.at, up.c.steps, n.message)
        .join_from(up, schema.node, n.id == up.c.at)
        .order_by(up.c.leaf, up.c.steps)
    )
    known = {bytes(node) for (node,) in connection.execute(select(leaves.c.node))}
    for leaf, walk in groupby(connection.execute(query), key=lambda row: bytes(row.leaf)):
        steps = list(walk)
        last = bytes(steps[-1].at)
        if len(steps) > 1 and last in known:
            yield leaf, last, []
        else:
            yield leaf, None, [bytes(row.message) for row in reversed(steps) if row.message is not None]


def _headless(messages: list[bytes]) -> tuple[bytes, ...]:
    """Ids of the prefixes that some messages make, whatever the head before them."""
    found, at = [], blake2b(b"any head\0", digest_size=16).digest()
    for message in messages:
        at = prefix_hash(at, message)
        found.append(at)
    return tuple(found)
