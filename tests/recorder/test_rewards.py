"""What sessions earned is stored by name, replaced by a second word, and survives an upgrade; wrong files are told."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import databases
import pytest
from storecalls import CALL

from recorder import database, migrations
from recorder.errors import RewardError
from recorder.rewards import Reward, read
from recorder.store import Store


@pytest.fixture(params=databases.KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with databases.empty(request.param, tmp_path) as target, Store.open(target) as opened:
        yield opened


def test_rewards_come_back_by_session_and_name(store: Store) -> None:
    given = [Reward("b", -0.5, group="task"), Reward("a", 1.0), Reward("a", 3.25, "style")]
    store.reward(given)
    assert store.rewards() == [Reward("a", 1.0, "reward"), Reward("a", 3.25, "style"), Reward("b", -0.5, group="task")]
    assert store.rewards("style") == [Reward("a", 3.25, "style")]
    assert store.rewards("none") == []


def test_a_second_word_on_the_same_replaces_the_first(store: Store) -> None:
    store.reward([Reward("a", 1.0, group="x"), Reward("a", 2.0)])
    assert store.rewards() == [Reward("a", 2.0)]


def test_all_or_none_are_stored(store: Store) -> None:
    def broken() -> Iterator[Reward]:
        yield Reward("a", 1.0)
        raise RewardError("the second is wrong")

    with pytest.raises(RewardError):
        store.reward(broken())
    assert store.rewards() == []


def test_a_reward_can_be_taken_back(store: Store) -> None:
    store.reward([Reward("a", 1.0), Reward("a", 2.0, "style"), Reward("b", 3.0)])
    assert store.unreward(["a", "c"]) == 1
    assert store.rewards() == [Reward("a", 2.0, "style"), Reward("b", 3.0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_is_a_finite_number(value: float) -> None:
    with pytest.raises(RewardError, match=f"^reward of a: expected a finite number, got {value}$"):
        Reward("a", value)


def test_a_file_of_rewards(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text('{"session": "a", "value": 1}\n\n{"session": "b", "value": 0.5, "name": "n", "group": "g"}')
    assert list(read(file)) == [Reward("a", 1.0), Reward("b", 0.5, "n", "g")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "expected a JSON object, got unexpected end of data: line 1 column 2 (char 1)"),
        ("[1]", "expected a JSON object, got list"),
        ('{"session": "a", "reward": 1}', "expected the fields session, value, name, group, got 'reward'"),
        ('{"value": 1}', "expected `session` to be a session's id, got None"),
        ('{"session": "a", "value": "1"}', "expected `value` to be a number, got '1'"),
        ('{"session": "a", "value": true}', "expected `value` to be a number, got True"),
        ('{"session": "a", "value": 1e999}', "expected a JSON object, got number is infinity when parsed as double"),
        ('{"session": "a", "value": 1, "name": ""}', "expected `name` to be text, got ''"),
        ('{"session": "a", "value": 1, "group": 7}', "expected `group` to be text, got 7"),
    ],
)
def test_a_wrong_line_is_told_by_its_number(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(f'{{"session": "ok", "value": 0}}\n{line}\n')
    with pytest.raises(RewardError) as caught:
        list(read(file))
    assert str(caught.value).startswith(f"{file}:2: {words}")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="expected a file of rewards, got No such file or directory"):
        list(read(tmp_path / "none"))


def test_a_database_from_before_rewards_takes_them_once_opened(tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.db") as store:
        store.put(CALL)
    file = sqlite3.connect(tmp_path / "t.db")
    file.executescript("drop table reward; drop table kin; update alembic_version set version_num = '0001'")
    file.close()
    with Store.open(tmp_path / "t.db") as store:
        store.reward([Reward("a", 1.0)])
        assert store.rewards() == [Reward("a", 1.0)]
        assert store.call(1).request_body == CALL.request_body
        assert store.verify() == []


def test_a_program_from_before_rewards_refuses_the_database_and_leaves_it(tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.db") as store:
        store.reward([Reward("a", 1.0)])
    steps = tmp_path / "old"
    (steps / "versions").mkdir(parents=True)
    first = migrations.FOLDER / "versions" / "0001_calls.py"
    (steps / "versions" / first.name).write_text(first.read_text())
    engine = database.connect(tmp_path / "t.db")
    with pytest.raises(RuntimeError, match=r"expected schema 0001 or older, got '0002' of a newer program, at t\.db"):
        migrations.upgrade(engine, "0002", "t.db", folder=steps)
    engine.dispose()
    with Store.open(tmp_path / "t.db") as store:
        assert store.rewards() == [Reward("a", 1.0)]
