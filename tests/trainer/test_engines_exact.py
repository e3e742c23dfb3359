"""Every engine computes the same loss, logprobs and gradients. The canonical path: call by call, plain autograd.

Seen red, each by hand once: positions left at their place in the pack (packed); the subtree test dropped from the mask;
`_Extend.backward` without the path's share; `forget` left out, so that a sibling's gradient is counted twice; a fork's
first token predicted from the token to its left; a bush without its mask.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import VOCABULARY, by_hand, float64_model, gradients, real_model, worst

from trainer.engines import Engine
from trainer.engines.depth_first import DepthFirst
from trainer.engines.packed import Packed
from trainer.engines.separate import Separate
from trainer.losses import grpo, nll
from trainer.trie import Sample, TokenTrie

ENGINES: dict[str, Engine] = {
    "separate": Separate(),
    "packed": Packed(),
    "depth first": DepthFirst(),
    "depth first, a node at a time": DepthFirst(bush_tokens=0),
    "depth first, bushes of 4": DepthFirst(bush_tokens=4),
    "depth first, chunks of 2": DepthFirst(bush_tokens=0, chunk_tokens=2),
    "depth first, chunks of 3 held": DepthFirst(bush_tokens=3, chunk_tokens=3, recompute=False),
    "depth first, nodes recomputed": DepthFirst(bush_tokens=0, recompute=True),
    "packed, dense mask": Packed(kernels=False),
    "packed, bushes of 3": Packed(bush_tokens=3),
    "depth first, caches and masks": DepthFirst(bush_tokens=4, kernels=False),
    "depth first, caches and masks, chunks of 2": DepthFirst(bush_tokens=0, chunk_tokens=2, kernels=False),
}
TRIES: dict[str, list[Sample]] = {
    "running example": [
        Sample([], [1, 2, 3, 4, 5, 6, 7]),
        Sample([1, 2, 3, 4, 6, 7], [8, 9, 10]),
        Sample([1, 2, 3, 4, 6, 7, 9, 10], [11, 12]),
        Sample([1, 2, 3, 4, 6, 7, 9, 10, 12], [99]),
    ],
    "deep": [Sample([*range(1, 3 * turn + 2), 60 + turn], [80 + turn]) for turn in range(8)],
    "wide": [Sample([1, 2, 3], [10 + leg, 11, 12]) for leg in range(9)],
    "group of 8 rollouts": [Sample([1, 2, 3, 4, 5], [7, 8, 9 + g // 2, g], rollout=g) for g in range(8)],
    "owners shared": [Sample([1, 2], [3, 4]), Sample([1, 2], [3, 4]), Sample([1, 2], [3, 5]), Sample([1, 2, 3], [4])],
    "single tokens": [Sample([1], [2]), Sample([1], [3]), Sample([4], [2])],
    "nothing sampled on a branch": [Sample([1, 2, 3], []), Sample([1, 5], [6]), Sample([1, 5, 6, 7, 7, 7], [])],
    "one call": [Sample([3, 1, 4, 1, 5], [9, 2, 6])],
}


FEW = {name: TRIES[name] for name in ("running example", "owners shared", "nothing sampled on a branch")}


@pytest.mark.parametrize("samples", TRIES.values(), ids=TRIES.keys())
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_loss_logprobs_and_every_gradient_are_those_of_separate_calls(engine: Engine, samples: list[Sample]) -> None:
    model = float64_model()
    loss, logprobs = by_hand(model, samples)
    expected = gradients(model)

    step = engine.backward(model, TokenTrie.build(samples), objective=nll())

    assert abs(float(step.loss - loss)) < 1e-12
    assert worst_logprob(step.logprobs, logprobs) < 1e-12
    assert worst(gradients(model), expected) < 1e-10


@pytest.mark.parametrize("name", ["packed, bushes of 3", "depth first, a node at a time", "depth first, chunks of 2"])
@pytest.mark.parametrize("samples", FEW.values(), ids=FEW.keys())
def test_the_gradient_of_a_prefix_in_stretches_is_that_of_the_whole(
    name: str, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when a stretch is added at the start of the prefix."""
    monkeypatch.setattr("trainer.engines.attention.STRETCH", 3)
    model = float64_model()
    by_hand(model, samples)
    expected = gradients(model)
    ENGINES[name].backward(model, TokenTrie.build(samples), objective=nll())

    assert worst(gradients(model), expected) < 1e-10


@pytest.mark.parametrize("samples", FEW.values(), ids=FEW.keys())
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_logprobs_alone_leave_no_gradient_behind(engine: Engine, samples: list[Sample]) -> None:
    model = float64_model()
    with torch.no_grad():
        expected = by_hand(model, samples)[1]
    logprobs = engine.logprobs(model, TokenTrie.build(samples))

    assert all(parameter.grad is None for parameter in model.parameters())
    assert worst_logprob(logprobs, expected) < 1e-12


@pytest.mark.parametrize("samples", FEW.values(), ids=FEW.keys())
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_weights_add_up_to_the_trained_tokens(engine: Engine, samples: list[Sample]) -> None:
    model = float64_model()
    step = engine.backward(model, TokenTrie.build(samples), objective=nll())
    gradients(model)

    sampled = sum(len(sample.completion_ids) for sample in samples)
    without_context = sum(1 for s in samples if not len(s.prompt_ids) and len(s.completion_ids))
    assert step.stats["weight"] == step.stats["tokens"] == sampled - without_context


