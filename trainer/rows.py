"""The branches of a trie as rows: what any trainer of plain causal sequences can train on, with nothing trained twice.

ids        1  2  3  4  6  7  8  9  10      branch 1 of the running example in trie.py
loss_mask  .  .  .  .  .  .  x  x  x       6 and 7 were sampled in branch 0: here they are context
parent 0, fork 4                           the first four tokens are branch 0's
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.trie import Ids, Owner, TokenTrie


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One branch, root to leaf, as a causal sequence."""

    branch: int
    ids: Ids
    loss_mask: NDArray[np.bool_]
    """True where a sampled token is trained; unshifted: position i marks the token ids[i] itself."""
    owners: tuple[Owner, ...]
    """By position, then sample; spans of two owners coincide where two calls sampled the same tokens."""
    parent: int | None
    """The branch it forked from; None = it shares no token with an earlier one."""
    fork: int
    """Leading tokens shared with `parent`: position of the first token of its own."""

    def __len__(self) -> int:
        return len(self.ids)


def rows(trie: TokenTrie) -> list[Row]:
    """All branches, depth first. Memory is `branch_tokens`; `trie` itself holds `unique_tokens`."""
    return [row(trie, branch) for branch in range(len(trie.leaf_B))]


def row(trie: TokenTrie, branch: int) -> Row:
    """One branch alone, so that a long trie can be written row by row."""
    path = trie.path(int(trie.leaf_B[branch]))
    own = [node for node in path if trie.branch_N[node] == branch]
    ids = np.concatenate([trie.nodes[node].ids for node in path])
    owners = _joined(owner for node in own for owner in trie.nodes[node].owners)
    loss_mask = np.zeros(len(ids), dtype=bool)
    for owner in owners:
        loss_mask[owner.start : owner.stop] = True
    above = int(trie.parent_N[own[0]])
    return Row(
        branch=branch,
        ids=ids,
        loss_mask=loss_mask,
        owners=owners,
        parent=int(trie.branch_N[above]) if above >= 0 else None,
        fork=int(trie.start_N[own[0]]),
    )


def _joined(owners: Iterable[Owner]) -> tuple[Owner, ...]:
    """A sample's spans in neighbouring nodes become one."""
    spans: dict[int, list[Owner]] = {}
    for owner in owners:
        mine = spans.setdefault(owner.sample, [])
        if mine and mine[-1].stop == owner.start:
            mine[-1] = Owner(owner.sample, mine[-1].start, owner.stop)
        else:
            mine.append(owner)
    return tuple(sorted((o for mine in spans.values() for o in mine), key=lambda o: (o.start, o.sample)))
