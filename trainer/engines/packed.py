"""The trie as one sequence: every token once, seeing its ancestors, position = depth. One forward, one backward."""

# T trie tokens that are needed

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from trainer.engines.attention import Pack, Piece, using
from trainer.engines.backbone import Backbone
from trainer.engines.head import Scorer
from trainer.engines.probe import obstacle, takes_kernels
from trainer.engines.separate import instead_of
from trainer.engines.step import Step, Targets
from trainer.engines.units import Plan, plan, runs
from trainer.losses import Objective
from trainer.masks import ancestor_mask, needed, subtree_end
from trainer.trie import Index, TokenTrie

BUSH_TOKENS = 256  # ours: benchmarks/engines.md


@dataclass(frozen=True, slots=True)
class Packed:
    """Holds all activations of the trie; attention runs over units on CPU, over FlexAttention's block mask on CUDA."""

    kernels: bool = True
    """False = one dense boolean mask of (T, T), on any device."""
    bush_tokens: int = BUSH_TOKENS

    def backward(self, model: nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        return self._run(model, trie, objective)

    def plan(self, trie: TokenTrie, before_U: Index) -> Plan:
        """The pieces that attend one by one."""
        return plan(trie, before_U, chunk_tokens=None, bush_tokens=self.bush_tokens)

    def logprobs(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self._run(model, trie, None).logprobs

    def states(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self._run(model, trie, None, keep=True).states

    def _run(self, model: nn.Module, trie: TokenTrie, objective: Objective | None, *, keep: bool = False) -> Step:
        backbone, targets = Backbone(model), Targets.of(trie)
        if why := obstacle(backbone, trie.longest):
            return instead_of("packed", model, trie, objective, keep=keep, why=why)
        scorer = Scorer(backbone, targets, objective=objective, keep=keep)
        if len(targets.token_U):
            with backbone.sharing():
                hidden_TD, token_T = self._hidden(backbone, trie, targets)
                place = np.argsort(token_T)
                target_M, row_M = targets.predicted_by(token_T[place])
                scorer.score(hidden_TD, target_M, place[row_M])
        return scorer.step("packed")

    def _hidden(self, backbone: Backbone, trie: TokenTrie, targets: Targets) -> tuple[Tensor, Index]:
        """Hidden states and the trie tokens they belong to."""
        device = backbone.device
        if self.kernels and takes_kernels(backbone):
            cut = self.plan(trie, targets.before_U)
            token_T = np.concatenate([unit.token_L for unit in cut.units])
            with using(backbone, pack(cut, dtype=backbone.dtype)):
                return backbone.hidden(*_inputs(trie, token_T, device)), token_T
        token_T = needed(trie, targets.before_U)
        end_T = torch.as_tensor(np.searchsorted(token_T, subtree_end(trie)[token_T]), device=device)
        if self.kernels and flexes(backbone):
            return backbone.flex_hidden(*_inputs(trie, token_T, device), end_T), token_T
        mask_TT = ancestor_mask(torch.arange(len(token_T), device=device), end_T)
        return backbone.hidden(*_inputs(trie, token_T, device), seen_LJ=mask_TT), token_T


def flexes(backbone: Backbone) -> bool:
    """Whether it takes FlexAttention's block mask where it runs."""
    return backbone.device.type == "cuda" and bool(getattr(backbone.body, "_supports_flex_attn", False))


def pack(cut: Plan, *, dtype: torch.dtype) -> Pack:
    """Where every unit and its path lie when the units are put one after another."""
    begin = np.cumsum([0, *(len(unit.token_L) for unit in cut.units)]).tolist()
    pieces: list[Piece] = []
    for number, unit in enumerate(cut.units):
        above: tuple[tuple[int, int], ...] = ()
        if unit.parent >= 0:
            parent = pieces[unit.parent]
            above, stop = parent.prefix, parent.start + cut.units[unit.parent].path
            if above and above[-1][1] == parent.start:
                above = (*above[:-1], (above[-1][0], stop))
            else:
                above = (*above, (parent.start, stop))
        pieces.append(Piece(begin[number], begin[number + 1], above, runs(unit, cut, dtype=dtype)))
    return Pack(tuple(pieces))


def _inputs(trie: TokenTrie, token_T: Index, device: torch.device) -> tuple[Tensor, Tensor]:
    ids = torch.as_tensor(trie.ids_T[token_T], dtype=torch.int64, device=device)
    return ids, torch.as_tensor(trie.depth_T[token_T], device=device)
