"""Every branch as its own causal sequence, scored where it owns tokens. Exact on any backbone: the reference."""

# B branches, L tokens of one branch, T trie tokens, U targets, M targets that one branch owns

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from trainer.engines.backbone import Backbone
from trainer.engines.head import Scorer
from trainer.engines.probe import check
from trainer.engines.step import Step, Targets
from trainer.losses import Objective
from trainer.trie import TokenTrie

logger = logging.getLogger("memorywalker.trainer")
_said: set[str] = set()


@dataclass(frozen=True, slots=True)
class Separate:
    """Computes `branch_tokens` tokens forward and backward; holds one branch at a time."""

    def backward(self, model: nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        return run(model, trie, objective)

    def logprobs(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return run(model, trie, None).logprobs

    def states(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return run(model, trie, None, keep=True).states


def run(
    model: nn.Module, trie: TokenTrie, objective: Objective | None, *, keep: bool = False, name: str = "separate"
) -> Step:
    backbone, targets = Backbone(model), Targets.of(trie)
    check(backbone, trie.longest)
    whole = bool(backbone.rotates_by_length(trie.longest))
    scorer = Scorer(backbone, targets, objective=objective, keep=keep)
    branch_U = trie.branch_N[trie.node_T[targets.token_U]]
    depth_U = trie.depth_T[targets.before_U]
    by_branch = np.argsort(branch_U, kind="stable")
    first_B = np.searchsorted(branch_U[by_branch], np.arange(len(trie.leaf_B) + 1))
    for branch, leaf in enumerate(trie.leaf_B):
        target_M = by_branch[first_B[branch] : first_B[branch + 1]]
        if not len(target_M):
            continue
        row_M = depth_U[target_M]
        path_L = trie.path_tokens(int(leaf))
        if not whole:
            path_L = path_L[: row_M.max() + 1]  # nothing behind the last predictor is needed
        ids_L = torch.as_tensor(trie.ids_T[path_L], dtype=torch.int64, device=backbone.device)
        scorer.score(backbone.hidden(ids_L), target_M, row_M)
    return scorer.step(name)


def instead_of(
    engine: str, model: nn.Module, trie: TokenTrie, objective: Objective | None, *, keep: bool, why: str
) -> Step:
    """Run separate branches where a shared engine would be wrong, and say so once."""
    line = f"separate instead of {engine}: {why}"
    if line not in _said:
        _said.add(line)
        logger.warning(line)
    return run(model, trie, objective, keep=keep, name=line)
