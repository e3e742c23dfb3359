"""The trie cut into pieces worth one call of the model: long nodes in chunks, small subtrees and short spines together.

    trunk (9000) ─┬─ leg (40)  ┐              unit 0  trunk[0:4096]      chunk_tokens = 4096
                  ├─ leg (60)  ┘ one bush     unit 1  trunk[4096:8192]   under unit 0
                  └─ a (44) ─┬─ leg (140)     unit 2  trunk[8192:9000]   under unit 1
                             └─ b (700) ...   unit 3  both legs          under unit 2, a mask keeps them apart
                                              unit 4  a and its leg      under unit 2
                                              unit 5  b                  under unit 4, which it sees as far as a

Every unit sees its ancestors and nothing else, so one path's keys and values are enough to compute it. What units below
go on from comes first in a unit: its path.
"""

# T trie tokens, N nodes, L tokens of a unit

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trainer.engines.attention import Run
from trainer.masks import ancestor_mask, causal_mask, needed, subtree_end
from trainer.trie import Index, TokenTrie


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Some tokens computed in one call, behind one prefix."""

    token_L: Index
    """Trie tokens: its path, then what hangs beside it, each depth first."""
    seen: int
    """Tokens before it on its path: all of the units above, in order."""
    parent: int
    """The unit above; -1 = none."""
    path: int
    """Its first so many tokens are seen by the units below it, the rest by none."""
    runs: tuple[tuple[int, int, bool], ...]
    """Subtrees side by side as (start, stop, forks): places in `token_L`, and whether a mask is needed within."""

    @property
    def bush(self) -> bool:
        """Needs an ancestor mask; otherwise a plain run of one branch."""
        return len(self.runs) > 1 or self.runs[0][2]

    @property
    def trunk(self) -> Unit:
        """Its path alone: all that units below need."""
        return replace(self, token_L=self.token_L[: self.path], runs=((0, self.path, False),))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    units: tuple[Unit, ...]
    """Depth first: a unit comes after its parent and before its parent's later siblings."""
    end_T: Index
    """Subtree ends, for ancestor masks."""

    @property
    def computed_tokens(self) -> int:
        """At most `unique_tokens`: what trains nothing is left out."""
        return sum(len(unit.token_L) for unit in self.units)

    @property
    def longest_path(self) -> int:
        return max((unit.seen + len(unit.token_L) for unit in self.units), default=0)


def plan(trie: TokenTrie, before_U: Index, *, chunk_tokens: int | None, bush_tokens: int, spines: bool = True) -> Plan:
    """Cut what `before_U` needs into units of at most `chunk_tokens`; small ones are put together up to `bush_tokens`.

    `spines`: False = nothing is put together that units below go on from.
    """
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1; got {chunk_tokens}")
    bush_tokens = min(bush_tokens, chunk_tokens or bush_tokens)
    end_T = subtree_end(trie)
    need = needed(trie, before_U)
    first_N = np.searchsorted(need, trie.offset_N)
    last_N = np.searchsorted(need, trie.offset_N + trie.stop_N - trie.start_N)
    end_N = np.searchsorted(need, end_T[trie.offset_N])
    children: list[list[int]] = [[] for _ in trie.parent_N]
    roots: list[int] = []
    for node, parent in enumerate(trie.parent_N):
        if end_N[node] > first_N[node]:
            (children[parent] if parent >= 0 else roots).append(node)

    units: list[Unit] = []
    stack: list[tuple[list[int], int, int]] = []

    def size(node: int) -> int:
        return int(end_N[node] - first_N[node])

    def own(node: int) -> Index:
        return need[first_N[node] : last_N[node]]

    def below(siblings: list[int], seen: int, above: int) -> None:
        bush: list[int] = []
        for node in siblings:
            if size(node) > bush_tokens:
                stack.append(([node], seen, above))
                continue
            if bush and size(node) + sum(map(size, bush)) > bush_tokens:
                stack.append((bush, seen, above))
                bush = []
            bush.append(node)
        if bush:
            stack.append((bush, seen, above))

    def spine(node: int) -> tuple[list[int], list[int]]:
        """From `node` down to the largest child, as far as it fits with all that hangs beside it."""
        nodes, beside, count = [node], [], len(own(node))
        while spines and children[node]:
            *small, largest = sorted(children[node], key=size)
            count += sum(map(size, small)) + len(own(largest))
            if count > bush_tokens:
                break
            nodes.append(largest)
            beside.extend(small)
            node = largest
        return nodes, sorted(beside)

    below(roots, 0, -1)
    while stack:
        nodes, seen, above = stack.pop()
        if len(nodes) > 1 or size(nodes[0]) <= bush_tokens:
            token_L = np.concatenate([need[first_N[n] : end_N[n]] for n in nodes])
            borders = np.cumsum([0, *map(size, nodes)]).tolist()
            forks = [bool(end_N[n] > last_N[n]) for n in nodes]
            runs = tuple(zip(borders, borders[1:], forks, strict=False))
            units.append(Unit(token_L, seen, above, 0, runs))
            continue
        nodes, beside = spine(nodes[0])
        path = np.concatenate([own(n) for n in nodes])
        if beside:
            token_L = np.concatenate([path, *(need[first_N[n] : end_N[n]] for n in beside)])
            units.append(Unit(token_L, seen, above, len(path), ((0, len(token_L), True),)))
            seen, above = seen + len(path), len(units) - 1
        else:
            for begin in range(0, len(path), chunk_tokens or len(path)):
                chunk = path[begin : begin + (chunk_tokens or len(path))]
                units.append(Unit(chunk, seen, above, len(chunk), ((0, len(chunk), False),)))
                seen, above = seen + len(chunk), len(units) - 1
        below(children[nodes[-1]], seen, above)
    return Plan(tuple(units), end_T)


def runs(unit: Unit, cut: Plan, *, dtype: torch.dtype) -> tuple[Run, ...]:
    """For attention unit by unit: each subtree attends within itself."""
    found = []
    for start, stop, forks in unit.runs:
        mask_LL = None
        if forks:
            token_L = torch.as_tensor(unit.token_L[start:stop])
            seen_LL = ancestor_mask(token_L, torch.as_tensor(cut.end_T[unit.token_L[start:stop]]))
            mask_LL = torch.zeros(seen_LL.shape, dtype=dtype).masked_fill(~seen_LL, float("-inf"))[None, None]
        found.append(Run(start, stop, mask_LL))
    return tuple(found)


def seen_mask(unit: Unit, cut: Plan, *, device: torch.device) -> Tensor | None:
    """(L, J) for attention with a cache: the whole path, then the unit's own ancestors; None = plain causal."""
    length = len(unit.token_L)
    if not unit.bush:
        return causal_mask(length, seen=unit.seen, device=device) if unit.seen else None
    token_L, end_L = (torch.as_tensor(a, device=device) for a in (unit.token_L, cut.end_T[unit.token_L]))
    seen_LJ = torch.ones(length, unit.seen + length, dtype=torch.bool, device=device)
    seen_LJ[:, unit.seen :] = ancestor_mask(token_L, end_L)
    return seen_LJ
