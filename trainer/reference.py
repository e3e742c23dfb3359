"""The reference policy's logprobs, from the engine that trains: one forward of each trie before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from trainer.engines.step import Engine
from trainer.ranks import Ranks
from trainer.schemes import Plan
from trainer.trie import Floats, TokenTrie


def with_reference(
    plans: Sequence[Plan], model: nn.Module, *, engine: Engine, group: int = 1, ranks: Ranks | None = None
) -> list[Plan]:
    """The same plans, every sample with `ref_logprobs` under `model`. Ranks share the work."""
    ranks = ranks or Ranks()
    mine: dict[int, list[Floats]] = {}
    training = model.training
    model.eval()
    for at in range(ranks.rank * group, len(plans), ranks.count * group):
        together = plans[at : at + group]
        found = iter(engine.logprobs(model, TokenTrie.build(s for one in together for s in one.samples)))
        for offset, one in enumerate(together):
            mine[at + offset] = [next(found).double().cpu().numpy() for _ in one.samples]
    model.train(training)
    known: dict[int, list[Floats]] = {}
    for part in ranks.gathered(mine):
        known.update(part)
    return [
        replace(
            one,
            samples=tuple(
                replace(sample, ref_logprobs=np.asarray(logprobs))
                for sample, logprobs in zip(one.samples, known[index], strict=True)
            ),
        )
        for index, one in enumerate(plans)
    ]
