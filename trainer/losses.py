"""What a sampled token's logprob is worth: a weighted sum over sampled tokens, so that engines may score in any order.

    loss = sum over trained tokens n of weight_n * term(logprob_n) / number of trained tokens
    token mean      weight 1 for every token
    rollout mean    weight (tokens / rollouts) / (tokens of its rollout): a rollout counts once, however often it forked

The weights of a trie always add up to its number of trained tokens, whatever the engine.
"""

# N sampled tokens of the trie in sample order, K of them scored now, M distinct trie tokens scored now, V vocabulary,
# C diverging tokens, D hidden size

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.trie import TokenTrie

Per = Literal["token", "rollout"]


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Some sampled tokens with the model's opinion of them, gradients attached."""

    index_K: Tensor
    """Which of the trie's N sampled tokens."""
    logprob_K: Tensor
    """Nats, in float32 or float64."""
    logits_MV: Tensor
    row_K: Tensor
    """Row of `logits_MV` each token was scored from; owners of one trie token share a row."""


class Terms(Protocol):
    """An objective bound to one trie."""

    @property
    def weight_N(self) -> Tensor:
        """Sums to the number of trained tokens; 0 = not trained."""
        ...

    def __call__(self, scored: Scored) -> Tensor:
        """Their share of the loss, a scalar; the shares of all tokens add up to the loss."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Over the trained tokens scored so far: means, and extremes under names that end in _max."""
        ...


class Objective(Protocol):
    def bind(self, trie: TokenTrie, *, trained_N: NDArray[np.bool_], device: torch.device, dtype: torch.dtype) -> Terms:
        """`trained_N`: False where a token has no context to be scored under (the first of an empty prompt)."""
        ...


def nll(*, per: Per = "token", over: float | None = None) -> Objective:
    """Mean negative logprob of the sampled tokens.

    `over`: tokens (per="token") or rollouts (per="rollout") the mean is taken over; None = those of the trie. Give the
    total of a step when it is accumulated over several tries or ranks.
    """
    return _Nll(per, over)


def grpo(
    *,
    clip: float = 0.2,
    clip_high: float | None = None,
    beta: float = 0.0,
    per: Per = "rollout",
    over: float | None = None,
    entropy: bool = False,
) -> Objective:
    """Clipped policy gradient with each sample's advantage, plus `beta` times KL(policy || reference), k3 estimate.

    Ratios are against `Sample.logprobs`; where a sample has none the policy that samples is the one trained (ratio 1).
    The paper's values: beta 1e-3, G = 16 (METHOD.md section 3). `clip_high` > `clip` is DAPO's asymmetric clip.
    `entropy` adds the mean entropy to the statistics.
    """
    return _Grpo(per, over, clip, clip if clip_high is None else clip_high, beta, entropy)


def sdcc(
    live: Sequence[Tensor | None],
    diverging: Sequence[NDArray[np.bool_]],
    head: Callable[[Tensor], Tensor],
    *,
    strength: float,
    task: Objective | None = None,
    over: float | None = None,
) -> Objective:
    """The task's loss plus `strength` * mean over diverging tokens of KL(live view || this context), full vocabulary.

    `live`: for each sample the hidden states (n, D) that its tokens had in their live view, from `Engine.states`; None
    where none of them diverges. `head` turns them into logits, without gradient. `over`: as in `nll`, the diverging
    tokens of a whole step.
    With strength 0, or nothing diverging, it is the task itself (METHOD.md section 3).
    """
    return _Sdcc(tuple(live), tuple(diverging), head, strength, task or nll(), over)


def weights(trie: TokenTrie, *, trained_N: NDArray[np.bool_], per: Per) -> NDArray[np.float64]:
    """One weight per sampled token; they sum to the number of trained tokens."""
    weight_N = trained_N.astype(np.float64)
    if per == "token" or not trained_N.any():
        return weight_N
    rollout_N = np.repeat(rollouts(trie), [len(sample.completion_ids) for sample in trie.samples])
    tokens_R = np.bincount(rollout_N, weights=weight_N)
    share_R = weight_N.sum() / np.count_nonzero(tokens_R) / np.maximum(tokens_R, 1)
    return np.asarray(weight_N * share_R[rollout_N])


