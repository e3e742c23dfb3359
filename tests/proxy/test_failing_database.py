"""A real database that is locked, full, destroyed or gone: the agent gets its bytes, and what is lost is told."""

import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from loopback import HEAD, PATIENCE_S, Capture, Peer, Upstream, capture, event, recorded, until
from sqlalchemy import Engine
from sqlalchemy import event as sql

import proxy.recording
import proxy.writer
from recorder.call import Outcome

WHOLE = b"".join(event(f"chunk {n}") for n in range(10))
HOLD = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("begin exclusive")
print("held", flush=True)
sys.stdin.read()
"""
SAID = "memorywalker: calls cannot be stored: {}. The agent goes on; the summary counts the lost\n"


def play(peer: Peer) -> None:
    peer.send(HEAD)
    peer.chunk(WHOLE)
    peer.send(b"0\r\n\r\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that failed is asked again at once, and at the end for a short while."""
    monkeypatch.setattr(proxy.writer, "RETRY_S", 0.02)
    monkeypatch.setattr(proxy.writer, "LAST_TRY_S", 0.2)
    monkeypatch.setattr(proxy.recording, "PATIENCE_S", 0.05)


@pytest.fixture
def it(tmp_path: Path, home: Path) -> Iterator[Capture]:
    with (
        Upstream(play) as upstream,
        capture(tmp_path, upstream=upstream.url, route="base-url", home=home) as it,
    ):
        yield it


def ask(it: Capture, body: bytes = b"{}") -> bytes:
    return it.client.post(it.base + "/v1/messages", content=body).content


def ended(it: Capture) -> tuple[int, int]:
    """Wind the recording down as its end would; calls stored and lost."""
    it.recording.server.stop()
    it.recording.sink.close()
    return it.recording.writer.stored, it.recording.writer.lost


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the write lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield
        other.communicate(timeout=PATIENCE_S)


@contextmanager
def room(pages: int) -> Iterator[None]:
    """Connections that find a full disk behind so many pages."""

    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"pragma max_page_count={pages}")

    sql.listen(Engine, "connect", limit)
    yield
    sql.remove(Engine, "connect", limit)


def test_a_database_locked_for_the_whole_run_costs_only_the_record(
    it: Capture, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(it.db):
        replies = [ask(it) for _ in range(3)]
        assert ended(it) == (0, 3)

    assert replies == [WHOLE] * 3
    assert capsys.readouterr().err == SAID.format(
        f"database: expected to read and write, got OperationalError: database is locked, at {it.db}"
    )


def test_a_lock_that_is_let_go_costs_nothing(it: Capture, tmp_path: Path) -> None:
    before = ask(it, b'{"n":0}')
    with locked(it.db):
        during = [ask(it, b'{"n":%d}' % n) for n in (1, 2, 3)]
        until(lambda: it.recording.writer.why != "")
    after = ask(it, b'{"n":4}')
    assert ended(it) == (5, 0)

    assert [before, *during, after] == [WHOLE] * 5
    calls = recorded(tmp_path)
    assert sorted(c.request_body for c in calls) == [b'{"n":%d}' % n for n in range(5)]
    assert {c.response_body for c in calls} == {WHOLE}


def test_a_disk_that_fills_costs_only_what_found_no_room(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        room(40),
        Upstream(play) as upstream,
        capture(tmp_path, upstream=upstream.url, route="base-url", home=home) as it,
    ):
        replies = [ask(it, os.urandom(60_000)) for _ in range(8)]
        stored, lost = ended(it)

    assert replies == [WHOLE] * 8
    assert stored + lost == 8
    assert 0 < stored < 8
    assert capsys.readouterr().err.count("database or disk is full") == 1
    assert sum(c.outcome is Outcome.COMPLETE for c in recorded(tmp_path)) == stored


@pytest.mark.parametrize("name", ["traces.db", "*"])
def test_a_database_removed_during_the_run_is_told_at_its_end(
    it: Capture, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ask(it)
    until(lambda: it.recording.writer.stored == 1)
    for path in it.db.parent.glob(name):
        path.unlink()
    assert (first, ask(it)) == (WHOLE, WHOLE)
    assert ended(it) == (0, 2)
    assert capsys.readouterr().err == SAID.format(f"database: expected a file, got nothing at {it.db}")


def test_a_database_overwritten_during_the_run_is_told_at_its_end(it: Capture) -> None:
    first = ask(it)
    until(lambda: it.recording.writer.stored == 1)
    for path in it.db.parent.glob("traces.db*"):
        if path.suffix != ".db-shm":
            path.write_bytes(b"\x55" * path.stat().st_size)
    assert (first, ask(it)) == (WHOLE, WHOLE)
    assert ended(it) == (0, 2)
    assert "got DatabaseError: file is not a database" in it.recording.writer.why


def test_a_database_whose_tables_are_dropped_costs_only_the_record(it: Capture) -> None:
    first = ask(it)
    until(lambda: it.recording.writer.stored == 1)
    with sqlite3.connect(it.db) as other:
        for name in ("chunk", "call", "segment", "pack", "node"):
            other.execute(f"drop table {name}")
    other.close()
    assert (first, ask(it)) == (WHOLE, WHOLE)
    assert ended(it) == (0, 2)


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 1)])
def test_a_file_that_may_not_grow_is_counted_and_strict_says_so_by_its_exit_code(
    tmp_path: Path, home: Path, words: tuple[str, ...], code: int
) -> None:
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    agent = (
        "import os, urllib.request as u\n"
        "for _ in range(8):\n"
        "    ask = u.Request(os.environ['ANTHROPIC_BASE_URL'] + '/v1/messages', os.urandom(100_000))\n"
        "    print(len(u.urlopen(ask).read()))\n"
    )
    with Upstream(play) as upstream:
        command = [sys.executable, "-m", "memorywalker", "run", "--db", str(tmp_path / "traces.db"), *words]
        command += ["--route", "base-url", "--upstream", upstream.url, "--", sys.executable, "-c", agent]
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=small,
            env={**os.environ, "MEMORYWALKER_HOME": str(home), "NO_PROXY": "127.0.0.1"},
        )
    assert ran.stdout == f"{len(WHOLE)}\n" * 8
    assert ran.returncode == code, ran.stderr
    assert ran.stderr.count("calls cannot be stored") == 1
    stored = sum(c.outcome is Outcome.COMPLETE for c in recorded(tmp_path))
    assert 0 < stored < 8
    assert f"memorywalker: {stored} calls" in ran.stderr
    assert f"; {8 - stored} lost; in " in ran.stderr


def test_a_database_that_cannot_be_opened_is_told_before_anything_runs(tmp_path: Path, home: Path) -> None:
    (tmp_path / "traces.db").write_bytes(b"no database " * 100)
    ran = subprocess.run(
        [sys.executable, "-m", "memorywalker", "run", "--db", str(tmp_path / "traces.db"), "--", "touch", "ran"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "MEMORYWALKER_HOME": str(home)},
    )
    assert (ran.returncode, (tmp_path / "ran").exists()) == (1, False)
    assert "file is not a database" in ran.stderr
    assert ran.stderr.count("\n") == 1
