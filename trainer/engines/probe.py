"""What a backbone can do is found out on six tokens, once a model: class names and configs do not say.

    a b ─┬─ c d      whole rows a b c d and a b e f are the truth
         └─ e f      start    a b alone gives what it gives in the row, or the model is not causal
                     head     of the hidden states gives the model's own logits, or it changes them on the way
                     masks    a b c d e f in one sequence, siblings apart
                     cache    a b, then c d and e f, each behind the kept a b
                     kernels  the same through attention.py

What six tokens cannot show (windows, rotary angles by length, recurrent states) backbone.py reads from the config.
"""

# L tokens

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from trainer.engines.attention import Path, Run, available, using
from trainer.engines.backbone import Backbone
from trainer.engines.cache import PathCache
from trainer.masks import ancestor_mask, causal_mask

logger = logging.getLogger("memorywalker.trainer")

FAILURES = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What models of others raise when they are called in a way they were not written for."""


@dataclass(frozen=True, slots=True)
class Findings:
    refused: str
    """Why no engine is right for it; "" = separate branches are."""
    unshared: str
    """Why prefixes cannot be shared; "" = they can."""
    kernels: bool
    """Whether it attends as trainer/engines/attention.py does."""


_found: WeakKeyDictionary[nn.Module, dict[str, Findings]] = WeakKeyDictionary()


def check(backbone: Backbone, longest: int) -> None:
    """ValueError where even separate branches up to `longest` tokens would be wrong."""
    if refused := probe(backbone).refused:
        raise ValueError(refused)
    if "dynamic" in backbone.rotates_by_length(longest):
        expected = f"expected branches within the {backbone.config.max_position_embeddings} tokens it was made for"
        raise ValueError(f"{_name(backbone)} rotates by the longest sequence it has met (dynamic): {expected}")


def obstacle(backbone: Backbone, longest: int) -> str:
    """Why prefixes cannot be shared in branches up to `longest` tokens; "" = they can. ValueError as in `check`."""
    check(backbone, longest)
    return backbone.obstacle(longest) or probe(backbone).unshared


def takes_kernels(backbone: Backbone) -> bool:
    return available(backbone) and probe(backbone).kernels


def probe(backbone: Backbone) -> Findings:
    known = _found.setdefault(backbone.causal, {})
    key = f"{backbone.implementation} {backbone.device.type} {backbone.dtype}"
    if key not in known:
        with torch.no_grad(), _evaluating(backbone.causal), backbone.sharing():
            known[key] = _probe(backbone)
        if getattr(backbone.config, "output_router_logits", False):
            logger.warning(f"{_name(backbone)}: the loss of its router is left out; the objective alone is trained")
    return known[key]


def _probe(backbone: Backbone) -> Findings:
    ids = torch.tensor([3, 4, 5, 6, 7, 8], device=backbone.device) % backbone.config.vocab_size
    row, other = ids[:4], torch.cat([ids[:2], ids[4:]])
    first, second = backbone.hidden(row), backbone.hidden(other)
    name = _name(backbone)
    if not _same(backbone.hidden(row[:2]), first[:2]):
        return Findings(f"expected a causal model; in {name} a token sees what follows it", "", False)
    # the method, not the call: wrappers hook the call, and this is no step of theirs
    logits = backbone.causal.forward(input_ids=row[None], use_cache=False).logits[0]
    if not _gives(lambda: backbone.head(first), logits):
        asked = type(backbone.causal).__name__
        return Findings(f"expected logits straight from the output head; {asked} computes them otherwise", "", False)
    truth = torch.cat([first, second[2:]])
    if not backbone.takes_positions:
        return Findings("", f"{name} takes no position_ids", False)
    shared = _gives(lambda: _masked(backbone, ids), truth) and _gives(lambda: _kept(backbone, ids), truth)
    unshared = "" if shared else f"{name} computes something else when prefixes are shared"
    return Findings("", unshared, available(backbone) and _gives(lambda: _by_kernels(backbone, ids), truth))


def _masked(backbone: Backbone, ids: Tensor) -> Tensor:
    token, end = torch.arange(6, device=ids.device), torch.tensor([6, 6, 4, 4, 6, 6], device=ids.device)
    return backbone.hidden(ids, _depth(ids), seen_LJ=ancestor_mask(token, end))


def _kept(backbone: Backbone, ids: Tensor) -> Tensor:
    cache = PathCache(4, gradient=False)
    mask = causal_mask(2, seen=2, device=ids.device)

    def call(start: int, seen: int) -> Tensor:
        cache.begin(seen)
        own = slice(start, start + 2)
        return backbone.hidden(ids[own], _depth(ids)[own], seen_LJ=mask if seen else None, cache=cache)

    return torch.cat([call(0, 0), call(2, 2), call(4, 2)])


def _by_kernels(backbone: Backbone, ids: Tensor) -> Tensor:
    path = Path(4, gradient=False)

    def call(start: int, seen: int) -> Tensor:
        path.begin(seen, (Run(0, 2, None),))
        return backbone.hidden(ids[start : start + 2], _depth(ids)[start : start + 2])

    with using(backbone, path):
        return torch.cat([call(0, 0), call(2, 2), call(4, 2)])


def _depth(ids: Tensor) -> Tensor:
    return torch.tensor([0, 1, 2, 3, 2, 3], device=ids.device)


def _gives(call: Callable[[], Tensor], truth: Tensor) -> bool:
    try:
        return _same(call(), truth)
    except FAILURES:
        return False


def _same(ours: Tensor, truth: Tensor) -> bool:
    """Up to rounding: half precision rounds by a hundredth, a wrong context is off by far more."""
    if ours.shape != truth.shape:
        return False
    half = ours.dtype.itemsize < 4 or torch.is_autocast_enabled(ours.device.type)
    tolerance = 0.1 if half else 1e-4 if ours.device.type == "cpu" else 1e-2  # TF32 may be on elsewhere
    return float((ours.double() - truth.double()).norm()) <= tolerance * float(truth.double().norm())


def _name(backbone: Backbone) -> str:
    return type(backbone.body).__name__


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
