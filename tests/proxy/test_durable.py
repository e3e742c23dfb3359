"""A call outlives the recorder from the moment it arrives, though the store has not taken it yet."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from loopback import HEAD, PATIENCE_S, Peer, Upstream, event, recorded, until

import proxy.durable
import proxy.writer
from proxy.durable import Durable
from proxy.tape import Tape
from recorder import journal
from recorder.call import Call, Outcome
from recorder.errors import StoreError
from recorder.journal import Journal
from recorder.reader import UNFINISHED
from recorder.store import Store


class Stuck:
    """A store that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.calls: list[Call] = []

    def start(self, call: Call, once: bytes, /) -> int:
        self.go.wait(PATIENCE_S)
        raise StoreError("not yet")

    def put(self, call: Call, once: bytes, /) -> int:
        self.calls.append(call)
        return len(self.calls)

    def append(self, pieces: Mapping[int, bytes], /) -> None: ...

    def finish(self, seq: int, call: Call, /) -> None: ...

    def held(self, run: str, /) -> int:
        return len(self.calls)

    def close(self) -> None: ...


def tape(body: bytes) -> Tape:
    url = "https://api.anthropic.com/v1/messages"
    return Tape("POST", url, ((b"x-api-key", b"secret"),), body, 1700000000.0, 10.0)


def answered(it: Tape, *chunks: bytes, over: bool) -> None:
    it.status, it.first_byte = 200, 10.5
    it.chunks += chunks
    if over:
        it.ended, it.outcome = 12.0, Outcome.COMPLETE


def test_a_call_is_in_the_journal_while_the_store_is_stuck(tmp_path: Path) -> None:
    store, held = Stuck(), Journal(tmp_path / "t.db")
    durable = Durable(held, lambda: store, run="r", notice=lambda _: None)
    durable.start()
    whole, running = tape(b"whole"), tape(b"running")
    for it in (whole, running):
        durable.begin(it)
    answered(running, b"half", over=False)
    until(lambda: whole.taken and running.taken)
    answered(whole, b"all ", b"of it", over=True)
    durable.end(whole)

    def seen() -> list[tuple[bytes, bytes, Outcome]]:
        return [(c.request_body, c.response_body, c.outcome) for _, c in journal.read(held.path)]

    until(lambda: [s[1] for s in seen()] == [b"all of it", b"half"])
    assert [s[2] for s in seen()] == [Outcome.COMPLETE, Outcome.TRUNCATED]
    assert b"secret" not in held.path.read_bytes()
    assert store.calls == []

    answered(running, b" and half", over=True)
    durable.end(running)
    store.go.set()
    durable.close()
    assert [c.response_body for c in store.calls] == [b"all of it", b"half and half"]
    assert (durable.writer.stored, durable.lost, held.path.exists()) == (2, 0, False)


def test_what_a_stuck_store_did_not_take_in_time_stays_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.writer.Writer.close, "__kwdefaults__", {"timeout_s": 0.05})
    store, held = Stuck(), Journal(tmp_path / "traces.db")
    durable = Durable(held, lambda: store, run="r", notice=lambda _: None)
    durable.start()
    it = tape(b"late")
    durable.begin(it)
    answered(it, b"reply", over=True)
    durable.end(it)
    durable.close()
    durable.close()
    store.go.set()

    assert durable.lost == 1
    Store.open(tmp_path / "traces.db").close()
    assert [(c.request_body, c.response_body) for c in recorded(tmp_path)] == [(b"late", b"reply")]


def test_a_disk_that_hangs_counts_what_it_held_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy.durable, "DRAIN_S", 0.05)
    go = threading.Event()
    monkeypatch.setattr(Journal, "begin", lambda *_: go.wait(PATIENCE_S))
    durable = Durable(Journal(tmp_path / "t.db"), Stuck, run="r", notice=lambda _: None)
    durable.start()
    for _ in range(3):
        durable.begin(tape(b""))
    durable.close()

    assert durable.lost == 3
    go.set()


def test_a_recorder_killed_before_its_store_took_anything_loses_nothing(tmp_path: Path) -> None:
    """The store's process is stopped first, so that nothing is stored but by the next to open the database."""
    going = threading.Event()

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        peer.chunk(event("begun"))
        if b"whole" in peer.body:
            peer.send(b"0\r\n\r\n")
        else:
            going.wait(PATIENCE_S)

    words = ["proxy", "--db", str(tmp_path / "traces.db"), "--route", "base-url", "--harness", "claude-code"]
    environ = {**os.environ, "MEMORYWALKER_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
    with (
        Upstream(play) as upstream,
        subprocess.Popen(
            [sys.executable, "-m", "memorywalker", *words, "--upstream", upstream.url],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        ) as recorder,
    ):
        assert recorder.stdout is not None
        port = next(int(x.rpartition(":")[2].rstrip("'\n")) for x in recorder.stdout if "ANTHROPIC_BASE_URL" in x)
        [store] = Path(f"/proc/{recorder.pid}/task/{recorder.pid}/children").read_text().split()
        os.kill(int(store), signal.SIGSTOP)
        whole, cut = (socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(2))
        for connection, body in ((whole, b"whole"), (cut, b"cut")):
            head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            connection.sendall(head + body)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += whole.recv(65536)
        pending = next(p for p in tmp_path.iterdir() if ".pending-" in p.name)
        until(lambda: [len(c.response_body) for _, c in journal.read(pending)] == [len(event("begun"))] * 2)
        os.kill(recorder.pid, signal.SIGKILL)
        recorder.wait(PATIENCE_S)
        assert {c.request_body for c in recorded(tmp_path)} == {b"whole", b"cut"}  # while the store's process lives
        os.kill(int(store), signal.SIGKILL)
        going.set()
        for connection in (whole, cut):
            connection.close()

    calls = {c.request_body: c for c in recorded(tmp_path)}
    assert {b: (c.response_body, c.status, c.error) for b, c in calls.items()} == {
        b"whole": (event("begun"), 200, ""),
        b"cut": (event("begun"), 200, UNFINISHED),
    }
    assert not list(tmp_path.glob("*.pending-*"))
