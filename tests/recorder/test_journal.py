"""What a killed recorder had not stored yet is stored by whoever opens the database next, and once."""

import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from recorder.call import Call, Outcome
from recorder.journal import HEAD, Journal, read
from recorder.reader import UNFINISHED
from recorder.store import Store

ONE, TWO = b"1" * 16, b"2" * 16

CALL = Call(
    "POST",
    "https://api.anthropic.com/v1/messages",
    200,
    Outcome.COMPLETE,
    (("content-type", "application/json"),),
    (("content-type", "application/json"),),
    b'{"model":"m","messages":[]}',
    b'{"type":"message"}',
    1700000000.5,
    0.25,
    1.5,
    source="proxy",
    run="r",
)

KILLED = """
import os, sys
from pathlib import Path
from recorder.journal import Journal
from recorder.call import Call, Outcome
def call(body, reply):
    url = "https://api.anthropic.com/v1/messages"
    return Call("POST", url, 200, Outcome.COMPLETE, (), (("server", "x"),), body, reply, 1.0, 0.5, 2.0, run="r")
journal = Journal(Path(sys.argv[1]))
"""


def killed(db: Path, code: str) -> None:
    """A process that holds a journal, does `code`, and is killed."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    words = [sys.executable, "-c", KILLED + code + "\nos.kill(os.getpid(), 9)", str(db)]
    assert subprocess.run(words, env=environ, timeout=30).returncode == -9


def stored(db: Path) -> list[Call]:
    with Store.open(db) as store:
        assert store.verify() == []
        return [replace(call, seq=0) for call in store.calls()]


def left(db: Path) -> list[str]:
    return [p.name for p in db.parent.iterdir() if ".pending-" in p.name or ".replaying-" in p.name]


def test_calls_come_out_as_far_as_they_had_come(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "t.db")
    journal.begin(ONE, CALL)
    journal.begin(TWO, replace(CALL, request_body=b"two"))
    journal.piece(ONE, b"half, ", CALL)
    journal.piece(ONE, b"more, ")
    assert list(read(journal.path)) == [
        (
            ONE,
            replace(CALL, outcome=Outcome.TRUNCATED, response_body=b"half, more, ", duration_s=None, error=UNFINISHED),
        ),
        (
            TWO,
            replace(
                CALL,
                status=None,
                outcome=Outcome.UNANSWERED,
                request_body=b"two",
                response_headers=(),
                response_body=b"",
                first_byte_s=None,
                duration_s=None,
                error=UNFINISHED,
            ),
        ),
    ]
    journal.end(ONE, CALL, b"whole")
    assert next(read(journal.path)) == (ONE, replace(CALL, response_body=b"half, more, whole"))
    journal.close()


def test_a_head_that_had_arrived_is_kept_though_no_byte_followed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "t.db")
    journal.begin(ONE, CALL)
    journal.piece(ONE, b"", CALL)

    [(_, call)] = read(journal.path)

    assert (call.status, call.response_headers, call.outcome) == (200, CALL.response_headers, Outcome.TRUNCATED)
    journal.close()


def test_the_file_is_private_empty_once_all_is_stored_and_gone_at_the_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "t.db")
    assert journal.path.stat().st_mode & 0o777 == 0o600
    journal.begin(ONE, CALL)
    journal.begin(TWO, CALL)
    journal.forget(ONE)
    assert journal.path.stat().st_size > 0
    journal.forget(TWO)
    assert journal.path.stat().st_size == 0
    journal.begin(ONE, CALL)
    assert [key for key, _ in read(journal.path)] == [ONE]
    journal.close()
    assert left(tmp_path / "t.db") == []


def test_a_record_cut_short_or_damaged_ends_the_reading(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "t.db")
    journal.begin(ONE, CALL)
    whole = journal.path.stat().st_size
    journal.begin(TWO, CALL)
    data = journal.path.read_bytes()
    for end in (whole, whole + 1, whole + HEAD.size, len(data) - 1):
        journal.path.write_bytes(data[:end])
        assert [key for key, _ in read(journal.path)] == [ONE]
    journal.path.write_bytes(data[:-1] + b"?")
    assert [key for key, _ in read(journal.path)] == [ONE]
    journal.path.write_bytes(b"another program's".ljust(200))
    assert list(read(journal.path)) == []
    journal.close()


def test_a_long_file_is_written_anew_with_what_is_still_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.journal.COMPACT_BYTES", 10_000)
    journal = Journal(tmp_path / "t.db")
    journal.begin(ONE, CALL)
    for _ in range(20):
        journal.begin(TWO, replace(CALL, request_body=b"x" * 1000))
        journal.piece(ONE, b".", CALL)
        journal.forget(TWO)
    journal.end(ONE, CALL, b"!")

    assert journal.path.stat().st_size < 12_000
    assert dict(read(journal.path))[ONE] == replace(CALL, response_body=b"." * 20 + b"!")
    assert len(left(tmp_path / "t.db")) == 1
    with Store.open(tmp_path / "t.db") as store:  # the new file is held as the old one was
        assert list(store.calls()) == []
    journal.close()


def test_a_disk_that_fills_leaves_what_was_appended_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "t.db")
    journal.begin(ONE, CALL)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(OSError, match=r"expected to write|File too large"):
            journal.begin(TWO, replace(CALL, request_body=b"x" * 9000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.piece(ONE, b"more", CALL)

    assert [(key, call.response_body) for key, call in read(journal.path)] == [(ONE, b"more")]
    journal.close()


@pytest.mark.parametrize("name", ["t.db", "[a] *.db"])
def test_what_a_killed_recorder_left_behind_is_stored_by_the_next_to_open(tmp_path: Path, name: str) -> None:
    db = tmp_path / name
    killed(
        db,
        """