def rollouts(trie: TokenTrie) -> NDArray[np.int64]:
    """A number for each sample's rollout; a sample without a name is a rollout of its own."""
    number: dict[object, int] = {}
    keys = [("sample", i) if s.rollout is None else ("rollout", s.rollout) for i, s in enumerate(trie.samples)]
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)


def _scale(weight_N: NDArray[np.float64], trie: TokenTrie, per: Per, over: float | None) -> float:
    """What the weighted sum is multiplied with to make the mean the caller asked for."""
    trained = float(weight_N.sum())
    if over is None or trained == 0:
        return 1.0 / max(trained, 1.0)
    if per == "token":
        return 1.0 / over
    rollout_N = np.repeat(rollouts(trie), [len(sample.completion_ids) for sample in trie.samples])
    return len(np.unique(rollout_N[weight_N > 0])) / trained / over


@dataclass(frozen=True, slots=True)
class _Nll:
    per: Per
    over: float | None

    def bind(self, trie: TokenTrie, *, trained_N: NDArray[np.bool_], device: torch.device, dtype: torch.dtype) -> Terms:
        weight_N = weights(trie, trained_N=trained_N, per=self.per)
        scale = _scale(weight_N, trie, self.per, self.over)
        return _Sum(
            torch.as_tensor(weight_N, dtype=dtype, device=device), scale, lambda scored, seen: -scored.logprob_K
        )


@dataclass(frozen=True, slots=True)
class _Grpo:
    per: Per
    over: float | None
    clip: float
    clip_high: float
    beta: float
    entropy: bool

    def bind(self, trie: TokenTrie, *, trained_N: NDArray[np.bool_], device: torch.device, dtype: torch.dtype) -> Terms:
        def flat(parts: list[NDArray[np.float64]]) -> Tensor:
            return torch.as_tensor(np.concatenate([np.zeros(0), *parts]), dtype=dtype, device=device)

        missing = [i for i, s in enumerate(trie.samples) if s.ref_logprobs is None and len(s.completion_ids)]
        if self.beta and missing:
            raise ValueError(f"beta {self.beta} needs ref_logprobs on every sample; sample {missing[0]} has none")
        sizes = [len(sample.completion_ids) for sample in trie.samples]
        advantage_N = flat([np.full(size, s.advantage) for size, s in zip(sizes, trie.samples, strict=True)])
        old_N = flat([_or_nan(s.logprobs, size) for size, s in zip(sizes, trie.samples, strict=True)])
        ref_N = flat([_or_nan(s.ref_logprobs, size) for size, s in zip(sizes, trie.samples, strict=True)])

        def terms(scored: Scored, seen: Seen) -> Tensor:
            new_K, index_K = scored.logprob_K, scored.index_K
            old_K = torch.where(old_N[index_K].isnan(), new_K.detach(), old_N[index_K])
            ratio_K = (new_K - old_K).exp()
            advantage_K = advantage_N[index_K]
            clipped_K = ratio_K.clamp(1 - self.clip, 1 + self.clip_high)
            term_K = -torch.minimum(ratio_K * advantage_K, clipped_K * advantage_K)  # PPO, eq. 7
            seen("ratio", ratio_K.detach())
            seen("ratio_max", ratio_K.detach(), most=True)
            seen("clipped", (clipped_K * advantage_K < ratio_K * advantage_K).detach().to(dtype))
            seen("sampling_kl", (ratio_K - 1 - (new_K - old_K)).detach())  # k3 of KL(sampling policy || policy)
            if self.beta:
                log_ratio_K = ref_N[index_K] - new_K
                kl_K = log_ratio_K.exp() - log_ratio_K - 1  # k3, Schulman 2020; unbiased, never negative
                seen("kl", kl_K.detach())
                term_K = term_K + self.beta * kl_K
            if self.entropy:
                with torch.no_grad():
                    log_MV = scored.logits_MV.log_softmax(-1)
                    seen("entropy", -(log_MV.exp() * log_MV).sum(-1)[scored.row_K])
            return term_K

        weight_N = weights(trie, trained_N=trained_N, per=self.per)
        scale = _scale(weight_N, trie, self.per, self.over)
        return _Sum(torch.as_tensor(weight_N, dtype=dtype, device=device), scale, terms)


