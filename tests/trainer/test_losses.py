"""Objectives against formulas written out by hand, through an engine. Each test names the break seen to turn it red."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import float64_model, gradients, worst
from torch import Tensor, nn

from trainer.engines import engine
from trainer.losses import Objective, grpo, nll, sdcc
from trainer.physical import diverging, naive_compressed
from trainer.trie import Sample, TokenTrie


def logprob(model: nn.Module, prompt: list[int], completion: list[int]) -> Tensor:
    """With gradient, one per sampled token."""
    ids = torch.tensor([prompt + completion])
    log_LV = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    found: Tensor = log_LV.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
    return found


def check(samples: list[Sample], objective: Objective, loss: Tensor, *, model: nn.Module) -> dict[str, float]:
    torch.autograd.backward(loss)
    expected = gradients(model)
    stats: dict[str, float] = {}
    for name in ("separate", "packed", "depth_first"):
        step = engine(name).backward(model, TokenTrie.build(samples), objective=objective)
        assert float(step.loss) == pytest.approx(float(loss.detach()), abs=1e-12)
        assert worst(gradients(model), expected) < 1e-10
        stats = dict(step.stats)
    return stats


def test_token_mean_counts_every_sampled_token_once() -> None:
    """Red when the mean is over the distinct trie tokens: 3 is owned twice."""
    model = float64_model()
    samples = [Sample([1, 2], [3, 4]), Sample([1, 2], [3, 5])]

    loss = -(logprob(model, [1, 2], [3, 4]).sum() + logprob(model, [1, 2], [3, 5]).sum()) / 4

    assert check(samples, nll(), loss, model=model) == {"weight": 4.0, "tokens": 4.0}


def test_rollout_mean_counts_a_rollout_that_forked_once() -> None:
    """Red when the mean is over samples: rollout a forked into three rows, b is one."""
    model = float64_model()
    samples = [
        Sample([1, 2], [3, 4], rollout="a"),
        Sample([1, 3, 4], [5], rollout="a"),
        Sample([1, 9], [6], rollout="a"),
        Sample([1, 2], [7, 8], rollout="b"),
    ]

    a = torch.cat([logprob(model, [1, 2], [3, 4]), logprob(model, [1, 3, 4], [5]), logprob(model, [1, 9], [6])])
    loss = -(a.mean() + logprob(model, [1, 2], [7, 8]).mean()) / 2

    assert check(samples, nll(per="rollout"), loss, model=model)["weight"] == pytest.approx(6)


def test_a_step_over_two_tries_is_the_step_over_one() -> None:
    """Red when `over` is ignored."""
    model = float64_model()
    a, b = Sample([1, 2], [3, 4, 5], rollout="a"), Sample([6], [7], rollout="b")
    for per, over in (("token", 4), ("rollout", 2)):
        whole = engine("separate").backward(model, TokenTrie.build([a, b]), objective=nll(per=per))  # type: ignore[arg-type]
        expected = gradients(model)
        parts = [
            engine("separate").backward(model, TokenTrie.build([one]), objective=nll(per=per, over=over))  # type: ignore[arg-type]
            for one in (a, b)
        ]
        assert float(sum(part.loss for part in parts)) == pytest.approx(float(whole.loss), abs=1e-12)
        assert worst(gradients(model), expected) < 1e-10


def test_grpo_without_recorded_logprobs_is_the_policy_gradient() -> None:
    """Red when the ratio's own value is differentiated away (new - new instead of new - new.detach())."""
    model = float64_model()
    samples = [Sample([1, 2], [3, 4], 0.5, rollout=0), Sample([1, 2], [3, 6, 7], -2.0, rollout=1)]
    first, second = logprob(model, [1, 2], [3, 4]), logprob(model, [1, 2], [3, 6, 7])

    ratios = (first - first.detach()).exp(), (second - second.detach()).exp()
    loss = -(0.5 * ratios[0].mean() - 2.0 * ratios[1].mean()) / 2

    stats = check(samples, grpo(), loss, model=model)
    assert stats["ratio"] == pytest.approx(1)
    assert stats["clipped"] == 0


def test_grpo_clips_asymmetrically_and_adds_the_divergence() -> None:
    """Red when both sides are clipped at `clip`, or the k3 estimate is of the other direction."""
    model = float64_model()
    new = logprob(model, [1, 2], [3, 4, 5])
    up, down, near = math.log(2.0), math.log(0.5), math.log(1.25)
    old = new.detach() - torch.tensor([up, down, near])
    reference = new.detach() + torch.tensor([0.1, -0.3, 0.2])
    samples = [Sample([1, 2], [3, 4, 5], 1.5, logprobs=old.tolist(), ref_logprobs=reference.tolist(), rollout=0)]

    ratio = (new - old).exp()
    surrogate = torch.minimum(ratio * 1.5, ratio.clamp(0.8, 1.28) * 1.5)
    divergence = (reference - new).exp() - (reference - new) - 1
    loss = (-surrogate + 1e-3 * divergence).mean()

    stats = check(samples, grpo(clip=0.2, clip_high=0.28, beta=1e-3), loss, model=model)
    assert stats["ratio"] == pytest.approx((2.0 + 0.5 + 1.25) / 3), "a mean over tokens"
    assert stats["clipped"] == pytest.approx(1 / 3), "2.0 is cut to 1.28; 0.5 makes the term smaller already"
    assert stats["kl"] == pytest.approx(float(divergence.detach().mean()))
    assert stats["ratio_max"] == pytest.approx(2.0)
    assert stats["sampling_kl"] == pytest.approx((2 - 1 - up + 0.5 - 1 - down + 1.25 - 1 - near) / 3)


