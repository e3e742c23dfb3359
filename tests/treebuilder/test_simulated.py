"""What the simulator did is what the tree says, in every order of arrival that keeps a thread's own."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import EDITS, Step, simulate, tree_of

from recorder.message import Exchange
from treebuilder.diff import apply
from treebuilder.tree import Kind

SEEDS = st.integers(0, 10**6)
STEPS = st.lists(st.sampled_from(EDITS), max_size=25)


def sent(step: Step) -> Exchange:
    assert isinstance(step.prepared.exchange, Exchange)
    return step.prepared.exchange


@pytest.mark.parametrize("structural", [False, True], ids=["evidence", "structure"])
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, edits=STEPS, sessions=st.integers(1, 3))
def test_kinds_and_kept_prefixes_are_recovered(structural: bool, seed: int, edits: list[str], sessions: int) -> None:
    steps = simulate(seed, edits, sessions=sessions)
    trajectory = tree_of(steps, structural=structural)
    assert [t.kind for t in trajectory] == [s.kind for s in steps]
    compared = [
        (t.prefix, s.kept) for t, s in zip(trajectory, steps, strict=True) if s.kind is not Kind.SUMMARY_REQUEST
    ]
    assert [(a, b) for a, b in compared if b >= 0 and a != b] == []


@settings(max_examples=40, deadline=None)
@given(SEEDS, STEPS)
def test_the_walk_to_a_call_is_what_was_sent_and_its_edit_leads_there(seed: int, edits: list[str]) -> None:
    steps = simulate(seed, edits, sessions=2)
    trajectory = tree_of(steps)
    for turn, step in zip(trajectory, steps, strict=True):
        assert turn.messages == sent(step).messages
        if turn.edit is not None and turn.parent is not None:
            assert apply(turn.edit, trajectory.turns[turn.parent].messages) == turn.messages


@settings(max_examples=40, deadline=None)
@given(SEEDS, STEPS)
def test_every_call_stands_on_exactly_one_branch(seed: int, edits: list[str]) -> None:
    trajectory = tree_of(simulate(seed, edits, sessions=2))
    placed = sorted(i for branch in trajectory.branches for i in branch.turns)
    assert placed == [t.index for t in trajectory if not t.kind.aside]


@settings(max_examples=40, deadline=None)
@given(SEEDS, STEPS)
def test_an_echo_points_at_the_turn_whose_reply_it_repeats(seed: int, edits: list[str]) -> None:
    trajectory = tree_of(simulate(seed, edits))
    for turn in trajectory:
        messages = turn.messages
        for echo in trajectory.echoes(turn):
            reply = trajectory.turns[echo.turn].reply
            assert reply is not None
            assert not echo.exact or messages[echo.message].digest == reply.message.digest


@settings(max_examples=30, deadline=None)
@given(SEEDS, STEPS, st.randoms(use_true_random=False))
def test_another_interleaving_of_sessions_gives_the_same_tree(seed: int, edits: list[str], rng: random.Random) -> None:
    steps = simulate(seed, edits, sessions=3)
    queues = {name: [s for s in steps if s.session == name] for name in dict.fromkeys(s.session for s in steps)}
    shuffled: list[Step] = []
    while any(queues.values()):
        shuffled.append(queues[rng.choice([n for n, q in queues.items() if q])].pop(0))
    for structural in (False, True):
        a, b = tree_of(steps, structural=structural), tree_of(shuffled, structural=structural)
        key = lambda t: (t.call.source, t.kind, t.lane, t.session, t.prefix)  # noqa: E731
        assert sorted(map(key, a)) == sorted(map(key, b))
