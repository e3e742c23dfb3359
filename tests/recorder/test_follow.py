"""Calls are seen as they finish, from another process, each once."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from databases import KINDS, empty
from storecalls import CALL, anthropic, turns

from recorder.call import Call, Outcome
from recorder.errors import StoreError
from recorder.follow import tail
from recorder.store import Store

WRITER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from databases import KINDS, empty
from storecalls import turns
from recorder.store import Store
with Store.open(sys.argv[1]) as store:
    for call in turns(5):
        seq = store.start(call)
        time.sleep(0.02)
        store.finish(seq, call)
"""


def following(target: Path | str, **options: int) -> tuple[Iterator[Call], threading.Event]:
    stop = threading.Event()
    return tail(target, poll_s=0.01, until=stop, **options), stop


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_writes_and_every_call_is_seen_once(tmp_path: Path, kind: str) -> None:
    with empty(kind, tmp_path) as db:
        Store.open(db).close()
        calls, stop = following(db, from_seq=0)
        with subprocess.Popen([sys.executable, "-c", WRITER, db, str(Path(__file__).parent)]) as writer:
            seen = [next(calls) for _ in range(5)]
            assert writer.wait(30) == 0
        stop.set()
        assert list(calls) == []
    assert [replace(c, seq=0) for c in seen] == turns(5)
    assert [c.seq for c in seen] == [1, 2, 3, 4, 5]


def test_only_what_comes_from_now_on_and_what_still_runs(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    with Store.open(db) as store:
        store.put(CALL)
        running = store.start(CALL)
        calls, stop = following(db)
        store.put(CALL)
        store.finish(running, CALL)
        stop.set()
        assert [c.seq for c in calls] == [2, 3]


def test_a_call_is_seen_when_it_is_whole_and_not_before(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    with Store.open(db) as store:
        first, second = store.start(CALL), store.start(CALL)
        calls, stop = following(db, from_seq=0)
        store.finish(second, replace(CALL, outcome=Outcome.TRUNCATED, error="cut"))
        assert (one := next(calls)).seq == second
        assert one.error == "cut"
        store.finish(first, CALL)
        stop.set()
        assert [c.seq for c in calls] == [first]


def test_calls_behind_a_number_and_no_others(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    with Store.open(db) as store:
        for call in turns(4):
            store.put(call)
    calls, stop = following(db, from_seq=2)
    stop.set()
    assert [c.seq for c in calls] == [3, 4]


def test_a_number_given_out_early_may_come_late(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    with Store.open(db) as store:
        for seq, early in ((30, "a"), (29, "b")):
            store.put(replace(CALL, request_body=anthropic("Hi.", session=early)))
            with closing(sqlite3.connect(db)) as connection, connection:
                connection.execute("update call set seq = ? where seq = (select max(seq) from call)", (seq,))
            if seq == 30:
                calls, stop = following(db, from_seq=0)
                assert next(calls).seq == 30
        stop.set()
        assert [c.seq for c in calls] == [29]


def test_a_database_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no\.db"):
        tail(tmp_path / "no.db")
