"""Whatever becomes of the record, the agent gets its bytes; what is lost is counted and said once."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from loopback import HEAD, PATIENCE_S, Capture, Peer, Upstream, capture, event, recorded, until

import proxy.addon
import proxy.recording
import proxy.writer
import recorder.outcome
from proxy.addon import Tee
from proxy.tape import Tape
from proxy.writer import Ledger, Writer
from recorder.call import Call, Outcome
from recorder.errors import StoreError
from recorder.journal import Journal
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

    def start(self, call: Call, once: bytes, /) -> int:
        raise StoreError("disk is full")

    def append(self, pieces: Mapping[int, bytes], /) -> None:
        raise StoreError("disk is full")

    def finish(self, seq: int, call: Call, /) -> None:
        raise StoreError("disk is full")

    def put(self, call: Call, once: bytes, /) -> int:
        raise StoreError("disk is full")

    def held(self, run: str, /) -> int:
        raise StoreError("disk is full")

    def close(self) -> None:
        raise StoreError("disk is full")


class Memory(Full):
    """A store that keeps what `put` and `finish` get."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def finish(self, seq: int, call: Call, /) -> None:
        self.calls.append(call)

    def put(self, call: Call, once: bytes, /) -> int:
        self.calls.append(call)
        return len(self.calls)

    def held(self, run: str, /) -> int:
        return len(self.calls)

    def close(self) -> None: ...


class Slow(Memory):
    """A store that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def start(self, call: Call, once: bytes, /) -> int:
        self.go.wait(PATIENCE_S)
        return 1

    def append(self, pieces: Mapping[int, bytes], /) -> None: ...


class Late(Memory):
    """A store whose disk was full when the request came and is not when the response ends."""


class Healing(Memory):
    """A store that fails until it is told not to."""

    def __init__(self) -> None:
        super().__init__()
        self.well = threading.Event()
        self.asked = threading.Event()

    def put(self, call: Call, once: bytes, /) -> int:
        self.asked.set()
        return super().put(call, once) if self.well.is_set() else Full.put(self, call, once)


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
    """Stores that a recording opens instead of a real one."""
    stores: list[Ledger] = []
    monkeypatch.setattr(proxy.recording, "open_store", lambda _: stores[0])
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
        "memorywalker: calls cannot be stored: disk is full. The agent goes on; the summary counts the lost\n"
    )
    assert list(it.recording.notes()) == ["the store said: disk is full"]


@pytest.mark.parametrize("where", ["journal", "store"])
def test_a_response_does_not_end_before_its_request_is_durable(
    tmp_path: Path, home: Path, replaced: list[Ledger], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In the store, where there is no room for a journal."""
    monkeypatch.setattr(proxy.addon, "DURABLE_S", PATIENCE_S)
    slow = Slow()
    replaced.append(slow)

    def begin(self: Journal, key: bytes, call: Call) -> None:
        if where == "store":
            raise OSError("no room")
        slow.go.wait(PATIENCE_S)

    monkeypatch.setattr(Journal, "begin", begin)
    ended = threading.Event()
    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, home=home) as it:
        with it.client.stream("POST", it.base + "/v1/messages", content=b"{}") as response:
            arriving = response.iter_bytes()
            got = b""
            while len(got) < len(WHOLE):
                got += next(arriving)

            def finish() -> None:
                next(arriving, None)
                ended.set()

            rest = threading.Thread(target=finish)
            rest.start()
            assert not ended.wait(0.3)  # every byte is here, the end is not
            slow.go.set()
            rest.join(PATIENCE_S)
        assert got == WHOLE
        assert ended.is_set()


