"""What engines compute is counted before they run; `auto` takes none that counts for more than separate branches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import float64_model, gradients, real_model
from torch import nn

from trainer.engines import cost
from trainer.engines.auto import choose
from trainer.engines.backbone import Backbone
from trainer.engines.cost import Work
from trainer.engines.depth_first import DepthFirst
from trainer.engines.packed import Packed
from trainer.engines.probe import takes_kernels
from trainer.engines.separate import Separate
from trainer.engines.step import Engine, Targets
from trainer.losses import nll
from trainer.trie import Sample, TokenTrie

RUNNING = [
    Sample([], [1, 2, 3, 4, 5, 6, 7]),
    Sample([1, 2, 3, 4, 6, 7], [8, 9, 10]),
    Sample([1, 2, 3, 4, 6, 7, 9, 10], [11, 12]),
    Sample([1, 2, 3, 4, 6, 7, 9, 10, 12], [99]),
]


def work(one: Engine, trie: TokenTrie, *, kernels: bool = True) -> Work:
    before_U = Targets.of(trie).before_U
    if isinstance(one, Packed):
        return cost.packed(one.plan(trie, before_U), kernels=kernels)
    if isinstance(one, DepthFirst):
        return cost.depth_first(one.plan(trie, before_U, kernels=kernels), kernels=kernels, recompute=one.recomputes)
    return cost.separate(trie, before_U)


def test_the_running_example_counted_by_hand() -> None:
    """Branches of 6, 8, 9 and 9 tokens without what predicts nothing; 14 of 18 trie tokens in 7 nodes.

    Node by node: 1-4 | 5 6 behind 4 | 6 7 behind 4 | 8 9 and 9 10 behind 6 | 11 and 12 behind 8.
    Red when a branch is counted to its end, or a unit's prefix is not.
    """
    trie = TokenTrie.build(RUNNING)

    assert work(Separate(), trie) == Work(calls=4, tokens=32, pairs=21 + 36 + 45 + 45)
    assert work(DepthFirst(bush_tokens=0), trie) == Work(7, 14, 10 + 11 + 11 + 15 + 15 + 9 + 9)
    assert work(Packed(), trie) == Work(1, 14, 14 * 14)
    assert work(Packed(bush_tokens=0), trie) == Work(1, 14, 80)
    assert work(DepthFirst(bush_tokens=0), trie, kernels=False) == Work(7, 14, 16 + 12 + 12 + 16 + 16 + 9 + 9)


@contextmanager
def counted(model: nn.Module) -> Iterator[list[int]]:
    """Tokens of each call of the body."""
    calls: list[int] = []
    body: Any = Backbone(model).body
    hook = body.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    yield calls
    hook.remove()


@pytest.mark.parametrize(
    "one", [Separate(), Packed(), DepthFirst(), DepthFirst(bush_tokens=0), DepthFirst(bush_tokens=4)], ids=str
)
def test_what_is_counted_is_what_is_computed(one: Engine) -> None:
    """Red when the plan that is counted is not the plan that runs."""
    model, trie = float64_model(), TokenTrie.build(RUNNING)
    choose(model, trie)  # the probe's calls are made once a model
    with counted(model) as calls:
        one.backward(model, trie, objective=nll())
    gradients(model)

    assert (len(calls), sum(calls)) == (work(one, trie).calls, work(one, trie).tokens)


tokens = st.integers(0, 3)


@settings(max_examples=60, deadline=None)
@example(calls=[(0, 2, 0), (1, 1, 0)], attention="sdpa", seed=0)  # two branches, and nothing sampled
@given(
    calls=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 700), st.integers(0, 30)), min_size=1, max_size=10),
    attention=st.sampled_from(["sdpa", "eager"]),
    seed=st.integers(0, 9),
)
def test_auto_never_takes_what_counts_for_more_than_separate(
    calls: list[tuple[int, int, int]], attention: str, seed: int
) -> None:
    """Each call forks off the one before. Red when `choose` does not compare."""
    model = real_model("llama")
    config: Any = model.config
    random = torch.Generator().manual_seed(seed)
    samples: list[Sample] = []
    last: list[int] = []
    for fork, more, sampled in calls:
        new = torch.randint(0, 101, (more + sampled,), generator=random).tolist()
        prompt = last[:fork] + new[:more]
        samples.append(Sample(prompt, new[more:]))
        last = prompt + new[more:]
    trie = TokenTrie.build(samples)
    config._attn_implementation = attention
    try:
        chosen, why = choose(model, trie)
        backbone = Backbone(model)
        kernels = takes_kernels(backbone)
    finally:
        config._attn_implementation = "sdpa"

    assert kernels == (attention == "sdpa")
    apart = work(Separate(), trie).operations(backbone)
    assert work(chosen, trie, kernels=kernels).operations(backbone) <= apart, why


def test_auto_packs_a_spine_of_many_forks() -> None:
    """One call instead of one a unit. Red when packed is not among the choices on CPU."""
    samples = [Sample([*range(90 * turn), *range(50)], [7, 8, 9, turn]) for turn in range(1, 12)]
    chosen, why = choose(float64_model(), TokenTrie.build(samples))

    assert chosen == Packed()
    assert "of separate's work, depth_first" in why


def test_auto_computes_branches_apart_where_masks_cost_more_than_is_shared() -> None:
    """Eager attention has no kernels of ours: a unit looks at what a mask hides. Red when masks count as causal."""
    model = real_model("llama")
    config: Any = model.config
    config._attn_implementation = "eager"
    trunk = [1] * 40
    chosen, why = choose(model, TokenTrie.build([Sample([*trunk, *[leg] * 900], [1]) for leg in (2, 3)]))
    config._attn_implementation = "sdpa"

    assert chosen == Separate()
    assert "depth_first would be 1" in why