journal.begin(b"1" * 16, call(b"whole", b""))
journal.end(b"1" * 16, call(b"whole", b"abc"), b"abc")
journal.begin(b"2" * 16, call(b"cut", b""))
journal.piece(b"2" * 16, b"ab", call(b"cut", b""))
journal.begin(b"3" * 16, call(b"asked", b""))
""",
    )
    assert len(left(db)) == 1

    found = [(c.request_body, c.response_body, c.status, c.outcome, c.error) for c in stored(db)]

    assert found == [
        (b"whole", b"abc", 200, Outcome.COMPLETE, ""),
        (b"cut", b"ab", 200, Outcome.TRUNCATED, UNFINISHED),
        (b"asked", b"", None, Outcome.UNANSWERED, UNFINISHED),
    ]
    assert left(db) == []
    assert len(stored(db)) == 3


def test_a_call_that_was_stored_already_or_half_is_not_stored_twice(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    with Store.open(db) as store:
        store.put(replace(CALL, request_body=b"whole", response_body=b"abc"), ONE)
        started = store.start(replace(CALL, request_body=b"half"), TWO)
        store.append({started: b"a"})
    killed(
        db,
        """
journal.begin(b"1" * 16, call(b"whole", b""))
journal.piece(b"1" * 16, b"ab", call(b"whole", b""))
journal.begin(b"2" * 16, call(b"half", b""))
journal.end(b"2" * 16, call(b"half", b"abc"), b"abc")
""",
    )

    assert [(c.request_body, c.response_body, c.outcome) for c in stored(db)] == [
        (b"whole", b"abc", Outcome.COMPLETE),
        (b"half", b"abc", Outcome.COMPLETE),
    ]


def test_the_journal_of_a_recorder_that_lives_is_left_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "t.db")
    journal.begin(ONE, CALL)

    assert stored(tmp_path / "t.db") == []

    assert [key for key, _ in read(journal.path)] == [ONE]
    journal.close(keep=True)
    assert stored(tmp_path / "t.db")[0].request_body == CALL.request_body


def test_a_replay_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    killed(db, 'journal.begin(b"1" * 16, call(b"one", b""))\njournal.begin(b"2" * 16, call(b"two", b""))')
    [name] = left(db)
    (tmp_path / name).rename(tmp_path / name.replace("pending", "replaying"))
    with Store.open(tmp_path / "other.db") as other:  # it had come as far as the first
        assert other.put(CALL, ONE) == 1

    assert [c.request_body for c in stored(db)] == [b"one", b"two"]
    assert left(db) == []


def test_a_key_put_or_started_again_is_the_same_call(tmp_path: Path) -> None:
    """As after a commit whose answer was lost."""
    with Store.open(tmp_path / "t.db") as store:
        assert [store.start(CALL, ONE), store.start(CALL, ONE), store.put(CALL, ONE), store.put(CALL, ONE)] == [1] * 4
        store.finish(1, replace(CALL, response_body=b"another"))
        assert [c.response_body for c in store.calls()] == [CALL.response_body]
        assert store.put(CALL) == 2
        assert store.verify() == []
