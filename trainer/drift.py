"""How far a scheme's contexts are from those the model had: |log p(y | trained) - log p(y | rollout)|, same weights.

A test with a calibrated zero (METHOD.md section 1): logittree sits at the floor, which is kernel noise; what stands
above it is a wrong context. The rollout's side is what the serving engine reported or, where it reported nothing,
`trainer.liveview`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn

from recorder.errors import TrainError
from trainer.causes import NONE, Decode, causes, evicted_share
from trainer.engines.step import Engine
from trainer.episodes import Episode
from trainer.liveview import divergence, hidden_states, score
from trainer.schemes import OWN_ENGINE, SCHEMES, Plan, engine_for, plan
from trainer.sources import Source
from trainer.trie import Floats, TokenTrie

Reference = Literal["auto", "served", "live"]
COMPARED = tuple(name for name in SCHEMES if name not in OWN_ENGINE and name != "sdcc")
"""Schemes in the table if none are named: sdcc has the contexts of naive-compressed."""


@dataclass(frozen=True, slots=True)
class DriftRow:
    """One scheme, over all its tokens or over those with one cause."""

    scheme: str
    cause: str
    """Kind of the edit that a token's trained context is wrong about; `none` = it is right; empty = all causes."""
    tokens: int
    """Compared."""
    lost: int
    """Sampled tokens that the scheme cannot score at all; counted on the scheme's own row."""
    mean: float | None
    """Nats, as are p99, max and kl; None = no token to compare."""
    p99: float | None
    max: float | None
    kl: float | None = None
    """Mean KL(rollout || trained) of the whole next-token distribution; None = not asked for."""

    @property
    def share(self) -> float:
        """Of the sampled tokens, those the scheme can score."""
        return self.tokens / (self.tokens + self.lost) if self.tokens + self.lost else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """The table, and what it was measured on."""

    rows: tuple[DriftRow, ...]
    """By scheme: first over all causes, then cause by cause."""
    references: Mapping[str, int]
    """`served` and `live view` -> sampled tokens compared with each."""
    depth: float
    """E[c | c > 0], c = evicted share of an episode's context tokens (METHOD.md section 1); 0 = nothing was evicted."""
    frequency: float
    """Pr[c > 0] over the episodes."""
    unique_tokens: int
    """Trie tokens of all contexts the model had."""
    engine: str
    deviations: Mapping[str, Floats]
    """Scheme -> |dlogp| of every token compared, nats, for plots."""
    notes: tuple[str, ...] = ()
    """What makes these contexts differ from the recorded ones, for all schemes alike."""

    def row(self, scheme: str, cause: str = "") -> DriftRow:
        return next(row for row in self.rows if (row.scheme, row.cause) == (scheme, cause))


