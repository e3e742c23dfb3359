"""Ways to compute the same loss over a trie: `engine(name, **options)` gives one."""

from __future__ import annotations

from trainer.engines.separate import Separate
from trainer.engines.step import Engine, Step

__all__ = ["NAMES", "Engine", "Step", "engine"]

NAMES = ("separate",)


def engine(name: str) -> Engine:
    if name == "separate":
        return Separate()
    raise ValueError(f"engine must be one of {', '.join(NAMES)}; got {name!r}")
