"""Choose an engine by backbone, what each would compute for this trie, device and memory, and say why."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from trainer.engines import cost
from trainer.engines.backbone import Backbone
from trainer.engines.depth_first import DepthFirst
from trainer.engines.packed import Packed
from trainer.engines.probe import obstacle, takes_kernels
from trainer.engines.separate import Separate
from trainer.engines.step import Engine, Step, Targets
from trainer.losses import Objective
from trainer.trie import TokenTrie

logger = logging.getLogger("memorywalker.trainer")

ACTIVATION_BYTES = (
    34  # per token, layer and hidden unit in 16 bit, attention maps not kept: Korthikanti et al. 2022, eq. 2
)
LIGHTER = 0.95  # ours: packed holds the activations of the whole trie and has to be worth that
CHUNK_TOKENS = 4096  # DESIGN.md's example; the activations of a chunk are then small against one path's keys and values


@dataclass(frozen=True, slots=True)
class Auto:
    chunk_tokens: int | None = None
    """For depth_first; None = only where memory asks for it."""

    def backward(self, model: nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        engine, why = choose(model, trie, chunk_tokens=self.chunk_tokens)
        step = engine.backward(model, trie, objective=objective)
        return replace(step, engine=f"{step.engine} (auto: {why})")

    def logprobs(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        engine, _ = choose(model, trie, chunk_tokens=self.chunk_tokens)
        return engine.logprobs(model, trie)

    def states(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        engine, _ = choose(model, trie, chunk_tokens=self.chunk_tokens)
        return engine.states(model, trie)


def choose(
    model: nn.Module, trie: TokenTrie, *, chunk_tokens: int | None = None, free_bytes: int | None = None
) -> tuple[Engine, str]:
    """The engine, and the reason in a few words. `free_bytes`: None = as the device says."""
    backbone = Backbone(model)
    if why := obstacle(backbone, trie.longest):
        return Separate(), why
    if trie.ratio < 1.01:
        return Separate(), f"R = {trie.ratio:.2f}, nothing to share"
    before_U = Targets.of(trie).before_U
    if not len(before_U):
        return Separate(), "nothing is sampled"
    free = _free(backbone.device) if free_bytes is None else free_bytes
    config = backbone.config
    per_token = ACTIVATION_BYTES * config.num_hidden_layers * config.hidden_size * backbone.dtype.itemsize // 2
    shape = f"R = {trie.ratio:.2f}, {trie.unique_tokens} tokens on {backbone.device.type}"
    fits = per_token * trie.unique_tokens < free // 2
    if backbone.device.type == "cuda" and chunk_tokens is None and fits:
        return Packed(), f"{shape}, activations fit"
    if chunk_tokens is None and per_token * trie.longest > free // 2:
        chunk_tokens = CHUNK_TOKENS
        shape += f", a path of {trie.longest} does not fit: recomputing in chunks of {chunk_tokens}"
    by_path, by_pack = DepthFirst(chunk_tokens=chunk_tokens), Packed()
    kernels = takes_kernels(backbone)
    apart = cost.separate(trie, before_U).operations(backbone)
    walk = cost.depth_first(
        by_path.plan(trie, before_U, kernels=kernels), kernels=kernels, recompute=by_path.recomputes
    )
    walked = walk.operations(backbone) / apart
    packed = cost.packed(by_pack.plan(trie, before_U), kernels=kernels).operations(backbone) / apart
    if chunk_tokens is None and fits and packed < min(LIGHTER * walked, 1):
        return by_pack, f"{shape}, {packed:.0%} of separate's work, depth_first {walked:.0%}"
    if walked > 1 and chunk_tokens is None:
        return Separate(), f"{shape}, depth_first would be {walked:.0%} of its work"
    return by_path, f"{shape}, {walked:.0%} of separate's work"


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
