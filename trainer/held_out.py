"""Episodes kept from training, to see whether it helps on others: whole families of rollouts, chosen by a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recorder.errors import TrainError
from trainer.sources import Source

HELD_OUT = "held out for evaluation"


def split(source: Source, *, share: float, seed: int) -> tuple[Source, Source]:
    """What trains, and about `share` of the episodes to evaluate on, with all that share a trunk with them. TrainError
    where none would be left."""
    count = len(source.episodes)
    families = [one.family or one.name for one in source.episodes]
    names = list(dict.fromkeys(families))
    chosen: set[str] = set()
    for at in np.random.default_rng(seed).permutation(len(names))[:-1]:
        if sum(family in chosen for family in families) >= max(1, round(share * count)):
            break
        chosen.add(names[at])
    if not chosen:
        expected = f"two families of episodes at least to split {share:g} off"
        raise TrainError(f"held out: expected {expected}, got {count} episodes that share a trunk")
    training = tuple(one for one, family in zip(source.episodes, families, strict=True) if family not in chosen)
    evaluated = tuple(one for one, family in zip(source.episodes, families, strict=True) if family in chosen)
    tokens = sum(one.sampled_tokens for one in evaluated)
    return (
        Source(training, {**source.excused, HELD_OUT: tokens}, source.notes),
        Source(evaluated, notes=source.notes),
    )


def parts(source: Source) -> tuple[Source, Source | None]:
    """The parts of an export with a split: what is in `train` trains, what is in `eval` is held out, others are left
    out. A source without parts trains whole. SourceError where there are parts, and none is `train`."""
    there = {one.split for one in source.episodes} - {""}
    if not there:
        return source, None
    training = source.part("train")
    others = [one for one in source.episodes if one.split != "train"]
    excused = {**source.excused, HELD_OUT: sum(one.sampled_tokens for one in others)} if others else source.excused
    held = replace(source.part("eval"), excused={}) if "eval" in there else None
    return replace(training, excused=excused), held