def test_a_store_that_hangs_holds_nobody_up(
    tmp_path: Path, home: Path, replaced: list[Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.addon, "DURABLE_S", 0.1)
    slow = Slow()
    replaced.append(slow)
    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, home=home) as it:
        replies = [ask(it) for _ in range(3)]
        assert slow.calls == []
        slow.go.set()

    assert replies == [WHOLE] * 3
    assert [c.response_body for c in slow.calls] == [WHOLE] * 3


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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that failed is asked again at once, and at the end for a short while."""
    monkeypatch.setattr(proxy.writer, "RETRY_S", 0.02)
    monkeypatch.setattr(proxy.writer, "LAST_TRY_S", 0.5)
    monkeypatch.setattr(proxy.recording, "PATIENCE_S", 0.05)


def done(writer: Writer, *tapes: Tape) -> None:
    for it in tapes:
        assert writer.room(len(it.request_body) + sum(map(len, it.chunks)))
        writer.begin(it)
        writer.end(it)


@pytest.mark.usefixtures("impatient")
def test_what_a_failing_store_refused_is_stored_when_it_heals() -> None:
    store = Healing()
    with writing(store) as (writer, said):
        done(writer, *(tape(b"%d" % n) for n in range(5)))
        assert store.asked.wait(PATIENCE_S)
        store.well.set()
        until(lambda: writer.stored == 5)
        done(writer, tape(b"5"))

    assert sorted(c.request_body for c in store.calls) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert (writer.stored, writer.lost) == (6, 0)
    assert said == [
        "memorywalker: calls cannot be stored: disk is full. The agent goes on; the summary counts the lost"
    ]


@pytest.mark.usefixtures("impatient")
def test_a_call_refused_at_its_start_is_tried_again_while_it_runs() -> None:
    class Shy(Memory):
        asked = 0

        def start(self, call: Call, once: bytes, /) -> int:
            self.asked += 1
            return 7 if self.asked == 3 else super().start(call, once)

        def append(self, pieces: Mapping[int, bytes], /) -> None:
            assert pieces == {7: b"so far"}
            flushed.set()

    flushed = threading.Event()
    with writing(Shy()) as (writer, _):
        it = tape(reply=b"so far", done=False)
        writer.begin(it)
        assert flushed.wait(PATIENCE_S)
        it.outcome = Outcome.COMPLETE
        writer.end(it)
    assert (writer.stored, writer.lost) == (1, 0)


@pytest.mark.usefixtures("impatient")
def test_one_call_that_can_never_be_stored_holds_no_other_up() -> None:
    class Picky(Memory):
        def put(self, call: Call, once: bytes, /) -> int:
            if call.request_body == b"poison":
                raise StoreError("not this one")
            return super().put(call, once)

    store = Picky()
    with writing(store) as (writer, said):
        done(writer, tape(b"0"), tape(b"poison"), tape(b"1"))
        until(lambda: writer.stored == 2)
        done(writer, tape(b"2"))

    assert sorted(c.request_body for c in store.calls) == [b"0", b"1", b"2"]
    assert (writer.stored, writer.lost, len(said)) == (3, 1, 1)


def test_what_waits_for_a_failing_store_is_bounded_and_the_oldest_goes_first() -> None:
    store = Healing()
    with writing(store, limit_bytes=400) as (writer, _):
        done(writer, *(tape(b"%d" % n + b"x" * 39) for n in range(5)))
        until(lambda: writer.lost == 3)
        store.well.set()

    assert [c.request_body[:1] for c in store.calls] == [b"3", b"4"]
    assert (writer.stored, writer.lost) == (2, 3)
    assert writer.room(400)


def test_a_body_that_breaks_a_parser_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(call: Call) -> Call:
        raise RuntimeError("a bug")

    monkeypatch.setattr(recorder.outcome, "settled", broken)
    store = Late()
    with writing(store) as (writer, _):
        done(writer, tape(reply=b"hi"))

    assert [c.response_body for c in store.calls] == [b"hi"]
    assert (writer.stored, writer.lost) == (1, 0)


def test_a_recorded_stream_without_its_end_is_truncated_though_the_transport_saw_none() -> None:
    store = Late()
    it = tape(reply=b'event: message_start\ndata: {"type":"message_start","message":{"id":"m"}}\n\n')
    it.response_headers = ((b"content-type", b"text/event-stream"),)
    with writing(store) as (writer, _):
        done(writer, it)

    assert [(c.outcome, c.error) for c in store.calls] == [
        (Outcome.TRUNCATED, "upstream: the stream ended before its last event")
    ]


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
