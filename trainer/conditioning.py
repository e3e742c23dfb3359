"""SDCC's teacher: the live view of each surviving token whose context in the final walk is another one.

    R_N = 1 2 3 4 6 7 9 10 12 ans       student: every survivor in the final walk, with gradient
    1 2 3 4 5         -> 6 7            teacher legs: what these had before them when they were sampled,
    1 2 3 4 6 7 8     -> 9 10           through the same engine without gradient and without dropout
    1 2 3 4 6 7 9 10 11 -> 12           ans saw what R_N holds: no leg

Paper: METHOD.md section 3. The legs share their trunk in a trie of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from trainer.engines.backbone import Backbone
from trainer.engines.step import Engine
from trainer.losses import Objective, sdcc
from trainer.physical import Walk, diverging
from trainer.schemes import Plan
from trainer.trie import Sample, TokenTrie


def legs(one: Plan) -> tuple[Sample | None, ...]:
    """For each of the plan's samples its tokens in their live view; None = the final walk has the same context."""
    originals = one.episode.samples
    found: list[Sample | None] = []
    for part, origin, flag in zip(
        one.samples, one.origins, diverging(Walk(one.samples, one.origins), originals), strict=True
    ):
        live = originals[origin.sample]
        context = live.ids()[: len(live.prompt_ids) + origin.start]
        # A first token that nothing predicts in one of the two views has no divergence to measure.
        compared = flag.any() and len(context) and len(part.prompt_ids)
        found.append(Sample(context, part.completion_ids) if compared else None)
    return tuple(found)


def conditioned(
    plans: Sequence[Plan],
    task: Objective,
    *,
    model: nn.Module,
    engine: Engine,
    strength: float,
    over: float | None = None,
) -> Objective:
    """`task` with the divergence of SDCC added, over a trie of the plans' samples in order.

    With `strength` 0 or without a leg it is `task` itself. `over`: as in `losses.sdcc`.
    """
    found = [leg for one in plans for leg in legs(one)]
    teachers = [leg for leg in found if leg is not None]
    if not strength or not teachers:
        return task
    training = model.training
    model.eval()
    try:
        states = iter(engine.states(model, TokenTrie.build(teachers)))
    finally:
        model.train(training)
    live = [None if leg is None else next(states) for leg in found]
    flags = [
        np.full(len(part.completion_ids), leg is not None)
        for part, leg in zip((s for one in plans for s in one.samples), found, strict=True)
    ]
    return sdcc(live, flags, Backbone(model).head, strength=strength, task=task, over=over)


def diverging_tokens(plans: Sequence[Plan]) -> int:
    """Tokens that have a teacher leg."""
    return sum(len(leg.completion_ids) for one in plans for leg in legs(one) if leg is not None)
