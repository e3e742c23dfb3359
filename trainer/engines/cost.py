"""What an engine will have to compute, counted before it runs.

    a token        one multiply-add per weight of the body
    a pair         a query and a key it is multiplied with: 2 x heads x head size per layer, more where a mask hides it
    a call         of the model: every gradient is added to its parameter, every layer is a dozen calls of kernels

Attention is not shared as tokens are: what a trie saves are its early tokens, and the late ones look back furthest.
"""

# B branches

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.engines.backbone import Backbone
from trainer.engines.units import Plan
from trainer.trie import Index, TokenTrie

CALL_TOKENS = 32  # ours: benchmarks/engines.md, what a call costs whatever its length
CALL_OPERATIONS = 20_000_000  # ours, there: a layer's share of it that does not depend on its size
PAIR_FACTOR = 1.3  # ours, there: a multiplication in attention takes that much longer than one in a linear layer


@dataclass(frozen=True, slots=True)
class Work:
    """Of one forward; the backward is twice that for every engine."""

    calls: int
    tokens: int
    pairs: int

    def operations(self, backbone: Backbone) -> float:
        """As many multiply-adds of a linear layer take as long."""
        config: Any = backbone.config
        heads, layers = config.num_attention_heads, config.num_hidden_layers
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        pair = 2 * heads * size * layers * PAIR_FACTOR
        per_call = CALL_TOKENS * backbone.weights + CALL_OPERATIONS * layers
        return float(self.tokens * backbone.weights + self.pairs * pair + self.calls * per_call)


def separate(trie: TokenTrie, before_U: Index) -> Work:
    """Each branch that owns a sampled token, as far as its last predictor."""
    branch_U, depth_U = trie.branch_N[trie.node_T[before_U]], trie.depth_T[before_U]
    length_B = np.zeros(len(trie.leaf_B), dtype=np.int64)
    np.maximum.at(length_B, branch_U, depth_U + 1)
    return Work(int(np.count_nonzero(length_B)), int(length_B.sum()), int((length_B * (length_B + 1) // 2).sum()))


def depth_first(cut: Plan, *, kernels: bool, recompute: bool = False) -> Work:
    """Unit by unit behind its path; with recomputation the inner units forward once more, a third of their work."""
    pairs = sum(_pairs(cut, number, masked=not kernels) for number in range(len(cut.units)))
    once = Work(len(cut.units), cut.computed_tokens, pairs)
    if not recompute:
        return once
    inner = sorted({unit.parent for unit in cut.units} - {-1})
    again = sum(len(cut.units[number].token_L) for number in inner)
    seen_again = sum(_pairs(cut, number, masked=not kernels) for number in inner)
    return Work(once.calls + len(inner) // 3, once.tokens + again // 3, once.pairs + seen_again // 3)


def packed(cut: Plan, *, kernels: bool) -> Work:
    """One call; without kernels a mask over everything."""
    tokens = cut.computed_tokens
    pairs = sum(_pairs(cut, number, masked=False) for number in range(len(cut.units))) if kernels else tokens**2
    return Work(min(len(cut.units), 1), tokens, pairs)


def _pairs(cut: Plan, number: int, *, masked: bool) -> int:
    unit = cut.units[number]
    if masked:
        return len(unit.token_L) * (unit.seen + len(unit.token_L))
    own = sum(
        (stop - start) ** 2 if forks else (stop - start) * (stop - start + 1) // 2 for start, stop, forks in unit.runs
    )
    return len(unit.token_L) * unit.seen + own
