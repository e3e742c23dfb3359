"""Grows the radix trie of `trainer.trie` sample by sample, in time linear in tokens, and lays it out in arrays."""

# N nodes, T trie tokens, S samples

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.sample import Ids, Index, Sample

FIRST_COMPARED = 256  # ours: most forks show early; doubled from there, so that a long trunk takes few comparisons


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """The trie in columns, nodes depth first."""

    ids_T: Ids
    parent_N: Index
    start_N: Index
    stop_N: Index
    offset_N: Index
    node_S: Index


class Builder:
    """A node is a span of some sample's tokens, so that growing a leaf or splitting a node copies nothing."""

    def __init__(self, samples: tuple[Sample, ...]) -> None:
        self.samples = samples
        self.source: list[int] = []
        self.start: list[int] = []
        self.stop: list[int] = []
        self.children: list[dict[int, int]] = []
        self.roots: dict[int, int] = {}
        for index in range(len(samples)):
            self._insert(index)

    def _token(self, sample: int, position: int) -> int:
        one = self.samples[sample]
        split = len(one.prompt_ids)
        return int(one.prompt_ids[position] if position < split else one.completion_ids[position - split])

    def _new(self, source: int, start: int, stop: int) -> int:
        self.source.append(source)
        self.start.append(start)
        self.stop.append(stop)
        self.children.append({})
        return len(self.source) - 1

    def _insert(self, index: int) -> None:
        length, at, siblings = len(self.samples[index]), 0, self.roots
        while at < length:
            token = self._token(index, at)
            if token not in siblings:
                siblings[token] = self._new(index, at, length)
                return
            node = siblings[token]
            at = self._shared(index, self.source[node], at + 1, min(length, self.stop[node]))
            if at == length:
                return
            if at < self.stop[node]:
                self._split(node, at)
            elif not self.children[node]:
                self.source[node], self.stop[node] = index, length
                return
            siblings = self.children[node]

    def _split(self, node: int, at: int) -> None:
        lower = self._new(self.source[node], at, self.stop[node])
        self.children[lower] = self.children[node]
        self.children[node] = {self._token(self.source[node], at): lower}
        self.stop[node] = at

    def _shared(self, a: int, b: int, start: int, stop: int) -> int:
        """First position from `start` on where samples a and b differ, or `stop`."""
        step = FIRST_COMPARED
        while start < stop:
            end = min(start + step, stop)
            for split in (len(self.samples[a].prompt_ids), len(self.samples[b].prompt_ids)):
                if start < split < end:
                    end = split
            differs = self._slice(a, start, end) != self._slice(b, start, end)
            if differs.any():
                return start + int(differs.argmax())
            start, step = end, step * 2
        return stop

    def _slice(self, sample: int, start: int, stop: int) -> Ids:
        """Tokens of a span that does not cross from prompt to completion."""
        one = self.samples[sample]
        split = len(one.prompt_ids)
        if start < split:
            return np.asarray(one.prompt_ids)[start:stop]
        return np.asarray(one.completion_ids)[start - split : stop - split]

    def _pieces(self, sample: int, start: int, stop: int) -> tuple[Ids, Ids]:
        one = self.samples[sample]
        split = len(one.prompt_ids)
        inner = np.asarray(one.completion_ids)
        return np.asarray(one.prompt_ids)[start:stop], inner[max(start - split, 0) : max(stop - split, 0)]

    def arrays(self) -> Arrays:
        order: list[int] = []
        parents: list[int] = []
        number: dict[int, int] = {}
        stack = [(node, -1) for node in reversed(self.roots.values())]
        while stack:
            node, parent = stack.pop()
            number[node] = len(order)
            order.append(node)
            parents.append(parent)
            stack.extend((child, number[node]) for child in reversed(self.children[node].values()))
        start = np.array([self.start[n] for n in order], dtype=np.int64)
        stop = np.array([self.stop[n] for n in order], dtype=np.int64)
        pieces = [piece for n in order for piece in self._pieces(self.source[n], self.start[n], self.stop[n])]
        return Arrays(
            ids_T=np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32),
            parent_N=np.array(parents, dtype=np.int64),
            start_N=start,
            stop_N=stop,
            offset_N=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(stop - start)[:-1]]) if order else start,
            node_S=np.array([self._last(index, number) for index in range(len(self.samples))], dtype=np.int64),
        )

    def _last(self, index: int, number: dict[int, int]) -> int:
        length, siblings, node, at = len(self.samples[index]), self.roots, -1, 0
        while at < length:
            node = siblings[self._token(index, at)]
            at, siblings = self.stop[node], self.children[node]
        return number.get(node, -1)
