"""Sessions that share a trunk are one family; what they merely have in common makes them none. Trees need no other."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import databases
import pytest
from sqlalchemy import Connection
from storecalls import CALL, anthropic

from recorder.call import Call
from recorder.reader import CallRow
from recorder.store import Store


@pytest.fixture(params=databases.KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with databases.empty(request.param, tmp_path) as target, Store.open(target) as opened:
        yield opened


def sent(session: str, *texts: str, parent: str = "", **more: object) -> Call:
    """A call of a session with these messages; the user's and the assistant's in turn."""
    headers = (*CALL.request_headers, *([("x-parent-session-id", parent)] if parent else []))
    return replace(CALL, request_body=anthropic(*texts, session=session, **more), request_headers=headers)


def families(store: Store, *calls: Call) -> list[tuple[str, ...]]:
    for call in calls:
        store.put(call)
    return store.families()


def test_sessions_of_other_tasks_are_families_of_their_own(store: Store) -> None:
    assert families(
        store, sent("a", "fix it"), sent("b", "write it"), sent("a", "fix it", "done", "more"), sent("c", "test it")
    ) == [("a",), ("b",), ("c",)]


def test_sessions_that_begin_with_the_same_prompt_are_one_family(store: Store) -> None:
    assert families(
        store, sent("a", "fix it"), sent("b", "other"), sent("c", "fix it"), sent("c", "fix it", "so", "and")
    ) == [("a", "c"), ("b",)]


def test_a_session_forked_from_anothers_middle_is_of_its_family(store: Store) -> None:
    assert families(
        store,
        sent("a", "fix it"),
        sent("a", "fix it", "done", "more"),
        sent("a", "fix it", "done", "more", "yes", "again"),
        sent("b", "fix it", "done", "something else"),
    ) == [("a", "b")]


def test_a_fork_under_another_head_is_still_of_the_family(store: Store) -> None:
    assert families(
        store,
        sent("a", "fix it", system="It is Monday."),
        sent("a", "fix it", "done", "more", system="It is Monday."),
        sent("b", "fix it", "done", "else", system="It is Tuesday."),
        sent("b", "fix it", "done", "else", "well", "so", system="It is Tuesday."),
    ) == [("a", "b")]


def test_a_side_call_that_every_session_makes_joins_nobody(store: Store) -> None:
    assert families(
        store,
        sent("a", "quota"),
        sent("a", "a long question of its own"),
        sent("b", "quota"),
        sent("b", "another question, of b"),
        sent("b", "another question, of b", "yes", "go on"),
        sent("c", "quota"),
        sent("c", "the only question of session c"),
    ) == [("a",), ("b",), ("c",)]


def test_single_calls_with_the_same_prompt_are_rollouts_of_one_task(store: Store) -> None:
    assert families(store, sent("a", "fix it"), sent("b", "fix it"), sent("c", "fix that")) == [("a", "b"), ("c",)]


def test_a_subagents_session_is_of_the_family_that_started_it(store: Store) -> None:
    assert families(store, sent("a", "fix it"), sent("x", "look around", parent="a"), sent("b", "no")) == [
        ("a", "x"),
        ("b",),
    ]


def test_a_call_without_messages_joins_nobody(store: Store) -> None:
    assert families(store, sent("a"), sent("a", "one"), sent("b"), sent("b", "two")) == [("a",), ("b",)]


def test_a_body_that_cannot_be_read_is_a_family_of_its_own(store: Store) -> None:
    assert families(store, replace(CALL, request_body=b"{", run="r9"), sent("a", "one")) == [("r9",), ("a",)]


def test_sessions_can_be_asked_to_be_together(store: Store) -> None:
    for call in (sent("a", "one"), sent("b", "two"), sent("c", "three")):
        store.put(call)
    assert store.families(together=[("a", "c", "unknown")]) == [("a", "c"), ("b",)]


def test_calls_of_some_sessions_come_in_order_and_no_others_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in (sent("a", "one"), sent("b", "two"), sent("a", "one", "1", "more"), sent("c", "three")):
        store.put(call)
    read: list[int] = []
    whole = store._call

    def counting(connection: Connection, row: CallRow) -> Call:
        read.append(row.seq)
        return whole(connection, row)

    monkeypatch.setattr(store, "_call", counting)
    assert [call.seq for call in store.calls(sessions=("c", "a"))] == [1, 3, 4]
    assert read == [1, 3, 4]
    assert list(store.calls(sessions=())) == []
