"""One engine call: model, trie and objective in; loss, gradients and every sampled token's logprob out.

    engine("depth_first", chunk_tokens=4096).backward(model, trie, objective=nll())   -> Step, gradients added to .grad
    engine("separate").logprobs(model, trie)                                          -> Step without gradient

All engines score the same tokens and differ only in how they compute hidden states: `Targets` lists, for every sampled
token, the trie token whose hidden state predicts it.
"""

# N sampled tokens in sample order, U distinct sampled trie tokens in order of their predecessor, P hidden rows given

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer.losses import Objective
from trainer.trie import Ids, Index, TokenTrie


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What one pass over a trie gave."""

    loss: Tensor
    """Scalar, detached; 0 where nothing is trained or no objective was given."""
    logprobs: tuple[Tensor, ...]
    """One tensor per sample over its completion_ids, detached, nats; NaN = the token has no context (empty prompt)."""
    stats: Mapping[str, float]
    """`tokens` trained, their `weight` as the engine summed it, and the objective's own means."""
    engine: str
    """The one that ran, and why where it is not the one that was asked for."""
    states: tuple[Tensor, ...] = ()
    """Only from `Engine.states`."""


class Engine(Protocol):
    def backward(self, model: nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        """Adds the gradient of the objective to every parameter's .grad."""
        ...

    def logprobs(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        """One detached tensor per sample over its completion_ids; no gradient is computed."""
        ...

    def states(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        """The hidden states (n, D) that predict each sample's completion_ids, detached; NaN where nothing does."""
        ...


class Targets:
    """Which hidden state predicts which sampled token."""

    def __init__(self, trie: TokenTrie, *, token_N: Index, before_N: Index, ids_N: Ids) -> None:
        """Where the sampled tokens lie in what an engine computes, and what lies before each (-1 = nothing).

        Sampled tokens at the same place are one target, scored once and owned by several.
        """
        self.trie = trie
        self.trained_N: NDArray[np.bool_] = before_N >= 0
        """False = the first token of an empty prompt: nothing predicts it."""
        unique, first = np.unique(token_N[self.trained_N], return_index=True)
        order = np.argsort(before_N[self.trained_N][first], kind="stable")
        self.token_U: Index = unique[order]
        self.before_U: Index = before_N[self.trained_N][first][order]
        """Sorted, so that the targets of a run of tokens are a run of targets."""
        self.ids_U: Ids = ids_N[self.trained_N][first][order]
        rank = np.full(int(token_N.max(initial=-1)) + 1, -1, dtype=np.int64)
        rank[self.token_U] = np.arange(len(self.token_U))
        self.target_N: Index = np.where(self.trained_N, rank[token_N], -1)
        """Row in U of each sampled token; -1 = not trained."""
        by_target = np.argsort(self.target_N, kind="stable")
        self._by_target: Index = by_target[np.count_nonzero(~self.trained_N) :]
        self._first_U: Index = np.searchsorted(self.target_N[self._by_target], np.arange(len(self.token_U) + 1))

    @classmethod
    def of(cls, trie: TokenTrie) -> Targets:
        """Predicted by the trie token before each one."""
        tokens = [trie.completion_tokens(sample) for sample in range(len(trie.samples))]
        token_N = np.concatenate([np.zeros(0, dtype=np.int64), *tokens])
        return cls(trie, token_N=token_N, before_N=trie.before_T[token_N], ids_N=trie.ids_T[token_N])

    def predicted_by(self, token_L: Index) -> tuple[Index, Index]:
        """The targets that these trie tokens (ascending) predict, and the position of each one's predictor."""
        first_L = np.searchsorted(self.before_U, token_L)
        count_L = np.searchsorted(self.before_U, token_L + 1) - first_L
        row_P = np.repeat(np.arange(len(token_L)), count_L)
        return first_L[row_P] + np.arange(len(row_P)) - np.repeat(np.cumsum(count_L) - count_L, count_L), row_P

    def sampled(self, target_M: Index) -> tuple[Index, Index]:
        """The sampled tokens that own these targets, and for each its row in `target_M`."""
        count_M = self._first_U[target_M + 1] - self._first_U[target_M]
        row_K = np.repeat(np.arange(len(target_M)), count_M)
        within_K = np.arange(len(row_K)) - np.repeat(np.cumsum(count_M) - count_M, count_M)
        return self._by_target[self._first_U[target_M][row_K] + within_K], row_K

    @cached_property
    def sizes(self) -> list[int]:
        return [len(sample.completion_ids) for sample in self.trie.samples]

    def per_sample(self, logprob_U: Tensor) -> tuple[Tensor, ...]:
        """Spread what targets have (one number or one row each) over the samples that own them."""
        target_N = torch.as_tensor(self.target_N, device=logprob_U.device)
        nan = torch.full((), torch.nan, dtype=logprob_U.dtype, device=logprob_U.device)
        padded = torch.cat([logprob_U, nan.expand(1, *logprob_U.shape[1:])])
        return tuple(torch.split(padded[target_N], self.sizes)) if self.sizes else ()
