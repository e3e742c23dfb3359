"""`verify` finds each kind of damage, made here by hand with sqlite3, and names the calls it breaks."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from storecalls import turns

from recorder.errors import StoreError
from recorder.store import Fault, Store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "t.db"
    with Store.open(path) as store:
        for call in turns(4):
            store.put(call)
        store.start(turns(5)[4])
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path))


def damage(path: Path, *statements: str) -> list[Fault]:
    database = sqlite3.connect(path)
    for statement in statements:
        assert database.execute(statement).rowcount == 1, statement
    database.commit()
    database.close()
    with Store.open(path) as store:
        return store.verify()


def test_an_untouched_file_has_no_faults(path: Path) -> None:
    with Store.open(path) as store:
        assert store.verify() == []


FLIPPED = (
    "update pack set data = cast(substr(data, 1, {n}) || x'{byte}' || substr(data, {n} + 2) as blob) where id = {id}"
)


@pytest.mark.parametrize("at", [0, 3, 30, 90])
def test_a_flipped_byte_in_a_request_is_found(path: Path, at: int) -> None:
    database = sqlite3.connect(path)
    data = bytearray(database.execute("select data from pack where id = 1").fetchone()[0])
    database.close()
    faults = damage(path, FLIPPED.format(id=1, n=at, byte=f"{data[at] ^ 0x55:02x}"))
    assert 1 in {f.seq for f in faults}


def test_a_flipped_byte_in_a_response_breaks_that_call_and_those_behind_it_in_the_chain(path: Path) -> None:
    database = sqlite3.connect(path)
    pack = database.execute("select response_pack from call where seq = 4").fetchone()[0]
    data = bytearray(database.execute("select data from pack where id = ?", (pack,)).fetchone()[0])
    data[len(data) // 2] ^= 0x55
    database.execute("update pack set data = ? where id = ?", (bytes(data), pack))
    database.commit()
    database.close()
    with Store.open(path) as store:
        faults = store.verify()
        assert {f.seq for f in faults} == {4, 5, 0}
        with pytest.raises(StoreError, match=r"^call 4: expected what was stored, got .*t\.db$"):
            store.call(4)
        assert store.call(3).status == 200


def test_a_missing_segment_is_found_in_every_call_that_needs_it(path: Path) -> None:
    assert {f.seq for f in damage(path, "delete from segment where id = 1")} == {1, 2, 3, 4, 5}


def test_a_missing_pack_is_found(path: Path) -> None:
    faults = damage(path, "delete from pack where id = 1")
    assert {f.seq for f in faults} >= {1, 2, 3, 4, 5}
    assert "pack 1: expected it stored, got none" in faults[0].what


def test_a_segment_that_points_elsewhere_is_found(path: Path) -> None:
    assert 0 in {f.seq for f in damage(path, "update segment set start = start + 1 where id = 2")}


@pytest.mark.parametrize(
    "change",
    [
        "status = 500",
        "outcome = 'aborted'",
        "started_at_utc = started_at_utc + 1",
        "duration_s = null",
        "model = 'another'",
        "request_length = request_length + 1",
        "response_digest = zeroblob(16)",
        "row_digest = zeroblob(16)",
        "head = zeroblob(16)",
        "node = zeroblob(16)",
    ],
)
def test_a_changed_fact_is_found_in_its_call(path: Path, change: str) -> None:
    assert {f.seq for f in damage(path, f"update call set {change} where seq = 2")} == {2}


def test_headers_of_another_call_are_found(path: Path) -> None:
    faults = damage(
        path, "update call set response_pack = (select response_pack from call where seq = 3) where seq = 2"
    )
    assert {f.seq for f in faults} == {2}


def test_a_call_given_to_another_session_is_found(path: Path) -> None:
    faults = damage(
        path,
        "insert into session (id, key, harness) values (9, 'another', '')",
        "update call set session = 9 where seq = 2",
    )
    assert [f.seq for f in faults] == [2]


def test_a_recipe_told_over_another_call_is_found(path: Path) -> None:
    assert 4 in {f.seq for f in damage(path, "update call set base = 1 where seq = 4")}


def test_recipes_in_a_circle_are_found(path: Path) -> None:
    assert {f.seq for f in damage(path, "update call set base = 4 where seq = 2")} >= {2, 3, 4}


@pytest.mark.parametrize("change", ["message = zeroblob(16)", "parent = zeroblob(16)"])
def test_a_changed_node_is_found(path: Path, change: str) -> None:
    statement = f"update node set {change} where id = (select node from call where seq = 1)"
    assert any("node" in f.what for f in damage(path, statement))


def test_a_missing_node_is_found(path: Path) -> None:
    statement = "delete from node where id = (select node from call where seq = 4)"
    assert {f.seq for f in damage(path, statement)} >= {4}


def test_a_call_without_its_run_is_found(path: Path) -> None:
    assert any("expected a run and a session" in f.what for f in damage(path, "delete from run"))
