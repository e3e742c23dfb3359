"""Every context the model had, as one radix trie over tokens. A leaf is a branch; a sampled token trains on one branch.

    tokens 1..12 and ans, evicted: 5, then 8, then 11 (METHOD.md section 2)

    1 2 3 4 ─┬─ 5 6 7                              branch 0   owns 1..7
             └─ 6 7 ─┬─ 8 9 10                     branch 1   owns 8..10
                     └─ 9 10 ─┬─ 11 12             branch 2   owns 11, 12
                              └─ 12 ans            branch 3   owns ans

    36 branch tokens, 18 trie tokens, R = 2.00

Tokens decide identity, not messages: equal messages may tokenise differently. Nodes are numbered depth first, in the
order in which the samples first went through them, and kept as arrays: a million tokens are a million integers.
"""

# N nodes, T trie tokens, S samples, B branches, L tokens of one sequence

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trainer.radix import Arrays, Builder
from trainer.sample import Floats, Ids, Index, Kept, Sample

if TYPE_CHECKING:
    from trainer.rows import Row

__all__ = ["Floats", "Ids", "Index", "Kept", "Node", "Owner", "Sample", "TokenTrie"]


@dataclass(frozen=True, slots=True)
class Owner:
    """A span of path positions whose tokens one sample sampled, and is trained on."""

    sample: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A run of tokens without a fork inside, seen by every branch below it."""

    ids: Ids
    parent: int
    """-1 = the sequence starts here."""
    start: int
    """Path position of its first token = number of tokens before it."""
    owners: tuple[Owner, ...]
    """Several where calls sampled the same tokens in the same context: retries, a group's rollouts that start alike."""


class TokenTrie:
    """The radix trie of some samples, with the owners of every sampled token.

    An exact shared pass computes `unique_tokens`, one row per branch `branch_tokens`, one row per call `call_tokens`.
    """

    def __init__(self, samples: tuple[Sample, ...], arrays: Arrays) -> None:
        self.samples = samples
        self.ids_T = arrays.ids_T
        """Token ids, node by node in depth-first order; a branch is not contiguous here."""
        self.parent_N = arrays.parent_N
        """Node above; -1 = none."""
        self.start_N = arrays.start_N
        """Path position of the node's first token."""
        self.stop_N = arrays.stop_N
        """Path position behind the node's last token."""
        self.offset_N = arrays.offset_N
        """Where the node's tokens begin in `ids_T`."""
        self.node_S = arrays.node_S
        """Node that holds the sample's last token; -1 = the sample has no token."""

    @classmethod
    def build(cls, samples: Iterable[Sample]) -> TokenTrie:
        """Insert the samples in order; time linear in their tokens."""
        listed = tuple(samples)
        return cls(listed, Builder(listed).arrays())

    @property
    def unique_tokens(self) -> int:
        return len(self.ids_T)

    @cached_property
    def branch_tokens(self) -> int:
        return int(self.stop_N[self.leaf_B].sum())

    @property
    def longest(self) -> int:
        """Tokens of the longest branch."""
        return int(self.stop_N.max(initial=0))

    @property
    def call_tokens(self) -> int:
        return sum(len(sample) for sample in self.samples)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(sample.completion_ids) for sample in self.samples)

    @property
    def ratio(self) -> float:
        """R = branch tokens / trie tokens: the most that sharing can save."""
        return self.branch_tokens / self.unique_tokens if self.unique_tokens else 1.0

    @cached_property
    def leaf_B(self) -> Index:
        """The node each branch ends in, depth first."""
        inner = np.zeros(len(self.parent_N), dtype=bool)
        inner[self.parent_N[self.parent_N >= 0]] = True
        return np.flatnonzero(~inner)

    @cached_property
    def branch_N(self) -> Index:
        """The first branch through each node: the one that owns its sampled tokens."""
        return np.searchsorted(self.leaf_B, np.arange(len(self.parent_N)))

    @cached_property
    def node_T(self) -> Index:
        return np.repeat(np.arange(len(self.parent_N)), self.stop_N - self.start_N)

    @cached_property
    def depth_T(self) -> Index:
        """Path position of every trie token: its rotary position."""
        return np.arange(self.unique_tokens) - self.offset_N[self.node_T] + self.start_N[self.node_T]

    @cached_property
    def before_T(self) -> Index:
        """The trie token before each one on its path, whose logits predict it (after a fork, its end); -1 = none."""
        before = np.arange(-1, self.unique_tokens - 1)
        last_N = self.offset_N + self.stop_N - self.start_N - 1
        before[self.offset_N] = np.where(self.parent_N >= 0, last_N[self.parent_N], -1)
        return before

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        owners: list[list[Owner]] = [[] for _ in self.parent_N]
        for index, sample in enumerate(self.samples):
            first, node, stop = len(sample.prompt_ids), int(self.node_S[index]), len(sample)
            while node >= 0 and stop > first:
                start = max(first, int(self.start_N[node]))
                owners[node].append(Owner(index, start, stop))
                node, stop = int(self.parent_N[node]), int(self.start_N[node])
        return tuple(
            Node(self.ids_T[offset : offset + stop - start], int(parent), int(start), tuple(owned))
            for offset, start, stop, parent, owned in zip(
                self.offset_N, self.start_N, self.stop_N, self.parent_N, owners, strict=True
            )
        )

    def path(self, node: int) -> list[int]:
        """The nodes from the root down to `node`."""
        walk = []
        while node >= 0:
            walk.append(node)
            node = int(self.parent_N[node])
        return walk[::-1]

    def path_tokens(self, node: int) -> Index:
        """Indices into `ids_T` from the root to the end of `node`."""
        return _spans([(int(self.offset_N[n]), int(self.stop_N[n] - self.start_N[n])) for n in self.path(node)])

    def completion_tokens(self, sample: int) -> Index:
        """Indices into `ids_T` of what the sample sampled, in order."""
        first, node, stop = len(self.samples[sample].prompt_ids), int(self.node_S[sample]), len(self.samples[sample])
        spans = []
        while node >= 0 and stop > first:
            start = int(self.start_N[node])
            begin = max(first, start)
            spans.append((int(self.offset_N[node]) + begin - start, stop - begin))
            node, stop = int(self.parent_N[node]), start
        return _spans(spans[::-1])

    def rows(self) -> list[Row]:
        """Every branch as its own causal sequence: the LogitTree rows."""
        from trainer.rows import rows

        return rows(self)


def _spans(spans: list[tuple[int, int]]) -> Index:
    if not spans:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.arange(begin, begin + length) for begin, length in spans])
