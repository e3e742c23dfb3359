"""Who may see whom. Small masks are drawn here and asserted as drawn.

The trie as one sequence, every token once, depth first: a token sees its ancestors and itself.

    ids     1 2 | 3 | 4 5        samples 1 2 3 and 1 2 4 5
    depth   0 1   2   2 3        the rotary position

            1 2 3 4 5
        1   x . . . .
        2   x x . . .
        3   x x x . .
        4   x x . x .            the sibling 3 is not there
        5   x x . x x

With `end` = where a token's subtree ends in this order, query i sees key j iff j <= i < end[j]. The same comparisons
are FlexAttention's mask_mod, so that nothing of size T x T is needed there.
"""

# T trie tokens, L tokens of a unit

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trainer.trie import Index, TokenTrie


def subtree_end(trie: TokenTrie) -> Index:
    """For every trie token the end of its subtree: one past the last token below it."""
    count = len(trie.parent_N)
    last_N = np.arange(1, count + 1)
    for node in range(count - 1, -1, -1):
        parent = trie.parent_N[node]
        if parent >= 0:
            last_N[parent] = max(last_N[parent], last_N[node])
    end_N = np.append(trie.offset_N, trie.unique_tokens)[last_N]
    return end_N[trie.node_T]


def needed(trie: TokenTrie, before_U: Index) -> Index:
    """Trie tokens on the way to a predictor, ascending; what lies behind the last one trains nothing."""
    mark_T = np.zeros(trie.unique_tokens, dtype=np.int64)
    mark_T[before_U] = 1
    marked = np.concatenate([[0], np.cumsum(mark_T)])
    return np.flatnonzero(marked[subtree_end(trie)] > marked[np.arange(trie.unique_tokens)])


def ancestor_mask(token_L: Tensor, end_L: Tensor) -> Tensor:
    """(L, L), True = may see, for trie tokens in depth-first order."""
    return (token_L[None, :] <= token_L[:, None]) & (end_L[None, :] > token_L[:, None])


def causal_mask(length: int, *, seen: int, device: torch.device) -> Tensor:
    """(length, seen + length): all of a prefix of `seen` tokens, then causal.

    causal_mask(2, seen=3)   x x x x .
                             x x x x x
    """
    return torch.ones(length, seen + length, dtype=torch.bool, device=device).tril(seen)
