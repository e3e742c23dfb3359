"""Schemes on the running example of METHOD.md: tokens 1..12 and ans (13), of which 5, 8 and 11 are evicted in turn."""

import numpy as np
import pytest

from trainer.episodes import Episode
from trainer.schemes import engine_for, plan
from trainer.trie import Owner, Sample

CALLS: tuple[tuple[list[int], list[int]], ...] = (
    ([], [1, 2, 3, 4, 5, 6, 7]),
    ([1, 2, 3, 4, 6, 7], [8, 9, 10]),
    ([1, 2, 3, 4, 6, 7, 9, 10], [11, 12]),
    ([1, 2, 3, 4, 6, 7, 9, 10, 12], [13]),
)
EXAMPLE = Episode.of([Sample(prompt, completion) for prompt, completion in CALLS], name="example")


def laid_out(scheme: str, episode: Episode = EXAMPLE) -> list[tuple[list[int], list[int]]]:
    samples = plan(scheme, episode).samples
    return [(np.asarray(s.prompt_ids).tolist(), np.asarray(s.completion_ids).tolist()) for s in samples]


def test_logittree_leaves_every_call_as_it_was() -> None:
    assert laid_out("logittree") == [tuple(call) for call in CALLS]
    assert plan("logittree", EXAMPLE).lost == ()


def test_naive_compressed_scores_survivors_in_the_last_view() -> None:
    assert laid_out("naive-compressed") == [
        ([], [1, 2, 3, 4]),
        ([1, 2, 3, 4], [6, 7]),
        ([1, 2, 3, 4, 6, 7], [9, 10]),
        ([1, 2, 3, 4, 6, 7, 9, 10], [12]),
        ([1, 2, 3, 4, 6, 7, 9, 10, 12], [13]),
    ]


def test_naive_compressed_loses_exactly_the_evicted_tokens() -> None:
    lost = plan("naive-compressed", EXAMPLE).lost
    assert lost == (Owner(0, 4, 5), Owner(1, 0, 1), Owner(2, 0, 1))
    assert [CALLS[o.sample][1][o.start : o.stop] for o in lost] == [[5], [8], [11]]


def test_naive_full_scores_all_in_order_of_appearance() -> None:
    assert laid_out("naive-full") == [
        ([], [1, 2, 3, 4, 5, 6, 7]),
        ([1, 2, 3, 4, 5, 6, 7], [8, 9, 10]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11, 12]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [13]),
    ]
    assert plan("naive-full", EXAMPLE).lost == ()


@pytest.mark.parametrize(
    ("scheme", "trained", "lost"),
    [
        ("logittree", 12, 0),
        ("naive-compressed", 9, 3),
        ("sdcc", 9, 3),
        ("naive-full", 12, 0),
        ("mask4d", 12, 0),
    ],
)
def test_sampled_is_trained_and_lost_and_the_one_token_without_context(scheme: str, trained: int, lost: int) -> None:
    one = plan(scheme, EXAMPLE)
    assert (one.trained_tokens, one.lost_tokens, one.contextless_tokens) == (trained, lost, 1)
    assert EXAMPLE.sampled_tokens == 13


def test_threads_of_a_rollout_do_not_run_into_each_other() -> None:
    main = [Sample([1], [2], rollout="r", thread="main"), Sample([1, 2, 3], [4], rollout="r", thread="main")]
    agent = Sample([1, 9], [8], rollout="r", thread="agent")
    assert laid_out("naive-full", Episode.of([main[0], agent, main[1]])) == [
        ([1], [2]),
        ([1, 2, 3], [4]),
        ([1, 9], [8]),
    ]


def test_a_part_keeps_its_own_logprobs_and_its_rollouts_advantage() -> None:
    first = Sample([1], [2, 3, 4], 0.5, [-0.2, -0.3, -0.4], rollout="r")
    parts = plan("naive-compressed", Episode.of([first, Sample([1, 2, 4], [5], 0.5, [-0.5], rollout="r")])).samples
    assert [np.asarray(s.completion_ids).tolist() for s in parts] == [[2], [4], [5]]
    assert [np.asarray(s.logprobs).tolist() for s in parts] == [[-0.2], [-0.4], [-0.5]]
    assert {s.advantage for s in parts} == {0.5}


def test_a_call_that_sampled_nothing_is_only_context() -> None:
    episode = Episode.of([Sample([1, 2], []), Sample([1, 2, 3], [4])])
    assert laid_out("logittree", episode) == [([1, 2, 3], [4])]


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^scheme: expected one of logittree, .*naive-full.*, got 'realign'$"):
        plan("realign", EXAMPLE)


def test_mask4d_and_its_engine_only_go_together() -> None:
    assert type(engine_for("mask4d", "auto")).__name__ == "Mask4d"
    with pytest.raises(ValueError, match=r"^scheme mask4d: expected engine mask4d, got packed"):
        engine_for("mask4d", "packed")
    with pytest.raises(ValueError, match=r"^scheme logittree: expected another engine, got mask4d"):
        engine_for("logittree", "mask4d")


def test_an_episode_has_a_kind_for_every_sample() -> None:
    with pytest.raises(ValueError, match="episode x: expected 2 kinds, got 1"):
        Episode("x", (Sample([1], [2]), Sample([1], [3])), ("root",))
