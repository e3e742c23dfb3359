"""The token trie. Each test names the break that was seen to turn it red."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.rows import Row
from trainer.trie import Owner, Sample, TokenTrie

ANS = 99
RUNNING = [
    Sample([], [1, 2, 3, 4, 5, 6, 7]),
    Sample([1, 2, 3, 4, 6, 7], [8, 9, 10]),
    Sample([1, 2, 3, 4, 6, 7, 9, 10], [11, 12]),
    Sample([1, 2, 3, 4, 6, 7, 9, 10, 12], [ANS]),
]


def masked(row: Row) -> str:
    return "".join("x" if on else "." for on in row.loss_mask)


def test_the_running_example_has_four_branches_of_36_tokens_over_18() -> None:
    """Red when a fork splits one token late (`at + 1` in `_split`)."""
    trie = TokenTrie.build(RUNNING)

    assert [row.ids.tolist() for row in trie.rows()] == [
        [1, 2, 3, 4, 5, 6, 7],
        [1, 2, 3, 4, 6, 7, 8, 9, 10],
        [1, 2, 3, 4, 6, 7, 9, 10, 11, 12],
        [1, 2, 3, 4, 6, 7, 9, 10, 12, ANS],
    ]
    assert (len(trie.leaf_B), trie.branch_tokens, trie.unique_tokens, trie.ratio) == (4, 36, 18, 2.0)


def test_the_running_example_trains_each_token_on_the_branch_that_sampled_it() -> None:
    """Red when a surviving 6 or 7 counts as sampled in branch 1 (owner taken from the ids instead of the call)."""
    assert [(masked(row), row.owners, row.parent, row.fork) for row in TokenTrie.build(RUNNING).rows()] == [
        ("xxxxxxx", (Owner(0, 0, 7),), None, 0),
        ("......xxx", (Owner(1, 6, 9),), 0, 4),
        ("........xx", (Owner(2, 8, 10),), 1, 6),
        (".........x", (Owner(3, 9, 10),), 2, 8),
    ]


def test_the_running_example_as_nodes_depth_first() -> None:
    """Red when children are numbered last first."""
    trie = TokenTrie.build(RUNNING)

    assert [(node.ids.tolist(), node.parent, node.start) for node in trie.nodes] == [
        ([1, 2, 3, 4], -1, 0),
        ([5, 6, 7], 0, 4),
        ([6, 7], 0, 4),
        ([8, 9, 10], 2, 6),
        ([9, 10], 2, 6),
        ([11, 12], 4, 8),
        ([12, ANS], 4, 8),
    ]
    assert trie.depth_T.tolist() == [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 6, 7, 8, 9, 8, 9]
    assert trie.before_T.tolist() == [-1, 0, 1, 2, 3, 4, 5, 3, 7, 8, 9, 10, 8, 12, 13, 14, 13, 16]


def test_a_reply_that_only_grows_stays_one_branch() -> None:
    """Red when a leaf gets a child instead of growing."""
    trie = TokenTrie.build([Sample([1, 2], [3]), Sample([1, 2, 3, 4], [5])])

    assert len(trie.nodes) == 1
    (row,) = trie.rows()
    assert (row.ids.tolist(), masked(row), row.owners) == ([1, 2, 3, 4, 5], "..x.x", (Owner(0, 2, 3), Owner(1, 4, 5)))


def test_calls_that_sampled_the_same_tokens_own_the_same_node() -> None:
    """Red when the second owner replaces the first."""
    trie = TokenTrie.build([Sample([1], [2, 3], 1.0), Sample([1], [2, 3], -1.0), Sample([1], [2, 4], 0.5)])

    assert [(node.ids.tolist(), node.owners) for node in trie.nodes] == [
        ([1, 2], (Owner(0, 1, 2), Owner(1, 1, 2), Owner(2, 1, 2))),
        ([3], (Owner(0, 2, 3), Owner(1, 2, 3))),
        ([4], (Owner(2, 2, 3),)),
    ]
    assert trie.sampled_tokens == 6
    assert [masked(row) for row in trie.rows()] == [".xx", "..x"]


def test_the_first_token_after_a_fork_is_predicted_from_the_fork_point() -> None:
    """Red when `before_T` is the token to the left."""
    trie = TokenTrie.build([Sample([1], [2, 3]), Sample([1], [2, 4])])

    assert trie.ids_T.tolist() == [1, 2, 3, 4]
    assert trie.before_T.tolist() == [-1, 0, 1, 1]


@pytest.mark.parametrize(
    ("samples", "branches", "unique"),
    [
        ([], 0, 0),
        ([Sample([], [])], 0, 0),
        ([Sample([1, 2], [])], 1, 2),
        ([Sample([1, 2, 3], []), Sample([1], [2])], 1, 3),
        ([Sample([1], [2]), Sample([1], [2])], 1, 2),
        ([Sample([1], [2]), Sample([3], [2])], 2, 4),
    ],
    ids=["no sample", "no token", "no completion", "a prefix of another", "a duplicate", "nothing shared"],
)
def test_small_tries_at_the_edge(samples: list[Sample], branches: int, unique: int) -> None:
    """Red when a prefix of an earlier sample opens a branch of no tokens."""
    trie = TokenTrie.build(samples)

    assert (len(trie.rows()), trie.unique_tokens) == (branches, unique)
    assert sum(int(row.loss_mask.sum()) for row in trie.rows()) == len({*_owned(trie)})


def _owned(trie: TokenTrie) -> list[int]:
    return [int(token) for sample in range(len(trie.samples)) for token in trie.completion_tokens(sample)]


sequences = st.lists(st.integers(0, 2), max_size=9)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(sequences, sequences), max_size=8))
def test_any_trie_gives_back_every_sample_and_trains_its_tokens_once(pairs: list[tuple[list[int], list[int]]]) -> None:
    """Red when `_split` forgets to hand the old children down."""
    trie = TokenTrie.build([Sample(prompt, completion) for prompt, completion in pairs])

    for index, (prompt, completion) in enumerate(pairs):
        path = trie.path_tokens(int(trie.node_S[index]))[: len(prompt) + len(completion)]
        assert trie.ids_T[path].tolist() == prompt + completion
        assert trie.completion_tokens(index).tolist() == path[len(prompt) :].tolist()
        assert trie.depth_T[path].tolist() == list(range(len(path)))
        assert trie.before_T[path].tolist() == [-1, *path[:-1]][: len(path)]
    prefixes = {tuple((prompt + completion)[:stop]) for prompt, completion in pairs for stop in range(1, 19)} - {()}
    assert trie.unique_tokens == len(prefixes)
    rows = trie.rows()
    leaves = {p for p in prefixes if not any(q[:-1] == p for q in prefixes)}
    assert {tuple(row.ids.tolist()) for row in rows} == leaves
    assert len(rows) == len(leaves)
    assert sum(int(row.loss_mask.sum()) for row in rows) == len(set(_owned(trie)))
    assert sum(owner.stop - owner.start for row in rows for owner in row.owners) == trie.sampled_tokens
    for row in rows:
        if row.parent is not None:
            assert row.ids[: row.fork].tolist() == rows[row.parent].ids[: row.fork].tolist()
        assert not row.loss_mask[: row.fork].any()


def test_hundreds_of_200k_token_prefixes_build_in_time_linear_in_their_tokens() -> None:
    """40 M tokens; red (minutes) when tokens are compared one by one in Python."""
    trunk = np.arange(200_000, dtype=np.int32)
    samples = [Sample(np.delete(trunk, 150_000 + 20 * turn), [7, 8, 9]) for turn in range(200)]
    start = time.process_time()
    trie = TokenTrie.build(samples)

    assert time.process_time() - start < 5
    assert len(trie.leaf_B) == 200
    assert trie.unique_tokens == 200_002 + sum(50_002 - 20 * turn for turn in range(199))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sample([1, -2], []), "prompt_ids must be token ids from 0 to 2^31 - 1; got -2 at 1"),
        (lambda: Sample([1], [0.5]), "completion_ids must be one list of token ids; got float64 of shape (1,)"),  # type: ignore[list-item]
        (
            lambda: Sample([1], [2, 3], logprobs=[0.1]),
            "logprobs must hold 2 values, one per sampled token; got shape (1,)",
        ),
    ],
)
def test_what_is_no_sample_is_refused(make: object, message: str) -> None:
    """Red when the checks are taken out of `Sample`."""
    with pytest.raises(ValueError, match=re.escape(message)):
        make()  # type: ignore[operator]
