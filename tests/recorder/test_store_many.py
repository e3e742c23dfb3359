"""Many writers on one file, and a writer that is killed: nothing that was finished is lost, nothing mixes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import databases
import pytest
from storecalls import CALL, turns

from recorder.call import Outcome
from recorder.store import UNFINISHED, Store

HERE = Path(__file__).parent
PROGRAM = """
import sys
from storecalls import turns
from recorder.store import Store
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.open(path) as store:
    for call in turns(count, session=name, run=name):
        seq = store.start(call)
        store.append({seq: call.response_body[:100]})
        print(seq, flush=True)
        store.finish(seq, call)
"""


@pytest.fixture(params=databases.KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with databases.empty(request.param, tmp_path) as target:
        yield target


def writer(target: str, name: str, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    command = [sys.executable, "-c", PROGRAM, target, name, str(count)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_several_processes_write_one_file_that_none_of_them_made(target: str) -> None:
    names = ["a", "b", "c"]
    processes = [writer(target, name, 12) for name in names]
    assert [p.communicate(timeout=60) and p.returncode for p in processes] == [0, 0, 0]
    with Store.open(target) as store:
        for name in names:
            assert [replace(c, seq=0) for c in store.calls(session=name)] == turns(12, session=name, run=name)
        assert len({c.seq for c in store.calls()}) == 36
        assert store.verify() == []


def test_a_killed_writer_loses_only_the_call_in_flight(target: str) -> None:
    process = writer(target, "a", 80)
    assert process.stdout is not None
    for _ in range(8):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    with Store.open(target) as store:
        assert store.verify() == []
        calls = list(store.calls())
        assert len(calls) >= 8
        expected = turns(len(calls), session="a", run="a")
        assert [replace(c, seq=0) for c in calls[:-1]] == expected[:-1]
        last = calls[-1]
        assert last.request_body == expected[-1].request_body
        assert last.outcome in (Outcome.COMPLETE, Outcome.TRUNCATED, Outcome.UNANSWERED)
        if last.outcome is not Outcome.COMPLETE:
            assert (last.error, expected[-1].response_body.startswith(last.response_body)) == (UNFINISHED, True)
        assert store.put(CALL) == len(calls) + 1


def test_threads_share_a_store(target: str) -> None:
    with Store.open(target) as store:

        def write(name: str) -> None:
            for call in turns(6, session=name, run=name):
                store.finish(store.start(call), call)

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in "abcd":
            assert [replace(c, seq=0) for c in store.calls(session=name)] == turns(6, session=name, run=name)
        assert store.verify() == []


def test_a_reader_in_the_middle_does_not_stop_a_writer(target: str) -> None:
    with Store.open(target) as reader, Store.open(target) as writer_:
        for call in turns(5):
            writer_.put(call)
        reading = reader.calls()
        next(reading)
        began = time.monotonic()
        assert writer_.put(CALL) == 6
        assert time.monotonic() - began < 5
        assert len(list(reading)) == 4


def test_two_stores_that_take_turns_with_a_session_both_read_it_whole(target: str) -> None:
    calls = turns(20)
    with Store.open(target) as one, Store.open(target) as other:
        for index, call in enumerate(calls):
            (one if index % 2 else other).put(call)
        assert [replace(c, seq=0) for c in one.calls()] == [replace(c, seq=0) for c in other.calls()] == calls
        assert one.verify() == []
