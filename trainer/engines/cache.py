"""A cache that holds one path: where our kernels do not run, layers of transformers write keys and values here."""

# L tokens of a unit, seen before it on its path, H heads, D head size; tensors are (1, heads, tokens, D)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache


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
