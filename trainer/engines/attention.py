"""Attention over a path without mask or copies: the prefix whole, the own tokens causal, joined by their sums.

    softmax over [prefix | own] = the two softmaxes, weighted by how much of the exponential sum each holds

What a flash kernel keeps (output and log-sum-exp) is all that is needed to join the parts, and its backward, given the
joined pair, yields each part's exact gradient (ring attention, Liu et al. 2023). A unit's keys and values lie in the
path's buffers; the gradients of what lies above it are added to buffers beside them. CPU kernels of torch; elsewhere
engines use caches and masks.
"""

# L tokens of a unit, J before it on its path, H heads, D head size; tensors are (1, heads, tokens, D)

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from trainer.engines.backbone import Backbone, drops

NAME = "memorywalker_path"
STRETCH = 4096  # ours: of a prefix, so that its gradient is not held twice; larger is not faster
_FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Tokens [start, stop) of a unit that see its prefix and each other."""

    start: int
    stop: int
    mask_LL: Tensor | None
    """Added to the scores; None = causal."""


@dataclass(slots=True, eq=False)
class Path:
    """Keys and values of one path, a pair of buffers a layer, and the gradients that units below have added to them."""

    longest: int
    gradient: bool
    seen: int = 0
    runs: tuple[Run, ...] = ()
    buffers: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    grads: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def begin(self, seen: int, runs: tuple[Run, ...]) -> None:
        """The next forward's tokens follow the first `seen` of the path."""
        self.seen, self.runs = seen, runs

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if layer == len(self.buffers):
            sizes = [(*t.shape[:2], self.longest, t.shape[3]) for t in (key, value)]
            self.buffers.append((key.new_empty(sizes[0]), key.new_empty(sizes[1])))
            wide = torch.float32 if key.dtype.itemsize < 4 else key.dtype  # many children add up here
            if self.gradient:
                self.grads.append((key.new_zeros(sizes[0], dtype=wide), key.new_zeros(sizes[1], dtype=wide)))
        out: Tensor = _OnPath.apply(query, key, value, self, layer, scale)  # type: ignore[no-untyped-call]
        return out


