"""Where episodes come from: trees, or the rows of an earlier export. What does not come along is counted, by reason.

A long head (system text, tool schemas) can be shortened for a small machine, and calls too long for it left out. Both
are said in `notes` and happen before any scheme sees a token, so they are the same for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import orjson

from recorder.errors import SourceError
from recorder.message import Block, Head
from trainer.episodes import Episode
from trainer.export.folder import MANIFEST
from trainer.kin import families
from trainer.render import Renderer
from trainer.rollouts import Rollout
from trainer.sample import Sample
from trainer.samples import Choice, samples
from trainer.split import Split
from treebuilder.tree import Trajectory

TOO_LONG = "truncated to length"

ONE_FILE = {"": ["rows.jsonl"]}
"""What a manifest without `shards` stands for."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What there is to train on, and the sampled tokens that are not in it."""

    episodes: tuple[Episode, ...]
    excused: Mapping[str, int] = field(default_factory=dict)
    """Reason -> sampled tokens left out."""
    notes: tuple[str, ...] = ()
    """What makes the contexts differ from the recorded ones, for all schemes alike."""

    @classmethod
    def of(cls, samples: Sequence[Sample], *, name: str = "") -> Source:
        """One episode from samples at hand."""
        return cls((Episode.of(samples, name=name),))

    def part(self, split: str) -> Source:
        """The episodes of one part of a split; SourceError where there are none."""
        mine = tuple(episode for episode in self.episodes if episode.split == split)
        if not mine:
            there = ", ".join(sorted({episode.split or "no parts" for episode in self.episodes})) or "nothing"
            raise SourceError(f"split {split}: expected sessions in it, got none; there is {there}")
        return replace(self, episodes=mine)

    @property
    def sampled_tokens(self) -> int:
        return sum(episode.sampled_tokens for episode in self.episodes) + sum(self.excused.values())


