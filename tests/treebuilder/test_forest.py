"""Asked for some sessions, a database gives their trees and reads no call of one that shares nothing with them."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from recorder.call import Call
from recorder.errors import MemorywalkerError
from recorder.importing import read_har
from recorder.reader import CallRow
from recorder.store import Store
from treebuilder.build import build
from treebuilder.forest import Forest, Names
from treebuilder.rows import Row, rows
from treebuilder.tree import Trajectory

CAPTURES = Path(__file__).parents[1] / "captures"
NAMES = (
    "claude-code/autocompact",
    "claude-code/subagent",
    "codex/codex_proxy",
    "opencode/fork_anthropic",
    "opencode/subagent_anthropic",
    "opencode/tools_responses",
    "qwen/qwen_agent",
    "qwen/qwen_code_reverse",
)
FORK = ("ses_dd1908d62ffezQUNRQDMu6HciT", "ses_dd1903d92ffezUyqzQP54N7Fjd")


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    """Of eight harnesses, one after another in turn."""
    queues = [list(read_har(CAPTURES / f"{name}.har")) for name in NAMES]
    return [queue[i] for i in range(max(map(len, queues))) for queue in queues if i < len(queue)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, calls: list[Call]) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("forest") / "t.db") as store:
        for call in calls:
            store.put(call)
        yield store


@pytest.fixture
def read(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources of all calls read from now on."""
    seen: list[str] = []
    whole = store._call

    def counting(connection: Connection, row: CallRow) -> Call:
        call = whole(connection, row)
        seen.append(call.source)
        return call

    monkeypatch.setattr(store, "_call", counting)
    return seen


def told(trajectory: Trajectory, session: str = "") -> list[Row]:
    """As `tree` prints it, without the numbers of turns in the tree at hand."""
    return [
        replace(row, evidence=tuple(re.sub(r"turn \d+", "turn N", e) for e in row.evidence))
        for row in rows(trajectory)
        if not session or row.session == session
    ]


def test_every_session_has_the_tree_that_it_has_among_all_others(store: Store) -> None:
    whole = build(store.calls())
    for session in whole.sessions:
        assert told(Forest.of(store, [session]).tree()) == told(whole, session)
    apart = [row for tree in Forest.of(store).trees() for row in told(tree)]
    assert sorted(apart, key=lambda row: row.seq) == told(whole)


def test_no_call_of_another_family_is_read(store: Store, read: list[str]) -> None:
    assert len(told(Forest.of(store, ["8f42"]).tree())) == 10
    assert {source.partition("#")[0] for source in read} == {"autocompact.har"}
    assert len(read) == 10


def test_a_forked_session_is_built_with_the_one_it_was_forked_from_and_shown_alone(
    store: Store, read: list[str]
) -> None:
    tree = Forest.of(store, [FORK[1][:14]]).tree()
    assert [turn.kind.value for turn in tree] == ["forked"]
    assert {source.partition("#")[0] for source in read} == {"fork_anthropic.har"}
    assert len(read) == 5


def test_trees_are_built_one_family_at_a_time(store: Store, read: list[str]) -> None:
    forest = Forest.of(store)
    assert read == []
    for number, family in enumerate(forest.families):
        before = len(read)
        size = len(told(forest.trees()[number]))
        assert len(read) - before == size
        if FORK[0] in family:
            assert set(family) == set(FORK)


def test_a_subagent_with_a_session_of_its_own_is_in_the_family_of_its_caller(store: Store) -> None:
    sizes = {family[0]: len(family) for family in Forest.of(store).families}
    assert sizes["ses_dd193cce2ffeBD4V8w3X8Zvme4"] == 4  # it and three subagents


def test_sessions_that_only_trees_tell_apart_are_found_by_their_names(store: Store, calls: list[Call]) -> None:
    whole = build(calls)
    run = next(call.run for call in calls if call.source.startswith("qwen_agent"))
    inside = sorted({turn.session for turn in whole if turn.call.run == run})
    assert len(inside) == 2
    for session in inside:
        assert told(Forest.of(store, [session]).tree()) == told(build(store.calls()), session)
    assert sorted(Forest.of(store, [run]).tree().sessions) == inside
    found = Names(store, store.families()).find(inside[0])
    assert found.sessions == (inside[0],)
    assert found.first.messages[-1].plain == "Read note A" if found.first else False


def test_structure_alone_is_asked_for_by_the_same_ids(store: Store) -> None:
    tree = Forest.of(store, ["8f42"]).tree(structural=True)
    assert [turn.call.source.partition("#")[0] for turn in tree] == ["autocompact.har"] * 10


@pytest.mark.parametrize(("word", "fits"), [("nothing", 0), ("ses_", 7)])
def test_a_word_that_fits_none_or_several_is_told(store: Store, word: str, fits: int) -> None:
    with pytest.raises(MemorywalkerError, match=f"got '{word}', which fits {fits} of 12, at "):
        Forest.of(store, [word])