class _OnPath(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, path: Path, layer: int, scale: float) -> Tensor:
        seen, stop = path.seen, path.seen + key.shape[2]
        keys, values = path.buffers[layer]
        keys[:, :, seen:stop], values[:, :, seen:stop] = key, value
        out, lse = attend(query, key, value, keys[:, :, :seen], values[:, :, :seen], path.runs, scale)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.path, ctx.layer, ctx.scale, ctx.seen, ctx.runs = path, layer, scale, seen, path.runs
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        query, key, value, out, lse = ctx.saved_tensors
        seen, stop = ctx.seen, ctx.seen + key.shape[2]
        (keys, values), (grad_keys, grad_values) = ctx.path.buffers[ctx.layer], ctx.path.grads[ctx.layer]
        prefix = (keys[:, :, :seen], values[:, :, :seen])

        def add(start: int, end: int, above_key: Tensor, above_value: Tensor) -> None:
            grad_keys[:, :, start:end] += above_key
            grad_values[:, :, start:end] += above_value

        grad_query, own = attend_backward(grad, query, key, value, *prefix, out, lse, ctx.runs, ctx.scale, add)
        own_key = own[0] + grad_keys[:, :, seen:stop].to(key.dtype)  # from the units below, which were visited before
        own_value = own[1] + grad_values[:, :, seen:stop].to(key.dtype)
        grad_keys[:, :, seen:stop] = 0
        grad_values[:, :, seen:stop] = 0
        return grad_query, own_key, own_value, None, None, None


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A unit inside a pack: its tokens and the spans of its path before them."""

    start: int
    stop: int
    prefix: tuple[tuple[int, int], ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """A whole trie in one forward, attention unit by unit: no score is computed that a mask would hide."""

    pieces: tuple[Piece, ...]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        out: Tensor = _InPack.apply(query, key, value, self.pieces, scale)  # type: ignore[no-untyped-call]
        return out


class _InPack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, pieces: tuple[Piece, ...], scale: float) -> Tensor:
        outs, lses = [], []
        for piece in pieces:
            q, k, v = (t[:, :, piece.start : piece.stop] for t in (query, key, value))
            out, lse = attend(q, k, v, _spans(key, piece.prefix), _spans(value, piece.prefix), piece.runs, scale)
            outs.append(out)
            lses.append(lse)
        out, lse = torch.cat(outs, dim=2), torch.cat(lses, dim=2)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.pieces, ctx.scale = pieces, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, lse = ctx.saved_tensors
        grad_query, grad_key, grad_value = (torch.zeros_like(t) for t in (query, key, value))
        for piece in ctx.pieces:
            at = slice(piece.start, piece.stop)
            g, q, k, v, o, lse_L = (t[:, :, at] for t in (grad, query, key, value, out, lse))
            keys, values = _spans(key, piece.prefix), _spans(value, piece.prefix)

            def add(start: int, end: int, above_key: Tensor, above_value: Tensor, piece: Piece = piece) -> None:
                begin = 0
                for first, last in piece.prefix:
                    low, high = max(first, first + start - begin), min(last, first + end - begin)
                    if low < high:
                        took = slice(begin + low - first - start, begin + high - first - start)
                        grad_key[:, :, low:high] += above_key[:, :, took]
                        grad_value[:, :, low:high] += above_value[:, :, took]
                    begin += last - first

            grad_query[:, :, at], mine = attend_backward(g, q, k, v, keys, values, o, lse_L, piece.runs, ctx.scale, add)
            grad_key[:, :, at] += mine[0]
            grad_value[:, :, at] += mine[1]
        return grad_query, grad_key, grad_value, None, None


def _spans(tensor: Tensor, spans: tuple[tuple[int, int], ...]) -> Tensor:
    if len(spans) == 1:
        return tensor[:, :, spans[0][0] : spans[0][1]]
    return torch.cat([tensor[:, :, :0], *(tensor[:, :, start:stop] for start, stop in spans)], dim=2)


def attend(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, runs: tuple[Run, ...], scale: float
) -> tuple[Tensor, Tensor]:
    """Output (1, H, L, D) and log-sum-exp (1, H, L) over prefix `keys` and, run by run, the unit's own."""
    assert _FLASH is not None
    outs, lses = [], []
    for run in runs:
        own = (t[:, :, run.start : run.stop] for t in (query, key, value))
        out, lse = _FLASH(*own, 0.0, run.mask_LL is None, attn_mask=run.mask_LL, scale=scale)
        outs.append(out)
        lses.append(lse)
    out, lse = (outs[0], lses[0]) if len(runs) == 1 else (torch.cat(outs, dim=2), torch.cat(lses, dim=2))
    if not keys.shape[2]:
        return out, lse
    above, above_lse = _FLASH(query, keys, values, 0.0, False, scale=scale)
    both = torch.logaddexp(lse, above_lse)
    share = (lse - both).exp()[..., None].to(out.dtype)
    return torch.lerp(above, out, share), both


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    lse: Tensor,
    runs: tuple[Run, ...],
    scale: float,
    add: Callable[[int, int, Tensor, Tensor], None],
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Gradients of the query and of the unit's own key and value; `add` gets the prefix's, stretch by stretch."""
    assert _FLASH_BACKWARD is not None
    parts = []
    for run in runs:
        g, q, k, v, o = (t[:, :, run.start : run.stop] for t in (grad, query, key, value, out))
        part = (g, q, k, v, o, lse[:, :, run.start : run.stop])
        parts.append(_FLASH_BACKWARD(*part, 0.0, run.mask_LL is None, attn_mask=run.mask_LL, scale=scale))
    grad_query, grad_key, grad_value = (
        tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True)
    )
    for start in range(0, keys.shape[2], STRETCH):
        above = (keys[:, :, start : start + STRETCH], values[:, :, start : start + STRETCH])
        more, above_key, above_value = _FLASH_BACKWARD(grad, query, *above, out, lse, 0.0, False, scale=scale)
        grad_query = grad_query + more
        add(start, start + above_key.shape[2], above_key, above_value)
    return grad_query, (grad_key, grad_value)


_active: list[Path | Pack] = []


def _interface(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: object, *, scaling: float, **more: object
) -> tuple[Tensor, None]:
    """What a layer of transformers calls; (1, L, H, D) out."""
    asked = {"attention_mask": attention_mask, **more}
    unknown = [name for name in ("attention_mask", "softcap", "s_aux", "position_bias") if asked.get(name) is not None]
    if unknown:
        raise ValueError(f"expected plain attention; {type(module).__name__} asks for {unknown[0]}")
    if torch.is_autocast_enabled(query.device.type):  # which would cast for torch's own attention
        low = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(low), key.to(low), value.to(low)
    return _active[-1].attend(module.layer_idx, query, key, value, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _interface)


def available(backbone: Backbone) -> bool:
    """Whether this backbone takes an attention of ours where it runs: torch's CPU kernels, no dropout in them."""
    supports = getattr(backbone.body, "_supports_attention_backend", False)
    on_cpu = backbone.device.type == "cpu" and _FLASH is not None and _FLASH_BACKWARD is not None
    return bool(supports and on_cpu and backbone.implementation == "sdpa" and not drops(backbone.causal))


@contextmanager
def using(backbone: Backbone, attention: Path | Pack) -> Iterator[None]:
    """Within: the backbone's layers attend through `attention`."""
    before = backbone.implementation
    backbone.config._attn_implementation = NAME
    _active.append(attention)
    try:
        yield
    finally:
        _active.pop()
        backbone.config._attn_implementation = before
