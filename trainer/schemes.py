"""A scheme turns what an episode sampled into the sequences it is trained on, as samples again: any engine runs any.

    running example of trie.py, four calls of one thread; H_T = 1..12 ans, R_N = 1 2 3 4 6 7 9 10 12 ans

    logittree          every sample as it was: 1..7 | 1-4,6,7 -> 8 9 10 | 1-4,6,7,9,10 -> 11 12 | ... -> ans
    naive-compressed   R_N as one sequence; 5, 8 and 11 are lost, the rest is scored as if they had never been there
    sdcc               naive-compressed, with a divergence to the live view at 6 7, 9 10, 12 (trainer/conditioning.py)
    naive-full         H_T as one sequence; nothing is lost, and 8.. are scored although 5 (then 8, then 11) had gone
    mask4d             the samples of logittree, computed by the engine of that name from H_T under a mask

A sequence with loss in several places is one sample per run of loss-bearing tokens; the trie joins them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.engines import engine as make_engine
from trainer.engines.step import Engine
from trainer.episodes import Episode
from trainer.physical import Walk, naive_compressed, naive_full
from trainer.trie import Owner, Sample

OWN_ENGINE = {"mask4d": "mask4d"}
"""Schemes that are an engine's own: it lays each thread out as its physical stream by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """An episode under a scheme."""

    scheme: str
    episode: Episode
    samples: tuple[Sample, ...]
    """What goes into the token trie; loss on their completions."""
    origins: tuple[Owner, ...]
    """One per sample: which tokens of which of the episode's completions its own are."""
    lost: tuple[Owner, ...]
    """Sampled tokens that the scheme has no place for."""

    @property
    def lost_tokens(self) -> int:
        return sum(owner.stop - owner.start for owner in self.lost)

    @property
    def contextless_tokens(self) -> int:
        """First tokens of an empty prompt: nothing predicts them."""
        return sum(len(s.prompt_ids) == 0 and len(s.completion_ids) > 0 for s in self.samples)

    @property
    def trained_tokens(self) -> int:
        return sum(len(s.completion_ids) for s in self.samples) - self.contextless_tokens


def plan(scheme: str, episode: Episode) -> Plan:
    """Lay an episode out as `scheme` trains it. ValueError for an unknown scheme."""
    walk = _scheme(scheme)(episode.samples)
    scored = [np.zeros(len(sample.completion_ids), dtype=bool) for sample in episode.samples]
    for origin in walk.origins:
        assert not scored[origin.sample][origin.start : origin.stop].any(), "a scheme scores no token twice"
        scored[origin.sample][origin.start : origin.stop] = True
    lost = tuple(Owner(i, start, stop) for i, done in enumerate(scored) for start, stop in _gaps(done))
    return Plan(scheme, episode, walk.samples, walk.origins, lost)


def engine_for(scheme: str, name: str, *, chunk_tokens: int | None = None) -> Engine:
    """The engine called `name` for a scheme, or the scheme's own. ValueError where the two do not go together."""
    own = OWN_ENGINE.get(scheme)
    if name == own or (own is not None and name == "auto"):
        return make_engine(own)
    if own is not None or name in OWN_ENGINE.values():
        expected = f"engine {own}" if own is not None else "another engine"
        raise ValueError(f"scheme {scheme}: expected {expected}, got {name}, which computes something else")
    return make_engine(name, chunk_tokens=chunk_tokens)


def _scheme(name: str) -> Callable[[Sequence[Sample]], Walk]:
    if name not in SCHEMES:
        raise ValueError(f"scheme: expected one of {', '.join(SCHEMES)}, got {name!r}")
    return SCHEMES[name]


def _logittree(samples: Sequence[Sample]) -> Walk:
    sampled = [(i, sample) for i, sample in enumerate(samples) if len(sample.completion_ids)]
    return Walk(tuple(s for _, s in sampled), tuple(Owner(i, 0, len(s.completion_ids)) for i, s in sampled))


SCHEMES: dict[str, Callable[[Sequence[Sample]], Walk]] = {
    "logittree": _logittree,
    "sdcc": naive_compressed,
    "naive-compressed": naive_compressed,
    "naive-full": naive_full,
    "mask4d": _logittree,
}


def _gaps(done: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """Runs of False."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], done, [True]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