@pytest.mark.parametrize(
    ("kind", "attention"), [("llama", "sdpa"), ("qwen3", "sdpa"), ("gpt_neox", "sdpa"), ("llama", "eager")]
)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_models_of_transformers_agree_to_their_own_float32(kind: str, engine: Engine, attention: str) -> None:
    model = real_model(kind)
    config: Any = model.config
    config._attn_implementation = attention
    samples = TRIES["running example"]
    loss, logprobs = by_hand(model, samples)
    expected = gradients(model)

    step = engine.backward(model, TokenTrie.build(samples), objective=nll())

    assert abs(float(step.loss - loss)) < 1e-6
    assert worst_logprob(step.logprobs, logprobs) < 1e-6
    assert worst(gradients(model), expected) < 1e-6
    assert config._attn_implementation == attention
    config._attn_implementation = "sdpa"


tokens = st.integers(0, VOCABULARY - 1) | st.integers(0, 2)


@settings(max_examples=25, deadline=None)
@given(
    trunk=st.lists(tokens, max_size=6),
    calls=st.lists(
        st.tuples(st.integers(0, 12), st.lists(tokens, max_size=5), st.lists(tokens, max_size=5)), max_size=7
    ),
    chunk_tokens=st.none() | st.integers(1, 5),
    recompute=st.booleans(),
    bush_tokens=st.integers(0, 12),
    kernels=st.booleans(),
)
def test_any_trie_under_any_chunking(
    trunk: list[int],
    calls: list[tuple[int, list[int], list[int]]],
    chunk_tokens: int | None,
    recompute: bool,
    bush_tokens: int,
    kernels: bool,
) -> None:
    """Each call forks off the one before at a random place."""
    samples, last = [], trunk
    for fork, more, completion in calls:
        samples.append(Sample(last[:fork] + more, completion))
        last = last[:fork] + more + completion
    trie, model = TokenTrie.build(samples), float64_model()
    loss, logprobs = by_hand(model, samples)
    expected = gradients(model)
    engines: list[Engine] = [
        Packed(bush_tokens=bush_tokens, kernels=kernels),
        DepthFirst(chunk_tokens=chunk_tokens, recompute=recompute, bush_tokens=bush_tokens, kernels=kernels),
    ]
    for engine in [Separate(), *engines]:
        step = engine.backward(model, trie, objective=nll())

        assert abs(float(step.loss - loss)) < 1e-12
        assert worst_logprob(step.logprobs, logprobs) < 1e-12
        assert worst(gradients(model), expected) < 1e-10


@settings(max_examples=15, deadline=None)
@given(
    trunk=st.lists(tokens, min_size=1, max_size=8),
    rollouts=st.lists(
        st.lists(st.tuples(st.lists(tokens, max_size=3), st.lists(tokens, max_size=4)), max_size=3),
        min_size=1,
        max_size=5,
    ),
    advantages=st.lists(st.sampled_from([-1.5, 0.0, 0.5, 2.0]), min_size=5, max_size=5),
    per=st.sampled_from(["token", "rollout"]),
    bush_tokens=st.integers(0, 9),
)
def test_a_group_of_rollouts_under_grpo(
    trunk: list[int],
    rollouts: list[list[tuple[list[int], list[int]]]],
    advantages: list[float],
    per: Literal["token", "rollout"],
    bush_tokens: int,
) -> None:
    """Equal tokens of several rollouts are one trie token with an advantage each. Red when an owner is left out."""
    samples = []
    for number, turns in enumerate(rollouts):
        context = trunk
        for observed, sampled in turns:
            served = [-2.0 - token / 101 for token in sampled]
            reference = [-2.2] * len(sampled)
            prompt = context + observed
            one = Sample(prompt, sampled, advantages[number], served, ref_logprobs=reference, rollout=number)
            samples.append(one)
            context = prompt + sampled
    trie, model = TokenTrie.build(samples), float64_model()
    objective = grpo(clip=0.2, clip_high=0.3, beta=0.1, per=per)
    canonical = Separate().backward(model, trie, objective=objective)
    expected = gradients(model)
    for engine in (Packed(bush_tokens=bush_tokens), DepthFirst(bush_tokens=bush_tokens, chunk_tokens=3)):
        step = engine.backward(model, trie, objective=objective)

        assert abs(float(step.loss - canonical.loss)) < 1e-12
        assert step.stats == pytest.approx(canonical.stats, abs=1e-12)
        assert worst(gradients(model), expected) < 1e-10


def worst_logprob(ours: tuple[torch.Tensor, ...], theirs: list[torch.Tensor]) -> float:
    """By hand there is no logprob for a token without context; ours is NaN, first in its sample."""
    differences = [0.0]
    for our, their in zip(ours, theirs, strict=True):
        assert our[: len(our) - len(their)].isnan().all()
        if len(their):
            differences.append(float((our[len(our) - len(their) :] - their).abs().max()))
    return max(differences)
