"""One thread's tokens as time saw them: every token once, in the order it appeared, with the span of time it was alive.

    call  view (ids)                               new in H_T        evicted
    0     1 2 3 4 5 6 7                            1 2 3 4 5 6 7
    1     1 2 3 4 6 7 8 9 10                       8 9 10            5
    2     1 2 3 4 6 7 9 10 11 12                   11 12             8
    3     1 2 3 4 6 7 9 10 12 ans                  ans               11

    H_T   = 1 2 3 4 5 6 7 8 9 10 11 12 ans         the stream of mask4d; naive-full: as if nothing was evicted
    R_N   = 1 2 3 4 6 7 9 10 12 ans                the last view: naive-compressed
    5 lives [4, 7), 8 lives [7, 10), 11 lives [10, 12), all others to the end (METHOD.md section 3)

A walk is given as samples on one path, one for each run of trained tokens, so that any engine can train on it.
"""

# H tokens of the stream, C calls, L tokens of one call's view

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainer.align import kept
from trainer.trie import Ids, Index, Owner, Sample, TokenTrie


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The physical stream of one thread."""

    samples: tuple[Sample, ...]
    ids_H: Ids
    omega_H: Index
    """Length of the stream when the token was evicted; len(ids_H) = never. It was born at its own index (tau)."""
    views: tuple[Index, ...]
    """For each call: where in the stream the tokens of `R_c` are, in the order in which the model saw them."""
    born: tuple[int, ...]
    """For each call: length of the stream before its new tokens. What it sampled is the last len(S_c) of these."""


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """One causal sequence with the sampled tokens that are trained on it."""

    samples: tuple[Sample, ...]
    """One for each run of trained tokens; each one's prompt is the whole sequence before it."""
    origins: tuple[Owner, ...]
    """Which of the original samples each run was sampled by, and where in its completion_ids."""

    def trie(self) -> TokenTrie:
        """A single branch."""
        return TokenTrie.build(self.samples)


def threads(samples: Sequence[Sample]) -> list[tuple[int, ...]]:
    """Indices of the samples of each (rollout, thread), in order of first appearance."""
    found: dict[object, list[int]] = {}
    for index, sample in enumerate(samples):
        found.setdefault((sample.rollout, sample.thread), []).append(index)
    return [tuple(indices) for indices in found.values()]


def stream(samples: Sequence[Sample]) -> Stream:
    """Lay the calls of one thread out in time. What a sample does not say was kept is inferred from tokens."""
    pieces: list[Ids] = []
    views: list[Index] = []
    born: list[int] = []
    evicted: list[tuple[Index, int]] = []
    length = 0
    for number, sample in enumerate(samples):
        ids = sample.ids()
        view = np.full(len(ids), -1, dtype=np.int64)
        if views:
            before = views[-1]
            runs = sample.kept
            if runs is None:
                runs = kept(samples[number - 1].ids(), np.asarray(sample.prompt_ids))
            for run in runs:
                view[run.after : run.after + run.length] = before[run.before : run.before + run.length]
            evicted.append((np.setdiff1d(before, view, assume_unique=False), length))
        new = view < 0
        view[new] = np.arange(length, length + new.sum())
        pieces.append(ids[new])
        views.append(view)
        born.append(length)
        length += int(new.sum())
    omega = np.full(length, length, dtype=np.int64)
    for gone, when in evicted:
        omega[gone] = when
    ids_H = np.concatenate([np.zeros(0, dtype=np.int32), *pieces])
    return Stream(tuple(samples), ids_H, omega, tuple(views), tuple(born))


def naive_full(samples: Sequence[Sample]) -> Walk:
    """H_T of each thread as one plain causal sequence, every sampled token trained: keeps evicted text too long."""
    return _joined([_walk(one, len(one.ids_H), indices) for indices, one in _streams(samples)])


def naive_compressed(samples: Sequence[Sample]) -> Walk:
    """R_N of each thread, its last view, surviving sampled tokens trained: every edit is there too early."""
    return _joined([_walk(one, None, indices) for indices, one in _streams(samples)])


def diverging(walk: Walk, samples: Sequence[Sample]) -> list[NDArray[np.bool_]]:
    """For each of the walk's samples, which of its tokens had another prefix when they were sampled (the set C)."""
    found = []
    for one, origin in zip(walk.samples, walk.origins, strict=True):
        live, first = samples[origin.sample], len(one.prompt_ids)
        begin = len(live.prompt_ids) + origin.start
        same = begin == first and bool((live.ids()[:begin] == np.asarray(one.prompt_ids)).all())
        found.append(np.full(len(one.completion_ids), not same))
    return found


def _streams(samples: Sequence[Sample]) -> list[tuple[tuple[int, ...], Stream]]:
    return [(indices, stream([samples[i] for i in indices])) for indices in threads(samples)]


def _joined(walks: list[Walk]) -> Walk:
    return Walk(tuple(s for walk in walks for s in walk.samples), tuple(o for walk in walks for o in walk.origins))


def _walk(one: Stream, full: int | None, indices: tuple[int, ...]) -> Walk:
    """`full`: the whole stream in time order; None = the last call's view."""
    order = np.arange(full) if full is not None else one.views[-1]
    ids = one.ids_H[order]
    ids.flags.writeable = False
    call_H = np.full(len(one.ids_H), -1, dtype=np.int64)
    offset_H = np.zeros(len(one.ids_H), dtype=np.int64)
    for call, sample in enumerate(one.samples):
        size = len(sample.completion_ids)
        sampled = one.views[call][len(sample.prompt_ids) :]
        call_H[sampled], offset_H[sampled] = call, np.arange(size)
    call_L, offset_L = call_H[order], offset_H[order]
    borders = np.flatnonzero((np.diff(call_L) != 0) | (np.diff(offset_L) != 1)) + 1
    samples, origins = [], []
    for start, stop in zip([0, *borders], [*borders, len(order)], strict=True):
        if start == stop or call_L[start] < 0:
            continue
        source = one.samples[call_L[start]]
        part = slice(int(offset_L[start]), int(offset_L[start]) + int(stop - start))
        samples.append(
            replace(
                source,
                prompt_ids=ids[:start],
                completion_ids=ids[start:stop],
                logprobs=None if source.logprobs is None else source.logprobs[part],
                ref_logprobs=None if source.ref_logprobs is None else source.ref_logprobs[part],
                kept=None,
            )
        )
        origins.append(Owner(indices[call_L[start]], part.start, part.stop))
    return Walk(tuple(samples), tuple(origins))
