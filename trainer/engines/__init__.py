"""Ways to compute the same loss over a trie: `engine(name, **options)` gives one."""

from __future__ import annotations

from trainer.engines.depth_first import DepthFirst
from trainer.engines.packed import Packed
from trainer.engines.separate import Separate
from trainer.engines.step import Engine, Step

__all__ = ["NAMES", "Engine", "Step", "engine"]

NAMES = ("separate", "packed", "depth_first")


def engine(name: str, *, chunk_tokens: int | None = None, recompute: bool | None = None) -> Engine:
    if name == "separate":
        return Separate()
    if name == "packed":
        return Packed()
    if name in ("depth_first", "depth-first"):
        return DepthFirst(chunk_tokens=chunk_tokens, recompute=recompute)
    raise ValueError(f"engine must be one of {', '.join(NAMES)}; got {name!r}")
