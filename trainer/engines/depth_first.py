"""Visit the trie depth first: forward on the way down, backward on the way up, one path's keys and values held for all.

    forward  trunk ──> leg ──> (backward leg) ──> spine ──> ... ──> (backward spine) ──> (backward trunk)

A unit's keys and values lie in the path's buffer at its depth. Its own backward runs when everything below has added to
the gradient of that stretch. With recomputation the way down is made without gradient and each unit is forwarded again
on the way up, so that the activations of one unit are all that is held: context length stops being the limit.
"""

# L tokens of a unit, J = seen + L, H heads, D head size

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from trainer.engines.attention import Path, available, using
from trainer.engines.backbone import Backbone, drops
from trainer.engines.head import Scorer
from trainer.engines.separate import instead_of
from trainer.engines.step import Step, Targets
from trainer.engines.units import Plan, Unit, plan, runs, seen_mask
from trainer.losses import Objective
from trainer.trie import TokenTrie


@dataclass(frozen=True, slots=True)
class DepthFirst:
    chunk_tokens: int | None = None
    """Most tokens of one call of the model; None = a node at a time."""
    recompute: bool | None = None
    """Forward again on the way up instead of holding activations; None = if chunk_tokens is given."""
    bush_tokens: int = 768
    """What is smaller is computed together up to this size; 0 = a node at a time. Ours: benchmarks/engines.md."""
    kernels: bool = True
    """Attend without masks where trainer/engines/attention.py can; False = caches and masks everywhere."""

    def backward(self, model: nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        recompute = self.chunk_tokens is not None if self.recompute is None else self.recompute
        if recompute and drops(model):
            raise ValueError("recomputation needs a model without dropout: set recompute=False, or its dropout to 0")
        return self._run(model, trie, objective, recompute=recompute)

    def logprobs(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self._run(model, trie, None, recompute=False).logprobs

    def states(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self._run(model, trie, None, recompute=False, keep=True).states

    def _run(
        self, model: nn.Module, trie: TokenTrie, objective: Objective | None, *, recompute: bool, keep: bool = False
    ) -> Step:
        backbone, targets = Backbone(model), Targets.of(trie)
        if why := backbone.obstacle(trie.longest):
            return instead_of("depth_first", model, trie, objective, keep=keep, why=why)
        scorer = Scorer(backbone, targets, objective=objective, keep=keep)
        with backbone.sharing():
            fast = self.kernels and available(backbone, model)
            cut = plan(
                trie, targets.before_U, chunk_tokens=self.chunk_tokens, bush_tokens=self.bush_tokens, spines=fast
            )
            _Visit(backbone, scorer, trie, cut, fast=fast, recompute=recompute, train=objective is not None).all()
        return scorer.step("depth_first")


class _Visit:
    def __init__(
        self,
        backbone: Backbone,
        scorer: Scorer,
        trie: TokenTrie,
        cut: Plan,
        *,
        fast: bool,
        recompute: bool,
        train: bool,
    ) -> None:
        self.backbone = backbone
        self.scorer = scorer
        self.trie = trie
        self.cut = cut
        self.recompute = recompute
        self.train = train
        self.path = Path(cut.longest_path, gradient=train) if fast else None
        self.cache = None if fast else PathCache(cut.longest_path, gradient=train)
        self.inner = {unit.parent for unit in cut.units}

    def all(self) -> None:
        waiting: list[tuple[int, Tensor | None]] = []
        for number, unit in enumerate(self.cut.units):
            while waiting and waiting[-1][0] != unit.parent:
                self._up(*waiting.pop())
            waiting.append((number, self._down(unit, leaf=number not in self.inner)))
        while waiting:
            self._up(*waiting.pop())

    def _down(self, unit: Unit, *, leaf: bool) -> Tensor | None:
        """The unit's hidden states, or None where nothing is held until the way up."""
        if not self.train:
            hidden_LD = self._forward(unit)
            self.scorer.score(hidden_LD, *self.scorer.targets.predicted_by(unit.token_L))
            return None
        if not self.recompute:
            return self._forward(unit)
        if not leaf:
            with torch.no_grad():
                self._forward(unit.trunk)
        return None

    def _up(self, number: int, hidden_LD: Tensor | None) -> None:
        if self.train:
            unit = self.cut.units[number]
            hidden_LD = self._forward(unit) if hidden_LD is None else hidden_LD
            self.scorer.score(hidden_LD, *self.scorer.targets.predicted_by(unit.token_L))

    def _forward(self, unit: Unit) -> Tensor:
        device = self.backbone.device
        ids_L = torch.as_tensor(self.trie.ids_T[unit.token_L], dtype=torch.int64, device=device)
        positions_L = torch.as_tensor(self.trie.depth_T[unit.token_L], device=device)
        if self.path is not None:
            self.path.begin(unit.seen, runs(unit, self.cut, dtype=self.backbone.dtype))
            with using(self.backbone, self.path):
                return self.backbone.hidden(ids_L, positions_L=positions_L)
        assert self.cache is not None
        self.cache.begin(unit.seen)
        seen_LJ = seen_mask(unit, self.cut, device=device)
        return self.backbone.hidden(ids_L, positions_L=positions_L, seen_LJ=seen_LJ, cache=self.cache)


class PathCache(DynamicCache):  # type: ignore[misc]
    """Keys and values of one root-to-leaf path, one buffer a layer, and the gradients that units below have added."""

    def __init__(self, longest: int, *, gradient: bool) -> None:
        super().__init__()
        self.longest = longest
        self.gradient = gradient
        self.seen = 0
        self.buffers: list[tuple[Tensor, Tensor]] = []
        self.grads: list[tuple[Tensor, Tensor]] = []

    def begin(self, seen: int) -> None:
        """The next forward's tokens follow the first `seen` of the path."""
        self.seen = seen

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if layer_idx == len(self.buffers):
            shapes = [(*t.shape[:2], self.longest, t.shape[3]) for t in (key_states, value_states)]
            self.buffers.append((key_states.new_empty(shapes[0]), value_states.new_empty(shapes[1])))
            if self.gradient:
                self.grads.append((key_states.new_zeros(shapes[0]), value_states.new_zeros(shapes[1])))
        if not (self.gradient and torch.is_grad_enabled()):
            keys, values = self.buffers[layer_idx]
            return _write(keys, key_states, self.seen), _write(values, value_states, self.seen)
        (keys, values), (grad_keys, grad_values) = self.buffers[layer_idx], self.grads[layer_idx]
        return (
            _Extend.apply(key_states, keys, grad_keys, self.seen),  # type: ignore[no-untyped-call]
            _Extend.apply(value_states, values, grad_values, self.seen),  # type: ignore[no-untyped-call]
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen


def _write(buffer: Tensor, new: Tensor, seen: int) -> Tensor:
    """The path with `new` behind its first `seen` tokens, as a view that does not share the buffer's version counter.

    A later unit writes only behind the end of this view, or the same values again: autograd need not know.
    """
    stop = seen + new.shape[2]
    buffer.data[:, :, seen:stop] = new.detach()
    return buffer.data[:, :, :stop]


class _Extend(torch.autograd.Function):
    """Put new keys (or values) behind those of the path; backward keeps the path's share in its buffer of gradients."""

    @staticmethod
    def forward(ctx: Any, new: Tensor, buffer: Tensor, grad: Tensor, seen: int) -> Tensor:
        ctx.grad, ctx.seen = grad, seen
        return _write(buffer, new, seen)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None, None, None]:
        seen, stop = ctx.seen, grad_out.shape[2]
        ctx.grad[:, :, :seen] += grad_out[:, :, :seen]
        own = grad_out[:, :, seen:] + ctx.grad[:, :, seen:stop]  # from the units below, which were visited before
        ctx.grad[:, :, seen:stop] = 0
        return own, None, None, None
