"""Ways to compute the same loss over a trie: `engine(name, **options)` gives one.

separate      every branch its own sequence: the reference, any backbone
packed        the trie as one sequence under an ancestor mask
depth_first   node by node along the tree, one path's keys and values held; chunk_tokens bounds the activations
auto          the best of these for backbone, trie, device and memory
mask4d        not the same loss: the paper's single copy of each thread's stream, as an engine that never re-encodes
"""

from __future__ import annotations

from trainer.engines.auto import Auto
from trainer.engines.depth_first import DepthFirst
from trainer.engines.mask4d import Mask4d
from trainer.engines.packed import Packed
from trainer.engines.separate import Separate
from trainer.engines.step import Engine, Step

__all__ = ["NAMES", "Engine", "Step", "engine"]

NAMES = ("auto", "separate", "packed", "depth_first", "mask4d")


def engine(name: str, *, chunk_tokens: int | None = None, recompute: bool | None = None) -> Engine:
    """`chunk_tokens`, `recompute`: of depth_first (and of auto where it chooses that); others hold no chunks."""
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1; got {chunk_tokens}")
    match name.replace("-", "_"):
        case "auto":
            return Auto(chunk_tokens=chunk_tokens)
        case "separate":
            return Separate()
        case "packed":
            return Packed()
        case "depth_first":
            return DepthFirst(chunk_tokens=chunk_tokens, recompute=recompute)
        case "mask4d":
            return Mask4d()
    raise ValueError(f"engine must be one of {', '.join(NAMES)}; got {name!r}")
