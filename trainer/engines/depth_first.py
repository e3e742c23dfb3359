"""Visit the trie depth first: forward on the way down, backward on the way up, one path's keys and values held for all.

    forward  trunk ──> leg ──> (backward leg) ──> spine ──> ... ──> (backward spine) ──> (backward trunk)

A unit's keys and values lie in the path's buffer at its depth. Its own backward runs when everything below has added to
the gradient of that stretch. With recomputation the way down is made without gradient and each unit is forwarded again
on the way up, so that the activations of one unit are all that is held: context length stops being the limit.
"""

# L tokens of a unit, J = seen + L, H heads, D head size

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from trainer.engines.backbone import Backbone, drops
from trainer.engines.head import Scorer
from trainer.engines.separate import instead_of
from trainer.engines.step import Step, Targets
from trainer.engines.units import Plan, Unit, plan
from trainer.losses import Objective
from trainer.masks import ancestor_mask, causal_mask
from trainer.trie import TokenTrie


@dataclass(frozen=True, slots=True)
class DepthFirst:
    chunk_tokens: int | None = None
    """Most tokens of one call of the model; None = a node at a time."""
    recompute: bool | None = None
    """Forward again on the way up instead of holding activations; None = if chunk_tokens is given."""
    bush_tokens: int = 512
    """Subtrees up to this size are computed in one call; 0 = none. Ours: benchmarks/engines.md."""

    def backward(self, model: nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        recompute = self.chunk_tokens is not None if self.recompute is None else self.recompute
        if recompute and drops(model):
            raise ValueError("recomputation needs a model without dropout: set recompute=False, or its dropout to 0")
        return self._run(model, trie, objective, recompute=recompute)

    def logprobs(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self._run(model, trie, None, recompute=False).logprobs

    def _run(self, model: nn.Module, trie: TokenTrie, objective: Objective | None, *, recompute: bool) -> Step:
        backbone, targets = Backbone(model), Targets.of(trie)
        if why := backbone.obstacle(trie.longest):
            return instead_of("depth_first", model, trie, objective, why=why)
        scorer = Scorer(backbone, targets, objective=objective)
        cut = plan(trie, targets.before_U, chunk_tokens=self.chunk_tokens, bush_tokens=self.bush_tokens)
        with backbone.sharing():
            visit = _Visit(backbone, scorer, trie, cut, recompute=recompute, train=objective is not None)
            visit.all()
        return scorer.step("depth_first")


@dataclass(slots=True, eq=False)
class _Open:
    """A unit whose children are being visited."""

    unit: Unit
    hidden_LD: Tensor | None
    """None = not computed with gradient yet."""
    grown: Sequence[Tensor]
    """Its keys and values as they left the model, layer by layer."""


class _Visit:
    def __init__(
        self, backbone: Backbone, scorer: Scorer, trie: TokenTrie, cut: Plan, *, recompute: bool, train: bool
    ) -> None:
        self.backbone = backbone
        self.scorer = scorer
        self.trie = trie
        self.cut = cut
        self.recompute = recompute
        self.train = train
        self.path = PathCache(cut.longest_path, gradient=train)
        self.inner = {unit.parent for unit in cut.units}

    def all(self) -> None:
        open_units: list[_Open] = []
        numbers: list[int] = []
        for number, unit in enumerate(self.cut.units):
            while numbers and numbers[-1] != unit.parent:
                numbers.pop()
                self._close(open_units.pop())
            open_units.append(self._open(unit, leaf=number not in self.inner))
            numbers.append(number)
        while open_units:
            self._close(open_units.pop())

    def _open(self, unit: Unit, *, leaf: bool) -> _Open:
        if self.train and self.recompute:
            if not leaf:
                with torch.no_grad():
                    self._forward(unit)
            return _Open(unit, None, ())
        hidden_LD = self._forward(unit)
        if not self.train:
            self.scorer.gradient(hidden_LD, *self.scorer.targets.predicted_by(unit.token_L))
            return _Open(unit, None, ())
        return _Open(unit, hidden_LD, self.path.grown)

    def _close(self, opened: _Open) -> None:
        if not self.train:
            return
        unit, hidden_LD, grown = opened.unit, opened.hidden_LD, opened.grown
        if hidden_LD is None:
            hidden_LD = self._forward(unit)
            grown = self.path.grown
        grad_LD = self.scorer.gradient(hidden_LD, *self.scorer.targets.predicted_by(unit.token_L))
        pairs = [(hidden_LD, grad_LD), *zip(grown, self.path.gradients(unit.seen, len(unit.token_L)), strict=True)]
        pairs = [(tensor, grad) for tensor, grad in pairs if tensor.requires_grad]
        torch.autograd.backward([tensor for tensor, _ in pairs], [grad for _, grad in pairs])
        self.path.forget(unit.seen, len(unit.token_L))

    def _forward(self, unit: Unit) -> Tensor:
        device, length = self.backbone.device, len(unit.token_L)
        seen_LJ = None
        if unit.bush:
            token_L, end_L = (torch.as_tensor(a, device=device) for a in (unit.token_L, self.cut.end_T[unit.token_L]))
            seen_LJ = torch.ones(length, unit.seen + length, dtype=torch.bool, device=device)
            seen_LJ[:, unit.seen :] = ancestor_mask(token_L, end_L)
        elif unit.seen:
            seen_LJ = causal_mask(length, seen=unit.seen, device=device)
        self.path.begin(unit.seen)
        return self.backbone.hidden(
            torch.as_tensor(self.trie.ids_T[unit.token_L], dtype=torch.int64, device=device),
            positions_L=torch.as_tensor(self.trie.depth_T[unit.token_L], device=device),
            seen_LJ=seen_LJ,
            cache=self.path,
        )


class PathCache(DynamicCache):  # type: ignore[misc]
    """Keys and values of one root-to-leaf path, one buffer a layer, and the gradients that units below have added."""

    def __init__(self, longest: int, *, gradient: bool) -> None:
        super().__init__()
        self.longest = longest
        self.gradient = gradient
        self.seen = 0
        self.buffers: list[tuple[Tensor, Tensor]] = []
        self.grads: list[tuple[Tensor, Tensor]] = []
        self.grown: list[Tensor] = []

    def begin(self, seen: int) -> None:
        """The next forward's tokens follow the first `seen` of the path."""
        self.seen = seen
        self.grown = []

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
        self.grown += [key_states, value_states]
        (keys, values), (grad_keys, grad_values) = self.buffers[layer_idx], self.grads[layer_idx]
        return (
            _Extend.apply(key_states, keys, grad_keys, self.seen),  # type: ignore[no-untyped-call]
            _Extend.apply(value_states, values, grad_values, self.seen),  # type: ignore[no-untyped-call]
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def gradients(self, seen: int, length: int) -> list[Tensor]:
        """What has been added to keys and values [seen, seen + length), layer by layer."""
        return [grad[:, :, seen : seen + length] for pair in self.grads for grad in pair]

    def forget(self, seen: int, length: int) -> None:
        for grad in self.gradients(seen, length):
            grad.zero_()


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
        ctx.grad[:, :, : ctx.seen] += grad_out[:, :, : ctx.seen]
        return grad_out[:, :, ctx.seen :], None, None, None
