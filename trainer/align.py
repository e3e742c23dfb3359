"""Which tokens of one context are still there in the next: common ends first, then runs that occur once on each side.

    before  1 2 3 4 5 6 7            5 was evicted; 6 7 moved up, and 8 is new
    after   1 2 3 4 6 7 8            kept (0, 0, 4), (5, 4, 2)

A patience diff on token runs: near linear in the tokens, where difflib takes minutes on 100k of them.
"""

from __future__ import annotations

from bisect import bisect_left
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

from trainer.trie import Ids, Kept

RUNS = (32, 8)  # ours: a run of 8 tokens that is unique on both sides was never accidental on the captures
SMALL = 4096  # ours: cells of a gap that difflib may compare token by token; chance matches of lone tokens stay local


def kept(before: Ids, after: Ids) -> tuple[Kept, ...]:
    """Runs shared in order by both, ascending and disjoint."""
    found: list[Kept] = []
    gaps = [(0, len(before), 0, len(after), 0)]
    while gaps:
        i, i_end, j, j_end, level = gaps.pop()
        head = _same(before[i:i_end], after[j:j_end])
        found.append(Kept(i, j, head))
        i, j = i + head, j + head
        tail = _same(before[i:i_end][::-1], after[j:j_end][::-1])
        i_end, j_end = i_end - tail, j_end - tail
        found.append(Kept(i_end, j_end, tail))
        if i == i_end or j == j_end:
            continue
        while level < len(RUNS) and not (runs := _anchors(before[i:i_end], after[j:j_end], RUNS[level])):
            level += 1
        if level == len(RUNS):
            if (i_end - i) * (j_end - j) <= SMALL:
                matcher = SequenceMatcher(None, before[i:i_end].tolist(), after[j:j_end].tolist(), autojunk=False)
                found.extend(Kept(i + m.a, j + m.b, m.size) for m in matcher.get_matching_blocks())
            continue
        at_i, at_j = i, j
        for run in runs:
            gaps.append((at_i, i + run.before, at_j, j + run.after, level))
            found.append(Kept(i + run.before, j + run.after, run.length))
            at_i, at_j = i + run.before + run.length, j + run.after + run.length
        gaps.append((at_i, i_end, at_j, j_end, level))
    return _merged(found)


def _same(a: Ids, b: Ids) -> int:
    """Length of the common beginning."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(differs.argmax()) if differs.any() else size


def _anchors(a: Ids, b: Ids, length: int) -> list[Kept]:
    """Runs of at least `length` tokens around places unique in both, in an order that both share."""
    once_a, once_b = _once(a, length), _once(b, length)
    _, in_a, in_b = np.intersect1d(once_a[0], once_b[0], assume_unique=True, return_indices=True)
    i, j = once_a[1][in_a], once_b[1][in_b]
    order = np.argsort(i)
    i, j = i[order], j[order]
    if not len(i):
        return []
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(i) != 1) | (np.diff(j) != 1)]))
    ends = np.append(starts[1:], len(i)) - 1
    runs = [Kept(int(i[s]), int(j[s]), int(i[e] - i[s]) + length) for s, e in zip(starts, ends, strict=True)]
    runs = [run for run in runs if _same(a[run.before :], b[run.after : run.after + run.length]) == run.length]
    return _increasing(runs)


def _once(ids: Ids, length: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes of the runs of `length` tokens that occur once, and where."""
    count = len(ids) - length + 1
    if count < 1:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + ids[offset : offset + count].astype(np.uint64)  # wraps
    unique, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    return unique[counts == 1], first[counts == 1]


def _increasing(runs: list[Kept]) -> list[Kept]:
    """The longest chain of runs, in number, that ascends in both; overlaps are cut off the later run's beginning."""
    ends: list[int] = []
    last: list[int] = []
    previous: list[int] = []
    for index, run in enumerate(runs):
        at = bisect_left(ends, run.after)
        previous.append(last[at - 1] if at else -1)
        ends[at : at + 1], last[at : at + 1] = [run.after], [index]
    chain: list[Kept] = []
    index = last[-1] if last else -1
    while index >= 0:
        chain.append(runs[index])
        index = previous[index]
    cut: list[Kept] = []
    i = j = 0
    for run in reversed(chain):
        skip = max(i - run.before, j - run.after, 0)
        if skip < run.length:
            cut.append(Kept(run.before + skip, run.after + skip, run.length - skip))
            i, j = run.before + run.length, run.after + run.length
    return cut


def _merged(runs: list[Kept]) -> tuple[Kept, ...]:
    merged: list[Kept] = []
    for run in sorted((run for run in runs if run.length), key=lambda run: run.before):
        last = merged[-1] if merged else None
        if last and (last.before + last.length, last.after + last.length) == (run.before, run.after):
            merged[-1] = Kept(last.before, last.after, last.length + run.length)
        else:
            merged.append(run)
    return tuple(merged)