def drift(
    source: Source,
    *,
    model: nn.Module,
    schemes: Sequence[str] = COMPARED,
    engine: str = "auto",
    reference: Reference = "auto",
    kl: bool = False,
    decode: Decode | None = None,
    step: Callable[[str], None] = lambda doing: None,
) -> Drift:
    """Measure schemes on the source's episodes. ValueError: unknown scheme or engine. TrainError: no episode.

    `kl` also compares whole distributions, which holds a hidden state for every token. `decode` tells a template that
    renders history otherwise from text that was encoded again. `step` hears what is being done.
    """
    episodes = source.episodes
    if not episodes:
        raise TrainError("expected sampled tokens to compare, got none in any session")
    plans = {scheme: [plan(scheme, episode) for episode in episodes] for scheme in schemes}
    measured: dict[str, list[_Measured]] = {scheme: [] for scheme in schemes}
    references: dict[str, int] = {}
    for number, episode in enumerate(episodes):
        name = episode.name or f"episode {number + 1}"
        step(f"{name}: rollout")
        rollout = _rollout(model, episode, reference, kl=kl)
        for label, count in rollout.sources.items():
            references[label] = references.get(label, 0) + count
        for chosen, members in _by_engine(schemes, engine):
            step(f"{name}: {', '.join(members)}")
            together = [plans[scheme][number] for scheme in members]
            for scheme, done in zip(members, _measure(together, rollout, model, chosen, decode, kl=kl), strict=True):
                measured[scheme].append(done)
    rows = [row for scheme in schemes for row in _rows(scheme, plans[scheme], measured[scheme])]
    evicted = [c for c in map(evicted_share, episodes) if c > 0]
    return Drift(
        rows=tuple(rows),
        references=references,
        depth=float(np.mean(evicted)) if evicted else 0.0,
        frequency=len(evicted) / len(episodes) if episodes else 0.0,
        unique_tokens=TokenTrie.build(s for e in episodes for s in e.samples).unique_tokens,
        engine=engine,
        deviations={scheme: np.concatenate([np.zeros(0), *(m.off_K for m in measured[scheme])]) for scheme in schemes},
        notes=source.notes,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Rollout:
    """What each sampled token was worth where it was sampled, by sample."""

    logprobs: tuple[Floats, ...]
    hidden: tuple[Tensor, ...]
    sources: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """Tokens that both sides could score."""

    off_K: Floats
    cause_K: tuple[str, ...]
    kl_K: Floats | None


def _rollout(model: nn.Module, episode: Episode, reference: Reference, *, kl: bool) -> _Rollout:
    served = [s.logprobs is not None and reference != "live" for s in episode.samples]
    if reference == "served" and not all(served):
        missing = served.index(False)
        raise ValueError(f"expected served logprobs on every call, got none on sample {missing} of {episode.name}")
    hidden: tuple[Tensor, ...] = ()
    if kl or not all(served):
        hidden = hidden_states(model, episode.samples)
    logprobs: list[Floats] = []
    sources: dict[str, int] = {}
    for index, sample in enumerate(episode.samples):
        if served[index]:
            logprobs.append(np.asarray(sample.logprobs, dtype=np.float64))
        else:
            logprobs.append(_numbers(score(model, hidden[index], np.asarray(sample.completion_ids))))
        label = "served" if served[index] else "live view"
        sources[label] = sources.get(label, 0) + len(sample.completion_ids)
    return _Rollout(tuple(logprobs), hidden, sources)


def _by_engine(schemes: Sequence[str], engine: str) -> list[tuple[Engine, list[str]]]:
    """The schemes that one engine can score together, and those that bring their own."""
    shared = [scheme for scheme in schemes if scheme not in OWN_ENGINE]
    found = [(engine_for(scheme, "auto"), [scheme]) for scheme in schemes if scheme in OWN_ENGINE]
    return [(engine_for(shared[0], engine), shared), *found] if shared else found


def _measure(
    plans: Sequence[Plan], rollout: _Rollout, model: nn.Module, engine: Engine, decode: Decode | None, *, kl: bool
) -> Iterator[_Measured]:
    """All plans in one trie: R_N is a branch of logittree's, and H_T goes along with another up to the first edit."""
    samples = [s for one in plans for s in one.samples]
    trie = TokenTrie.build(samples)
    states: Sequence[Tensor] = engine.states(model, trie) if kl else ()
    if kl:
        found = [score(model, hidden, np.array(s.completion_ids)) for hidden, s in zip(states, samples, strict=True)]
    else:
        found = list(engine.logprobs(model, trie))
    at = 0
    for one in plans:
        mine = slice(at, at + len(one.samples))
        at = mine.stop
        yield _compare(one, found[mine], states[mine], rollout, model, decode)


def _compare(
    one: Plan,
    found: Sequence[Tensor],
    states: Sequence[Tensor],
    rollout: _Rollout,
    model: nn.Module,
    decode: Decode | None,
) -> _Measured:
    """`states`: empty = whole distributions are not compared."""
    off: list[Floats] = [np.zeros(0)]
    divergences: list[Floats] = [np.zeros(0)]
    blamed: list[str] = []
    for index, (origin, cause) in enumerate(zip(one.origins, causes(one, decode), strict=True)):
        span = slice(origin.start, origin.stop)
        off_K = np.abs(_numbers(found[index]) - rollout.logprobs[origin.sample][span])
        known_K = ~np.isnan(off_K)
        off.append(off_K[known_K])
        blamed += [cause] * int(known_K.sum())
        if len(states):
            kl_K = divergence(model, rollout.hidden[origin.sample][span], states[index])
            divergences.append(_numbers(kl_K)[known_K])
    return _Measured(np.concatenate(off), tuple(blamed), np.concatenate(divergences) if len(states) else None)


def _rows(scheme: str, plans: Sequence[Plan], measured: Sequence[_Measured]) -> Iterator[DriftRow]:
    off_K = np.concatenate([np.zeros(0), *(m.off_K for m in measured)])
    cause_K = np.array([cause for m in measured for cause in m.cause_K], dtype=object)
    kls = [m.kl_K for m in measured if m.kl_K is not None]
    kl_K = np.concatenate(kls) if kls else None
    yield _row(scheme, "", off_K, kl_K, lost=sum(one.lost_tokens for one in plans))
    for cause in sorted(set(cause_K), key=lambda name: (name != NONE, name)):
        chosen_K = cause_K == cause
        yield _row(scheme, cause, off_K[chosen_K], None if kl_K is None else kl_K[chosen_K], lost=0)


def _row(scheme: str, cause: str, off_K: Floats, kl_K: Floats | None, *, lost: int) -> DriftRow:
    if not len(off_K):
        return DriftRow(scheme, cause, 0, lost, None, None, None)
    return DriftRow(
        scheme=scheme,
        cause=cause,
        tokens=len(off_K),
        lost=lost,
        mean=float(off_K.mean()),
        p99=float(np.quantile(off_K, 0.99)),
        max=float(off_K.max()),
        kl=None if kl_K is None else float(kl_K.mean()),
    )


def _numbers(values: Tensor) -> Floats:
    return values.detach().to(device="cpu", dtype=torch.float64).numpy()


def json_rows(found: Drift) -> list[dict[str, object]]:
    """One object a row, with what all rows share on each."""
    shared = {
        "reference": "+".join(found.references),
        "depth": found.depth,
        "frequency": found.frequency,
        "engine": found.engine,
        "notes": list(found.notes),
    }
    return [{**asdict(row), "share": row.share, **shared} for row in found.rows]


def table(found: Drift) -> Table:
    """For the terminal: a line a scheme, and under it a line a cause."""
    with_kl = any(row.kl is not None for row in found.rows)
    reference = " and ".join(found.references)
    made = Table(title=f"|Δ log p| against the rollout ({reference}), nats", title_justify="left")
    made.add_column("scheme / cause")
    for name in ("mean", "p99", "max", *(["KL"] if with_kl else []), "tokens", "lost", "scored"):
        made.add_column(name, justify="right")
    for row in found.rows:
        numbers = [_shown(value) for value in (row.mean, row.p99, row.max, *([row.kl] if with_kl else []))]
        if row.cause:
            made.add_row(f"  {row.cause}", *numbers, f"{row.tokens:,}", "", "", style="dim")
        else:
            made.add_row(row.scheme, *numbers, f"{row.tokens:,}", f"{row.lost:,}", f"{row.share:.1%}", style="bold")
    said = [
        f"{found.frequency:.0%} of the episodes lost context; these lost {found.depth:.1%} of their context tokens",
        f"{found.unique_tokens:,} distinct context tokens; engine {found.engine}",
        *found.notes,
    ]
    made.caption, made.caption_justify = "\n".join(said), "left"
    return made


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}" if value < 1e-3 else f"{value:.4f}"


def plot(found: Drift, path: Path) -> None:
    """Write how many of each scheme's tokens drift by how much. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for scheme, off_K in found.deviations.items():
        if len(off_K):
            axes.step(np.sort(np.maximum(off_K, 1e-9)), 1 - np.arange(len(off_K)) / len(off_K), label=scheme)
    axes.set(xscale="log", xlabel="|Δ log p| against the rollout, nats", ylabel="share of tokens that drift by more")
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