def from_trajectories(
    trajectories: Iterable[Trajectory],
    renderer: Renderer,
    *,
    sessions: Collection[str] | None = None,
    choice: Choice = Choice(),  # noqa: B008  frozen
    rollouts: Mapping[str, Rollout] | None = None,
    split: Split | None = None,
    max_head_tokens: int | None = None,
    max_tokens: int | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Source:
    """One episode a session. Each trajectory is a family whole: `sessions` says which of it come along, None = all.

    `max_head_tokens` shortens each call's head, `max_tokens` leaves longer calls out.
    """
    found: list[Episode] = []
    excused: Counter[str] = Counter()
    shortened: set[int] = set()
    for trajectory in trajectories:
        if max_head_tokens is not None:
            trajectory, before = _short_heads(trajectory, renderer, max_head_tokens)
            shortened |= before
        family = families(trajectory, rollouts)
        for session in trajectory.sessions:
            if sessions is not None and session not in sessions:
                continue
            chosen = samples(trajectory, renderer, session=session, choice=choice, rollouts=rollouts, progress=progress)
            excused.update(chosen.excused_tokens)
            if chosen.samples:
                kinds = tuple(turn.kind.value for turn in chosen.turns)
                part = split.part(family[session]) if split else ""
                found.append(Episode(session, chosen.samples, kinds, family[session], part))
    if split is not None:
        split.check({episode.split for episode in found})
    notes = []
    if shortened:
        was = f"{min(shortened):,} to {max(shortened):,}" if len(shortened) > 1 else f"{min(shortened):,}"
        notes.append(
            f"heads of {was} tokens were shortened to {max_head_tokens:,} for all schemes alike: "
            "tool schemas left out, system text cut at its end"
        )
    return _within(found, excused, notes, max_tokens)


def from_export(path: Path, *, max_tokens: int | None = None) -> Source:
    """The episodes of a logittree export. SourceError where `path` holds none."""
    try:
        manifest = orjson.loads((path / MANIFEST).read_bytes())
        shards = [
            (part, f) for part, files in manifest.get("shards", ONE_FILE).items() for f in files if f.endswith(".jsonl")
        ]
        excused = {reason: int(left["tokens"]) for reason, left in manifest["conservation"]["excused"].items()}
        rows = [_Row.read(line, part) for part, f in shards for line in (path / f).read_bytes().splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise SourceError(f"{path}: expected an export in logittree format, got {type(e).__name__}: {e}") from e
    calls: dict[str, dict[int, list[tuple[_Row, _Span]]]] = {}
    for row in rows:
        for span in row.spans:
            calls.setdefault(row.trajectory, {}).setdefault(span.turn, []).append((row, span))
    found = []
    for trajectory, turns in calls.items():
        listed = [turns[turn] for turn in sorted(turns)]
        members = tuple(_sample(trajectory, places) for places in listed)
        kinds = tuple(places[0][1].kind for places in listed)
        first = listed[0][0][0]
        found.append(Episode(trajectory, members, kinds, first.family, first.split))
    return _within(found, Counter(excused), [], max_tokens)


@dataclass(frozen=True, slots=True)
class _Span:
    turn: int
    call: int
    thread: str
    kind: str
    start: int
    stop: int
    advantage: float


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """What is read of `trainer.export.logittree.Record`."""

    trajectory: str
    ids: np.ndarray[tuple[int], np.dtype[np.int32]]
    logprobs: list[float | None]
    spans: tuple[_Span, ...]
    split: str
    rollout: str | None
    reward: float | None
    group: str | None
    family: str

    @classmethod
    def read(cls, line: bytes, split: str) -> _Row:
        row = orjson.loads(line)
        owners = row["owners"]
        assert isinstance(owners, list)
        logprobs = row["logprobs"]
        assert isinstance(logprobs, list)
        spans = tuple(_Span(**{name: owner[name] for name in _Span.__slots__}) for owner in owners)
        ids = np.asarray(row["input_ids"], dtype=np.int32)
        rollout, reward, group = (row.get(name) for name in ("rollout", "reward", "group"))
        family = str(row.get("family", ""))
        return cls(str(row["trajectory"]), ids, logprobs, spans, split, rollout, reward, group, family)


def _sample(trajectory: str, places: list[tuple[_Row, _Span]]) -> Sample:
    """A call stands in two rows where another sampled the same tokens first; the row it ends in has its whole path."""
    start = min(span.start for _, span in places)
    row, last = max(places, key=lambda place: place[1].stop)
    known: list[float | None] = [None] * (last.stop - start)
    for at, span in places:
        known[span.start - start : span.stop - start] = at.logprobs[span.start : span.stop]
    return Sample(
        row.ids[:start],
        row.ids[start : last.stop],
        last.advantage,
        [value for value in known if value is not None] if None not in known else None,
        reward=row.reward,
        group=row.group,
        rollout=row.rollout or trajectory,
        thread=last.thread,
        call=last.call,
    )


def _within(found: Sequence[Episode], excused: Counter[str], notes: list[str], max_tokens: int | None) -> Source:
    """Leave out the calls that are longer than `max_tokens`."""
    if max_tokens is None:
        return Source(tuple(found), dict(excused), tuple(notes))
    kept, calls = [], 0
    for episode in found:
        fits = [len(sample) <= max_tokens for sample in episode.samples]
        calls += fits.count(False)
        excused[TOO_LONG] += sum(len(s.completion_ids) for s, fit in zip(episode.samples, fits, strict=True) if not fit)
        members = [(s, k) for s, k, fit in zip(episode.samples, episode.kinds, fits, strict=True) if fit]
        if members:
            kept.append(replace(episode, samples=tuple(s for s, _ in members), kinds=tuple(k for _, k in members)))
    if calls:
        notes.append(f"{calls:,} calls of more than {max_tokens:,} tokens were left out")
    else:
        del excused[TOO_LONG]
    return Source(tuple(kept), dict(excused), tuple(notes))


def _short_heads(trajectory: Trajectory, renderer: Renderer, limit: int) -> tuple[Trajectory, set[int]]:
    """The trajectory under shortened heads, and the sizes the heads had, in tokens."""
    heads: dict[bytes, tuple[Head, int]] = {}
    turns = []
    for turn in trajectory.turns:
        if turn.head.digest not in heads:
            heads[turn.head.digest] = _short(turn.head, renderer, limit)
        turns.append(replace(turn, head=heads[turn.head.digest][0]))
    return Trajectory(tuple(turns)), {size for head, size in heads.values() if size > limit}


def _short(head: Head, renderer: Renderer, limit: int) -> tuple[Head, int]:
    def ids(text: str) -> list[int]:
        return list(renderer.tokenizer.encode(text, add_special_tokens=False))

    size = sum(len(ids(text)) for text in (*(b.plain for b in head.system), *_spelled(head)))
    if size <= limit:
        return head, size
    left, kept = limit, []
    for block in head.system:
        mine = ids(block.plain)[:left]
        left -= len(mine)
        if mine:
            kept.append(Block("text", str(renderer.tokenizer.decode(mine)).rstrip("\ufffd")))
    return Head(head.model, tuple(kept), ()), size


def _spelled(head: Head) -> Iterable[str]:
    return (f"{tool.name} {tool.description} {tool.schema}" for tool in head.tools)
