"""Made-up harnesses, every kind mixed: the tree says of each call what was done, and nothing is lost or told twice."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import faults, tree_of
from world import EDITS, HELPERS, SAID_BY_ID, play
from world_speaker import World

MODES = {"evidence": (True, True), "structure": (True, False), "no ids": (False, False)}
"""Whether ids are there, and helpers that only a header tells."""


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), sessions=st.integers(1, 3))
def test_every_call_has_its_thread_session_kind_and_spans(mode: str, seed: int, sessions: int) -> None:
    ids, helpers_told = MODES[mode]
    made = play(World(seed, ids=ids, helpers_told=helpers_told), sessions, 10)
    tree = tree_of(made, structural=mode == "structure")
    assert [(one.call.source, one.kind, wrong) for one, _, wrong in faults(made, tree)] == []


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_sampled_reply_belongs_to_exactly_one_node(seed: int) -> None:
    made = play(World(seed), 2, 12)
    tree = tree_of(made, structural=False)
    placed = Counter(i for branch in tree.branches for i in branch.turns)
    own = [t.index for t in tree if not t.kind.aside]
    assert placed == Counter(own)
    echoed = [(t.index, e.message) for t in tree for e in t.echoes]
    assert len(echoed) == len(set(echoed))  # no message of a prefix repeats two replies


def test_the_worlds_hold_every_kind() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(30):
        kinds.update(one.kind for one in play(World(seed), 3, 12))
    assert set(kinds) == {
        "root", "append", "retry", "summary_request", "summarized", "cleared", "rewound", "deleted", "reminder_moved",
        "system_changed", "tools_changed", "model_switched", "forked", "side_call", "count_tokens", "truncated",
        "thinking_dropped", "window_dropped",
    }  # fmt: skip
    assert len({*EDITS, *HELPERS, *SAID_BY_ID}) == 22
