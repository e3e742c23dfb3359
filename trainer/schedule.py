"""Which episodes a step trains on, in which tries, on which rank: a function of counts and a seed, known to every rank.

    5 episodes, group 2, accumulate 2      epoch 0   step 1   (0 1)(4)      step 2   (2 3)
                                           epoch 1   step 3   (2 3)(0 1)    step 4   (4)

A trie holds neighbours in the order given; epochs shuffle tries; no step reaches into the next epoch, so that no
episode counts twice in one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

Together = tuple[int, ...]
"""Episodes that share a trie."""


def steps_of(episodes: int, *, group: int, accumulate: int, steps: int, seed: int) -> tuple[tuple[Together, ...], ...]:
    """For each step its tries."""
    tries = [tuple(range(at, min(at + group, episodes))) for at in range(0, episodes, group)]
    found: list[tuple[Together, ...]] = []
    epoch = 0
    while len(found) < steps:
        order = np.random.default_rng([seed, epoch]).permutation(len(tries))
        shuffled = [tries[at] for at in order]
        found += [tuple(shuffled[at : at + accumulate]) for at in range(0, len(shuffled), accumulate)]
        epoch += 1
    return tuple(found[:steps])


def shares(sizes: Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Indices for each rank: the largest first, each to the rank with the least so far (Graham 1969: within 4/3)."""
    loads = [(0, rank) for rank in range(ranks)]
    found: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        load, rank = heapq.heappop(loads)
        found[rank].append(index)
        heapq.heappush(loads, (load + sizes[index], rank))
    return tuple(tuple(sorted(mine)) for mine in found)
