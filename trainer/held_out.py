"""Episodes kept from training, to see whether it helps on others: whole rollouts, chosen by a seed."""

from __future__ import annotations

import numpy as np

from recorder.errors import TrainError
from trainer.sources import Source

HELD_OUT = "held out for evaluation"


def split(source: Source, *, share: float, seed: int) -> tuple[Source, Source]:
    """What trains, and `share` of the episodes, at least one, to evaluate on. TrainError where none would be left."""
    count = len(source.episodes)
    held = max(1, round(share * count))
    if held >= count:
        raise TrainError(f"held out: expected more than {held} episodes to split {share:g} off, got {count}")
    chosen = set(np.random.default_rng(seed).permutation(count)[:held].tolist())
    training = tuple(one for at, one in enumerate(source.episodes) if at not in chosen)
    evaluated = tuple(one for at, one in enumerate(source.episodes) if at in chosen)
    tokens = sum(one.sampled_tokens for one in evaluated)
    return (
        Source(training, {**source.excused, HELD_OUT: tokens}, source.notes),
        Source(evaluated, notes=source.notes),
    )
