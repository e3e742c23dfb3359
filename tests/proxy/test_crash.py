"""A recorder killed at any point loses nothing that was over: one hundred kills under load, one file, `verify` clean.

The real command line runs in a process forked from one that has imported it already: a hundred starts are cheap.

    over     the client had the last byte GRACE_S before the kill: the call is there, whole
    known    the client had a byte GRACE_S before the kill: the request is there, and what had arrived a flush before
    other    if it is there at all, its request is whole and its response begins as the upstream's did
"""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from loopback import HEAD, PATIENCE_S, Peer, Upstream

from proxy.writer import FLUSH_S
from recorder.call import Call, Outcome
from recorder.store import UNFINISHED, Store

KILLS = 100
CLIENTS = 4
SHARED_MEMORY = Path("/dev/shm")
GRACE_S = 0.5
"""What the writer thread may lag on a busy machine (seen: 0.3 s, idle 5 ms); what ended in it may read as cut."""

FORKING = """
import os, sys
import memorywalker, proxy.launch
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(memorywalker.main(line.split()))
    print("child", child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@dataclass(slots=True)
class Asked:
    body: bytes
    got: list[tuple[float, int]] = field(default_factory=list)
    """Time of each read, and bytes of the response body by then."""
    over_at: float | None = None


class Client(threading.Thread):
    """Holds one growing conversation, call after call, until the proxy is gone."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._name = name
        self.asked: list[Asked] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        messages: list[dict[str, str]] = []
        try:
            while True:
                messages.append({"role": "user", "content": f"{self._name} asks {len(messages)} " + "why " * 400})
                body = {"model": "m", "messages": messages, "metadata": {"user_id": f"u_session_{self._name}"}}
                one = Asked(json.dumps(body).encode())
                self.asked.append(one)
                connection.request("POST", "/v1/messages", one.body, {"content-type": "application/json"})
                response = connection.getresponse()
                size = 0
                while piece := response.read1(65536):
                    size += len(piece)
                    one.got.append((time.monotonic(), size))
                one.over_at = time.monotonic()
                messages.append({"role": "assistant", "content": f"answer {len(messages)}"})
        except (OSError, http.client.HTTPException):
            connection.close()


def events(body: bytes) -> list[bytes]:
    """What the upstream answers to a body: 3 to 202 events."""
    draw = random.Random(body)
    start: dict[str, object] = {
        "type": "message_start",
        "message": {"id": f"msg_{draw.randrange(10**9)}", "content": []},
    }
    text: dict[str, object] = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "because "},
    }
    made: list[dict[str, object]] = [
        start,
        *(text for _ in range(draw.choice((1, 2, 4, 8, 16, 200)))),
        {"type": "message_stop"},
    ]
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in made]


def play(peer: Peer) -> None:
    peer.send(HEAD)
    for one in events(peer.body):
        peer.chunk(one)
        time.sleep(0.006)
    peer.send(b"0\r\n\r\n")


@contextmanager
def forking(home: Path) -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, "MEMORYWALKER_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as parent:
        yield parent
        parent.communicate(timeout=PATIENCE_S)


def started(parent: subprocess.Popen[str], *words: str) -> tuple[int, int]:
    """Pid and port of a new `memorywalker` with these words."""
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(" ".join(words) + "\n")
    parent.stdin.flush()
    pid = port = 0
    while not (pid and port):
        line = parent.stdout.readline()
        assert line, "it never started"
        if line.startswith("child "):
            pid = int(line.split()[1])
        elif line.startswith("export ANTHROPIC_BASE_URL="):
            port = int(line.rstrip().rstrip("'").rpartition(":")[2])
    return pid, port


def ended(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    while parent.stdout.readline() != "gone\n":
        pass


def had(one: Asked, before: float) -> int:
    """Bytes that the client had by then."""
    return max((size for at, size in one.got if at <= before), default=0)


def check(one: Asked, call: Call | None, killed_at: float) -> None:
    whole = b"".join(events(one.body))
    if one.over_at is not None and one.over_at < killed_at - GRACE_S:
        assert call is not None
        assert (call.outcome, call.response_body) == (Outcome.COMPLETE, whole)
    if had(one, killed_at - GRACE_S):
        assert call is not None
    if call is None:
        return
    assert call.request_body == one.body
    if call.outcome is Outcome.COMPLETE:
        assert call.response_body == whole
        return
    assert call.error == UNFINISHED
    assert call.outcome is (Outcome.TRUNCATED if call.status else Outcome.UNANSWERED)
    assert call.status == 200 or not call.response_body
    assert whole.startswith(call.response_body)
    assert len(call.response_body) >= had(one, killed_at - FLUSH_S - GRACE_S)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder whose fsync takes no time, where there is one: a slow disk would add to what the writer lags behind."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as name:
        yield Path(name)


@pytest.mark.slow
def test_a_recorder_killed_a_hundred_times_under_load_keeps_every_call_that_was_over(
    tmp_path: Path, memory: Path
) -> None:
    draw = random.Random(3)
    db = memory / "traces.db"
    words = ("proxy", "--db", str(db), "--harness", "claude-code", "--route", "base-url", "--upstream")
    asked: list[tuple[float, Asked]] = []
    with Upstream(play) as upstream, forking(tmp_path / "home") as parent:
        for kill in range(KILLS):
            pid, port = started(parent, *words, upstream.url)
            clients = [Client(port, f"k{kill}c{n}") for n in range(CLIENTS)]
            for client in clients:
                client.start()
            time.sleep(draw.uniform(0.01, 0.4 if kill % 3 else 1.0))
            os.kill(pid, signal.SIGKILL)
            killed_at = time.monotonic()
            ended(parent)
            for client in clients:
                client.join(PATIENCE_S)
                asked += ((killed_at, one) for one in client.asked)

    with Store.open(db, create=False) as store:
        assert store.verify() == []
        calls = {call.request_body: call for call in store.calls()}
    for killed_at, one in asked:
        check(one, calls.get(one.body), killed_at)
    assert set(calls) <= {one.body for _, one in asked}
    over = [one for killed_at, one in asked if one.over_at is not None and one.over_at < killed_at - GRACE_S]
    cut = [call for call in calls.values() if call.error == UNFINISHED]
    assert len(over) > 30
    assert len(cut) > KILLS
