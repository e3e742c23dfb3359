"""The store in a process of its own: the same results and errors; what was given survives us, and we survive it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from loopback import PATIENCE_S, until

from recorder.store import Store

PRELUDE = """
import os, sys, signal, threading
from pathlib import Path
from proxy.apart import Apart, StoreApart
from recorder.call import Call, Outcome
from recorder.errors import StoreError
from recorder.store import Store

db = sys.argv[1]

def call(body):
    url = "https://api.anthropic.com/v1/messages"
    return Call("POST", url, 200, Outcome.COMPLETE, (), (), body, b"{}", 1.0, run="r")
"""


def play(code: str, db: Path, *, wait: bool = True) -> subprocess.Popen[str]:
    """In a fresh process, which has one thread only; this one may have more."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, str(db)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if wait:
        process.wait(PATIENCE_S)
    return process


def said(process: subprocess.Popen[str]) -> tuple[str, str]:
    with process:
        return process.communicate(timeout=PATIENCE_S)


def bodies(db: Path) -> list[bytes]:
    with Store.open(db, create=False) as store:
        assert store.verify() == []
        return [c.request_body for c in store.calls()]


def test_the_child_stores_and_answers(tmp_path: Path) -> None:
    db = tmp_path / "traces.db"
    process = play(
        """
apart = Apart(lambda: Store.open(db))
assert not Path(db).exists()
store = apart.open()
assert isinstance(store, StoreApart)
print(store.put(call(b"one"), os.urandom(16)), store.start(call(b"two" * 10**6), os.urandom(16)))
store.append({2: b"half"})
store.finish(2, call(b"two" * 10**6))
print(store.held("r"))
store.close()
apart.close()
apart.close()
""",
        db,
    )

    assert said(process) == ("1 2\n2\n", "")
    assert bodies(db) == [b"one", b"two" * 10**6]


def test_errors_are_the_stores_own(tmp_path: Path) -> None:
    db = tmp_path / "traces.db"
    db.write_bytes(b"not a database, " * 64)
    process = play(
        """
apart = Apart(lambda: Store.open(db))
try:
    apart.open()
except StoreError as e:
    print(e)
apart.close()
""",
        db,
    )

    with pytest.raises(Exception, match="database") as here:
        Store.open(db)
    assert said(process) == (f"{here.value}\n", "")


def test_a_child_that_was_never_asked_leaves_no_file_and_no_process(tmp_path: Path) -> None:
    process = play("Apart(lambda: Store.open(db)).close()\nprint(os.listdir(Path(db).parent))", tmp_path / "traces.db")

    assert said(process) == ("[]\n", "")


def test_what_was_given_is_stored_though_we_are_killed(tmp_path: Path) -> None:
    """Two requests were sent; the answer to the second was never heard."""
    db = tmp_path / "traces.db"
    process = play(
        """
from proxy import apart as module
apart = Apart(lambda: Store.open(db))
store = apart.open()
store.put(call(b"first"), os.urandom(16))
module._send(apart._connection, ("put", (call(b"second" * 100000), os.urandom(16))))
os.kill(os.getpid(), signal.SIGKILL)
""",
        db,
    )

    said(process)
    assert process.returncode == -signal.SIGKILL
    until(lambda: len(bodies(db)) == 2)
    assert bodies(db) == [b"first", b"second" * 100000]


def test_a_child_that_dies_costs_one_answer_and_the_store_goes_on_here(tmp_path: Path) -> None:
    db = tmp_path / "traces.db"
    process = play(
        """
apart = Apart(lambda: Store.open(db))
store = apart.open()
store.put(call(b"before"), os.urandom(16))
os.kill(apart._child, signal.SIGKILL)
try:
    store.put(call(b"lost"), os.urandom(16))
except StoreError as e:
    print(e)
print(store.put(call(b"after"), os.urandom(16)))
store.close()
apart.close()
""",
        db,
    )

    out, err = said(process)
    assert err == ""
    assert out.startswith("store: expected its process to answer, got ")
    assert out.endswith("\n2\n")
    assert bodies(db) == [b"before", b"after"]


def test_ctrl_c_and_a_closed_terminal_do_not_reach_the_child(tmp_path: Path) -> None:
    db = tmp_path / "traces.db"
    process = play(
        """
apart = Apart(lambda: Store.open(db))
store = apart.open()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    os.kill(apart._child, number)
print(store.put(call(b"still here"), os.urandom(16)), os.getpgid(apart._child) != os.getpgid(0))
store.close()
apart.close()
""",
        db,
    )

    assert said(process) == ("1 True\n", "")


def test_where_there_are_threads_nothing_is_forked(tmp_path: Path) -> None:
    db = tmp_path / "traces.db"
    process = play(
        """
over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
apart = Apart(lambda: Store.open(db))
store = apart.open()
print(type(store).__name__, apart._child)
store.close()
apart.close()
over.set()
""",
        db,
    )

    assert said(process) == ("Store 0\n", "")