def test_entropy_is_a_statistic() -> None:
    """Red when the entropy of the targets' rows is not spread over their owners."""
    model = float64_model()
    with torch.no_grad():
        log_LV = model(input_ids=torch.tensor([[1, 2, 3]])).logits[0, 1:].log_softmax(-1)
    step = engine("separate").backward(
        model,
        TokenTrie.build([Sample([1, 2], [3, 4]), Sample([1, 2], [3, 4])]),
        objective=grpo(entropy=True, per="token"),
    )
    gradients(model)

    assert step.stats["entropy"] == pytest.approx(float(-(log_LV.exp() * log_LV).sum(-1).mean()))


def test_a_divergence_without_reference_is_refused() -> None:
    """Red when NaN is let through."""
    with pytest.raises(ValueError, match=r"beta 0\.001 needs ref_logprobs on every sample; sample 0 has none"):
        engine("separate").backward(float64_model(), TokenTrie.build([Sample([1], [2])]), objective=grpo(beta=1e-3))


EVICTED = [Sample([1, 2, 3], [4, 5]), Sample([1, 3, 4, 5, 6], [7, 8])]
"""2 was evicted after the first call: 4 and 5 survive behind another prefix, 7 and 8 behind their own."""


@pytest.mark.parametrize("name", ["separate", "packed", "depth_first"])
def test_sdcc_is_the_task_plus_the_forward_divergence_from_the_live_view(name: str) -> None:
    """Red when the direction is turned round, the teacher takes gradients, or the mean is over all tokens."""
    model, walk = float64_model(), naive_compressed(EVICTED)

    def log_LV(ids: list[int]) -> Tensor:
        found: Tensor = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        return found

    student = log_LV([1, 3, 4, 5, 6, 7, 8])
    teacher = log_LV([1, 2, 3, 4, 5]).detach()[2:4]
    divergence = (teacher.exp() * (teacher - student[1:3])).sum(-1).mean()
    loss = -(student[1, 4] + student[2, 5] + student[4, 7] + student[5, 8]) / 4 + 0.5 * divergence
    torch.autograd.backward(loss)
    expected = gradients(model)

    chosen, flags = engine(name), diverging(walk, EVICTED)
    live = chosen.states(model, TokenTrie.build(EVICTED))
    objective = sdcc([live[0], live[1]], flags, model.lm_head, strength=0.5)  # type: ignore[arg-type]
    step = chosen.backward(model, walk.trie(), objective=objective)

    assert [flag.tolist() for flag in flags] == [[True, True], [False, False]]
    assert float(step.loss) == pytest.approx(float(loss.detach()), abs=1e-12)
    assert step.stats["divergence"] == pytest.approx(float(divergence.detach()), abs=1e-12)
    assert worst(gradients(model), expected) < 1e-10


@pytest.mark.parametrize(("samples", "strength"), [(EVICTED, 0.0), (EVICTED[:1], 1.0)], ids=["lambda 0", "C empty"])
def test_sdcc_without_a_term_is_naive_compressed_bit_for_bit(samples: list[Sample], strength: float) -> None:
    """Red when a term of zero is added."""
    model, walk = float64_model(), naive_compressed(samples)
    plain = engine("separate").backward(model, walk.trie(), objective=nll())
    expected = gradients(model)
    live = engine("separate").states(model, TokenTrie.build(samples))
    objective = sdcc(live, diverging(walk, samples), model.lm_head, strength=strength)  # type: ignore[arg-type]
    step = engine("separate").backward(model, walk.trie(), objective=objective)

    assert torch.equal(step.loss, plain.loss)
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))


def test_the_divergence_is_zero_where_contexts_agree() -> None:
    """Red when teacher and student are read from different rows."""
    model, samples = float64_model(), [Sample([1, 2, 3], [4, 5])]
    trie = TokenTrie.build(samples)
    live = engine("separate").states(model, trie)
    everywhere = [np.ones(2, dtype=bool)]
    objective = sdcc(live, everywhere, model.lm_head, strength=1.0)  # type: ignore[arg-type]
    step = engine("separate").backward(model, trie, objective=objective)
    gradients(model)

    assert step.stats["divergence"] == pytest.approx(0, abs=1e-15)
