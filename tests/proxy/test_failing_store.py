"""Whatever becomes of the record, the agent gets its bytes; what is lost is counted and said once."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from loopback import HEAD, PATIENCE_S, Capture, Peer, Upstream, capture, event, recorded, until

from proxy import launch
from proxy.addon import Tape, Tee
from proxy.writer import Ledger, Writer
from recorder.call import Call, Outcome
from recorder.errors import StoreError
from recorder.store import Store

CHUNKS = [event(f"chunk {n}") for n in range(10)]
WHOLE = b"".join(CHUNKS)


def play(peer: Peer) -> None:
    peer.send(HEAD)
    for chunk in CHUNKS:
        peer.chunk(chunk)
    peer.send(b"0\r\n\r\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


class Full:
    """A store on a full disk."""

    def start(self, call: Call, /) -> int:
        raise StoreError("disk is full")

    def append(self, seq: int, data: bytes, /) -> None:
        raise StoreError("disk is full")

    def finish(self, seq: int, call: Call, /) -> None:
        raise StoreError("disk is full")

    def put(self, call: Call, /) -> int:
        raise StoreError("disk is full")

    def close(self) -> None:
        raise StoreError("disk is full")


class Slow:
    """A store that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.calls: list[Call] = []

    def start(self, call: Call, /) -> int:
        self.go.wait(PATIENCE_S)
        return 1

    def finish(self, seq: int, call: Call, /) -> None:
        self.calls.append(call)

    def put(self, call: Call, /) -> int:
        self.calls.append(call)
        return len(self.calls)

    def close(self) -> None: ...


class Late(Full):
    """A store whose disk was full when the request came and is not when the response ends."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def put(self, call: Call, /) -> int:
        self.calls.append(call)
        return 1

    def close(self) -> None: ...


def tape(body: bytes = b"{}", reply: bytes = b"", *, done: bool = True) -> Tape:
    return Tape(
        "POST",
        "https://api.anthropic.com/v1/messages",
        ((b"content-type", b"application/json"),),
        body,
        1700000000.0,
        10.0,
        status=200,
        chunks=[reply] if reply else [],
        first_byte=10.5,
        ended=12.0,
        outcome=Outcome.COMPLETE if done else None,
    )


@contextmanager
def writing(store: Ledger, *, limit_bytes: int = 1 << 20) -> Iterator[tuple[Writer, list[str]]]:
    said: list[str] = []
    writer = Writer(lambda: store, run="r", notice=said.append, limit_bytes=limit_bytes)
    writer.start()
    yield writer, said
    writer.close(timeout_s=PATIENCE_S)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """Stores that `launch` opens instead of a real one."""
    stores: list[Ledger] = []
    monkeypatch.setattr(launch, "open_store", lambda _: stores[0])
    return stores


def ask(it: Capture) -> bytes:
    return it.client.post(it.base + "/v1/messages", content=b"{}").content


def test_a_full_disk_changes_no_byte_and_is_said_once(
    tmp_path: Path, home: Path, replaced: list[Ledger], capsys: pytest.CaptureFixture[str]
) -> None:
    replaced.append(Full())
    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, home=home) as it:
        replies = [ask(it) for _ in range(3)]
        it.recording.server.stop()

    assert replies == [WHOLE] * 3
    assert (it.recording.writer.stored, it.recording.writer.lost) == (0, 3)
    assert capsys.readouterr().err == (
        "memorywalker: calls are being lost: disk is full. The agent goes on; the summary counts them\n"
    )
    assert list(it.recording.notes()) == ["the store said: disk is full"]


def test_a_store_that_hangs_holds_nobody_up(tmp_path: Path, home: Path, replaced: list[Ledger]) -> None:
    slow = Slow()
    replaced.append(slow)
    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, home=home) as it:
        replies = [ask(it) for _ in range(3)]
        assert slow.calls == []
        slow.go.set()

    assert replies == [WHOLE] * 3
    assert [c.response_body for c in slow.calls] == [WHOLE] * 3


def test_a_database_destroyed_while_open_costs_only_the_record(tmp_path: Path, home: Path) -> None:
    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, home=home) as it:
        first = ask(it)
        until(lambda: it.recording.writer.stored == 1)
        with sqlite3.connect(it.db) as other:
            for (name,) in other.execute(
                "select name from sqlite_master where name not like 'sqlite%' and type = 'table'"
            ).fetchall():
                other.execute(f"drop table if exists {name}")
        other.close()
        second = ask(it)
        it.recording.server.stop()

    assert (first, second) == (WHOLE, WHOLE)
    assert (it.recording.writer.stored, it.recording.writer.lost) == (1, 1)


def test_a_tee_that_breaks_leaves_the_traffic_alone(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Writer, size_bytes: int) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Writer, "room", broken)
    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, home=home) as it:
        assert ask(it) == WHOLE
        tee: Tee = it.recording.tee

    assert tee.lost == 1
    assert recorded(tmp_path) == []


def test_a_call_refused_at_its_start_is_stored_at_its_end() -> None:
    late = Late()
    with writing(late) as (writer, said):
        it = tape(reply=b"hi")
        writer.begin(it)
        writer.end(it)

    assert [c.response_body for c in late.calls] == [b"hi"]
    assert (writer.stored, writer.lost, said) == (1, 0, [])


def test_what_a_full_queue_gives_up_is_counted_and_marked() -> None:
    slow = Slow()
    with writing(slow, limit_bytes=10) as (writer, _):
        assert writer.room(10)
        assert not writer.room(1)
        it = tape(body=b"0123456789")
        it.overflow = True
        writer.begin(it)
        writer.end(it)
        slow.go.set()

    assert (writer.stored, writer.lost) == (0, 1)
    assert [(c.outcome, c.error) for c in slow.calls] == [
        (Outcome.TRUNCATED, "recorder: the body was given up, the store was too slow")
    ]
    assert writer.room(10)


def test_closing_waits_no_longer_than_told_and_counts_what_is_left() -> None:
    slow = Slow()
    said: list[str] = []
    writer = Writer(lambda: slow, run="r", notice=said.append)
    writer.start()
    for _ in range(3):
        it = tape()
        writer.begin(it)
        writer.end(it)

    writer.close(timeout_s=0.05)

    slow.go.set()
    assert writer.lost == 3
    assert len(said) == 1


def test_a_database_that_cannot_be_opened_is_told_before_anything_runs() -> None:
    def refuse() -> Ledger:
        raise StoreError("expected a database, got a folder, at /tmp")

    with pytest.raises(StoreError, match="got a folder"):
        Writer(refuse, run="r", notice=lambda _: None).start()


def test_a_call_is_durable_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    writer = Writer(lambda: Store.open(path), run="r", notice=lambda _: None)
    writer.start()
    it = tape(body=b'{"model":"m","messages":[]}', reply=b"so far", done=False)
    writer.begin(it)

    def seen() -> list[tuple[bytes, bytes, Outcome]]:
        with Store.open(path) as store:
            return [(c.request_body, c.response_body, c.outcome) for c in store.calls()]

    until(lambda: bool(seen()) and seen()[0][1] == b"so far")
    assert [(s[0], s[2]) for s in seen()] == [(it.request_body, Outcome.TRUNCATED)]
    it.chunks.append(b", and more")
    it.outcome = Outcome.COMPLETE
    writer.end(it)
    writer.close()

    assert [s[1:] for s in seen()] == [(b"so far, and more", Outcome.COMPLETE)]
