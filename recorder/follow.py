"""Calls of a database as they finish, whoever writes it: asked for again and again, from any process.

Only numbers are asked for; a call is read once, when it is whole. Numbers may show up out of order (PostgreSQL gives
them out before a transaction ends), so each look goes back a little.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sqlalchemy import Connection, func, select

from recorder import database, schema
from recorder.call import Call
from recorder.store import Store

LOOK_BACK = 256
"""Calls: more writers than this do not race for numbers. Ours."""
SELECT_SEQS = 500


def tail(
    target: str | Path, *, from_seq: int | None = None, poll_s: float = 0.5, until: threading.Event | None = None
) -> Iterator[Call]:
    """Finished calls, each once, in the order in which they finish; runs until `until` is set, then looks once more.

    `from_seq`: the calls behind this number, those that are there already included; None = only what
    ends from now on.
    StoreError when the database cannot be read.
    """
    with _reading(target) as connect, connect() as connection:
        last, running = _start(connection, from_seq)
    return _follow(target, last, running, poll_s=poll_s, stop=until or threading.Event())


def _follow(
    target: str | Path, last: int, running: set[int], *, poll_s: float, stop: threading.Event
) -> Iterator[Call]:
    floor, seen = last, set[int]()
    with Store.open(target, create=False) as store, _reading(target) as connect:
        while True:
            ending = stop.is_set()
            with connect() as connection:
                fresh, whole = _look(connection, max(floor, last - LOOK_BACK), seen, running)
            for seq in sorted(whole):
                yield store.call(seq)
            last = max([last, *fresh])
            running = (running | fresh) - whole
            seen = {seq for seq in seen | fresh if seq > last - LOOK_BACK}
            if ending:
                return
            stop.wait(poll_s)


@contextmanager
def _reading(target: str | Path) -> Iterator[Callable[[], AbstractContextManager[Connection]]]:
    """Connections that take no write lock."""
    engine, where = database.connect(target, create=False), database.shown(target)

    @contextmanager
    def connect() -> Iterator[Connection]:
        with database.errors(where), engine.connect() as connection:
            yield connection.execution_options(reading=True)

    try:
        yield connect
    finally:
        engine.dispose()


def _start(connection: Connection, from_seq: int | None) -> tuple[int, set[int]]:
    """Where to begin, and the calls before that which still run."""
    c = schema.call.c
    if from_seq is not None:
        return from_seq, set()
    last = int(connection.scalar(select(func.max(c.seq))) or 0)
    open_ = select(c.seq).where(c.seq > last - LOOK_BACK, c.seq <= last, c.response_pack.is_(None))
    return last, {int(seq) for seq in connection.scalars(open_)}


def _look(connection: Connection, after: int, seen: set[int], running: set[int]) -> tuple[set[int], set[int]]:
    """Calls not seen before, and those of them and of the running ones that are whole."""
    c = schema.call.c
    query = select(c.seq, c.response_pack.is_not(None))
    found = [(int(seq), bool(done)) for seq, done in connection.execute(query.where(c.seq > after))]
    fresh = {seq for seq, _ in found if seq not in seen}
    whole = {seq for seq, done in found if done and (seq in fresh or seq in running)}
    older = sorted(seq for seq in running if seq <= after)
    for at in range(0, len(older), SELECT_SEQS):
        some = older[at : at + SELECT_SEQS]
        whole |= {int(seq) for seq, done in connection.execute(query.where(c.seq.in_(some))) if done}
    return fresh, whole
