"""The stream of text that the tree gives is the stream of tokens that the trainer makes: same order, same lifetimes.

A token here is a word; words of simulated sessions are new each time, so that none is kept by chance.
"""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import EDITS, simulate, tree_of
from test_lifetimes import running_example

from trainer.physical import stream
from trainer.trie import Sample
from treebuilder.lifetimes import Stream, lifetimes
from treebuilder.lineage import as_messages
from treebuilder.tree import Thread, Trajectory

ALIKE = sorted({*EDITS} - {"truncate", "summarize"})
"""A result cut short is cut inside a word: characters stay that no token stands for. A summary that the next prefix
quotes is text that came, to the tree; to the trainer its tokens stayed, for it looks for equal runs of them."""


class Words:
    """Words as token ids, and back."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.words: list[str] = []

    def encode(self, text: str) -> list[int]:
        found = []
        for word in re.findall(r"^\n|\s*\S+|\s+", text):
            if word not in self.ids:
                self.ids[word] = len(self.words)
                self.words.append(word)
            found.append(self.ids[word])
        return found


def samples(trajectory: Trajectory, thread: Thread, words: Words) -> list[Sample]:
    found = []
    for index in thread.turns:
        turn = trajectory.turns[index]
        prompt = [i for m in turn.messages for b in m.blocks for i in words.encode(b.plain)]
        reply = as_messages(turn.reply, turn.wire) if turn.reply else ()
        found.append(Sample(prompt, [i for m in reply for b in m.blocks for i in words.encode(b.plain)]))
    return found


def check(trajectory: Trajectory, thread: Thread) -> None:
    words = Words()
    tokens = stream(samples(trajectory, thread, words))
    told: Stream = lifetimes(trajectory, thread)
    assert "".join(words.words[i] for i in tokens.ids_H) == told.text

    starts = [0]  # of each token, in characters of the stream
    for i in tokens.ids_H:
        starts.append(starts[-1] + len(words.words[i]))
    omega = {p.tau + i: p.omega for p in told.pieces for i in range(p.chars)}
    for at, last in enumerate(tokens.omega_H):
        expected = None if last == len(tokens.ids_H) else starts[last]
        assert {omega[i] for i in range(starts[at], starts[at + 1])} == {expected}
    assert [starts[born] for born in tokens.born] == list(told.born)
    for ranges, view in zip(told.views, tokens.views, strict=True):
        characters = [i for a, b in ranges for i in range(a, b)]
        assert characters == [i for token in view for i in range(starts[token], starts[token + 1])]


def test_the_running_example_agrees() -> None:
    trajectory = running_example()
    check(trajectory, trajectory.threads[0])


@pytest.mark.parametrize("edit", ALIKE)
def test_each_kind_of_edit_agrees(edit: str) -> None:
    trajectory = tree_of(simulate(7, ["append"] * 5 + [edit] + ["append"] * 2))
    check(trajectory, trajectory.threads[0])  # the others ask for summaries, each of a whole history anew


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(ALIKE), max_size=12))
def test_any_run_of_edits_agrees(seed: int, edits: list[str]) -> None:
    trajectory = tree_of(simulate(seed, edits))
    check(trajectory, trajectory.threads[0])