@dataclass(frozen=True, slots=True, eq=False)
class _Sdcc:
    live: tuple[Tensor | None, ...]
    diverging: tuple[NDArray[np.bool_], ...]
    head: Callable[[Tensor], Tensor]
    strength: float
    task: Objective
    over: float | None

    def bind(self, trie: TokenTrie, *, trained_N: NDArray[np.bool_], device: torch.device, dtype: torch.dtype) -> Terms:
        task = self.task.bind(trie, trained_N=trained_N, device=device, dtype=dtype)
        diverging_N = np.concatenate([np.zeros(0, dtype=bool), *self.diverging]) & trained_N
        if not self.strength or not diverging_N.any():
            return task
        compared = [
            (live, torch.as_tensor(flag, device=device))
            for live, flag in zip(self.live, self.diverging, strict=True)
            if live is not None
        ]
        teacher_CD = torch.cat([live.to(device)[flag] for live, flag in compared])
        row_N = torch.as_tensor(np.cumsum(np.concatenate(self.diverging)) - 1, device=device)
        where = torch.as_tensor(diverging_N, device=device)
        return _Conditioned(task, teacher_CD, row_N, where, self.head, self.strength, self.over or int(where.sum()))


@dataclass(slots=True, eq=False)
class _Conditioned:
    task: Terms
    teacher_CD: Tensor
    row_N: Tensor
    """Row of `teacher_CD` for each diverging token."""
    where_N: Tensor
    head: Callable[[Tensor], Tensor]
    strength: float
    count: float
    divergence: float = 0.0

    @property
    def weight_N(self) -> Tensor:
        return self.task.weight_N

    def __call__(self, scored: Scored) -> Tensor:
        loss = self.task(scored)
        at_K = self.where_N[scored.index_K]
        if not bool(at_K.any()):
            return loss
        with torch.no_grad():
            teacher_CV = self.head(self.teacher_CD[self.row_N[scored.index_K[at_K]]]).to(loss.dtype).log_softmax(-1)
        student_CV = scored.logits_MV[scored.row_K[at_K]].log_softmax(-1)
        divergence = (teacher_CV.exp() * (teacher_CV - student_CV)).sum()
        self.divergence += float(divergence.detach())
        return loss + self.strength / self.count * divergence

    def stats(self) -> Mapping[str, float]:
        return {**self.task.stats(), "divergence": self.divergence / self.count}


class Seen(Protocol):
    """Takes a statistic of the tokens scored now: its weighted mean is kept or, with `most`, its largest value."""

    def __call__(self, name: str, value_K: Tensor, *, most: bool = False) -> None: ...


def _or_nan(values: object, size: int) -> NDArray[np.float64]:
    return np.full(size, np.nan) if values is None else np.asarray(values, dtype=np.float64)


@dataclass(slots=True, eq=False)
class _Sum:
    weight_N: Tensor
    scale: float
    term: Callable[[Scored, Seen], Tensor]
    totals: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    weight: float = 0.0

    def __call__(self, scored: Scored) -> Tensor:
        weight_K = self.weight_N[scored.index_K]

        def seen(name: str, value_K: Tensor, *, most: bool = False) -> None:
            if most:
                self.most[name] = max(self.most.get(name, -math.inf), float(value_K.max()))
            else:
                self.totals[name] = self.totals.get(name, 0.0) + float((weight_K * value_K).sum())

        self.weight += float(weight_K.sum())
        return (weight_K * self.term(scored, seen)).sum() * self.scale

    def stats(self) -> Mapping[str, float]:
        means = {name: total / self.weight for name, total in self.totals.items()}
        return {"weight": self.weight, "tokens": float(torch.count_nonzero(self.weight_N)), **means, **self.most}
