"""The physical stream, its lifetimes, the two naive walks. Each test names the break that was seen to turn it red."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.align import kept
from trainer.physical import naive_compressed, naive_full, stream, threads
from trainer.trie import Kept, Owner, Sample

ANS = 99
RUNNING = [
    Sample([], [1, 2, 3, 4, 5, 6, 7]),
    Sample([1, 2, 3, 4, 6, 7], [8, 9, 10]),
    Sample([1, 2, 3, 4, 6, 7, 9, 10], [11, 12]),
    Sample([1, 2, 3, 4, 6, 7, 9, 10, 12], [ANS]),
]


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def test_the_running_example_as_a_stream_with_lifetimes() -> None:
    """Red when omega is the index of the call instead of the length of the stream."""
    one = stream(RUNNING)

    assert one.ids_H.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ANS]
    assert one.omega_H.tolist() == [13, 13, 13, 13, 7, 13, 13, 10, 13, 13, 12, 13, 13]
    assert [view.tolist() for view in one.views] == [
        [0, 1, 2, 3, 4, 5, 6],
        [0, 1, 2, 3, 5, 6, 7, 8, 9],
        [0, 1, 2, 3, 5, 6, 8, 9, 10, 11],
        [0, 1, 2, 3, 5, 6, 8, 9, 11, 12],
    ]


def test_naive_full_trains_every_sampled_token_with_nothing_evicted() -> None:
    """Red when a walk's prompt is the call's own prompt."""
    walk = naive_full(RUNNING)
    (row,) = walk.trie().rows()

    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ANS]
    assert row.loss_mask.all()
    assert walk.origins == (Owner(0, 0, 7), Owner(1, 0, 3), Owner(2, 0, 2), Owner(3, 0, 1))


def test_naive_compressed_trains_only_what_survived_to_the_end() -> None:
    """Red when borders are taken where the call changes only, so that an eviction inside one reply is not seen."""
    walk = naive_compressed(RUNNING)
    (row,) = walk.trie().rows()

    assert row.ids.tolist() == [1, 2, 3, 4, 6, 7, 9, 10, 12, ANS]
    assert row.loss_mask.all()
    assert walk.origins == (Owner(0, 0, 4), Owner(0, 5, 7), Owner(1, 1, 3), Owner(2, 1, 2), Owner(3, 0, 1))


def test_logprobs_follow_their_tokens_into_a_walk() -> None:
    """Red when the whole reply's logprobs are handed on."""
    walk = naive_compressed([Sample([1], [2, 3, 4], logprobs=[-2, -3, -4]), Sample([1, 2, 4], [5], logprobs=[-5])])

    assert [np.asarray(sample.logprobs).tolist() for sample in walk.samples] == [[-2], [-4], [-5]]


def test_threads_and_rollouts_are_streams_of_their_own() -> None:
    """Red when samples are grouped by rollout alone."""
    samples = [
        Sample([1], [2], rollout="a"),
        Sample([9], [8], rollout="a", thread="agent"),
        Sample([1, 2], [3], rollout="a"),
    ]

    assert threads(samples) == [(0, 2), (1,)]
    assert [row.ids.tolist() for row in naive_full(samples).trie().rows()] == [[1, 2, 3], [9, 8]]


def test_what_a_sample_says_was_kept_is_believed() -> None:
    """Red when `Sample.kept` is ignored: by tokens alone the second 7 looks kept."""
    one = stream([Sample([7], [5]), Sample([7], [5], kept=())])

    assert one.ids_H.tolist() == [7, 5, 7, 5]


def test_kept_runs_of_the_docstring() -> None:
    """Red when the common tail is looked for before the common head."""
    assert kept(ids(1, 2, 3, 4, 5, 6, 7), ids(1, 2, 3, 4, 6, 7, 8)) == (Kept(0, 0, 4), Kept(5, 4, 2))


def test_a_summary_in_the_middle_keeps_head_and_tail_of_a_long_context() -> None:
    """Red when no anchors are searched: the tail is not at the end any more."""
    before = np.arange(50_000, dtype=np.int32)
    after = np.concatenate([before[:1000], ids(*range(90_000, 90_200)), before[40_000:], ids(7, 8, 9)])
    start = time.process_time()

    assert kept(before, after) == (Kept(0, 0, 1000), Kept(40_000, 1200, 10_000))
    assert time.process_time() - start < 2


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_kept_runs_ascend_and_hold_equal_tokens(data: st.DataObject) -> None:
    """Red when runs that cross are not left out (`_increasing` returns all)."""
    alphabet = data.draw(st.sampled_from([3, 400]))
    before = data.draw(st.lists(st.integers(0, alphabet), max_size=120))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(before)), min_size=4, max_size=4)))
    pieces = data.draw(st.permutations([before[a:b] for a, b in zip([0, *cuts], [*cuts, len(before)], strict=True)]))
    after = [token for piece in pieces for token in piece]
    i = j = 0
    for run in kept(ids(*before), ids(*after)):
        assert run.length > 0
        assert run.before >= i
        assert run.after >= j
        i, j = run.before + run.length, run.after + run.length
        assert before[run.before : i] == after[run.after : j]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=8), st.lists(st.integers(0, 4), max_size=4)), max_size=6)
)
def test_any_stream_gives_back_every_view(pairs: list[tuple[list[int], list[int]]]) -> None:
    """Red when evicted tokens that come back are not born again."""
    one = stream([Sample(prompt, completion) for prompt, completion in pairs])

    for call, (prompt, completion) in enumerate(pairs):
        assert one.ids_H[one.views[call]].tolist() == prompt + completion
        stop = one.born[call + 1] if call + 1 < len(pairs) else len(one.ids_H)
        if one.born[call] < stop:
            alive = np.flatnonzero((np.arange(len(one.ids_H)) < stop) & (one.omega_H >= stop))
            assert sorted(one.views[call].tolist()) == alive.tolist()
