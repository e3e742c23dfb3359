"""The whole trie as one sequence: every token once, an ancestor mask, position = depth. One forward, one backward."""

# T trie tokens that are needed, J keys

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from trainer.engines.backbone import Backbone
from trainer.engines.head import Scorer
from trainer.engines.separate import instead_of
from trainer.engines.step import Step, Targets
from trainer.losses import Objective
from trainer.masks import ancestor_mask, needed, subtree_end
from trainer.trie import TokenTrie


@dataclass(frozen=True, slots=True)
class Packed:
    """Holds all activations of the trie and, without FlexAttention, a boolean mask of its size squared."""

    def backward(self, model: nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        return _run(model, trie, objective)

    def logprobs(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return _run(model, trie, None).logprobs


def _run(model: nn.Module, trie: TokenTrie, objective: Objective | None) -> Step:
    backbone, targets = Backbone(model), Targets.of(trie)
    if why := backbone.obstacle(trie.longest):
        return instead_of("packed", model, trie, objective, why=why)
    scorer = Scorer(backbone, targets, objective=objective)
    token_T = needed(trie, targets.before_U)
    if len(token_T):
        device = backbone.device
        end_T = np.searchsorted(token_T, subtree_end(trie)[token_T])
        mask_TT = ancestor_mask(torch.arange(len(token_T), device=device), torch.as_tensor(end_T, device=device))
        with backbone.sharing():
            hidden_TD = backbone.hidden(
                torch.as_tensor(trie.ids_T[token_T], dtype=torch.int64, device=device),
                positions_L=torch.as_tensor(trie.depth_T[token_T], device=device),
                seen_LJ=mask_TT,
            )
            scorer.score(hidden_TD, *targets.predicted_by(token_T))
    return scorer.step("packed")
