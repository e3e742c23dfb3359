"""The paper's single copy: the physical stream H_T once, each token seeing what was alive, at row-wise positions.

    epoch   computes            sees, numbered without gaps
    0       1 2 3 4 5 6 7
    1       8 9 10              1 2 3 4 6 7        6 and 7 as they were encoded, when 5 was still there: moved up by one
    2       11 12               1 2 3 4 6 7 9 10

Exact for an engine that keeps its keys and values across edits, and only for that: a harness that sends its prefix anew
has it encoded anew, which is what logittree computes (METHOD.md section 3). Queries between two edits share their
positions, so keys are rotated once an epoch, by as much as their place has moved.
"""

# H tokens of one thread's stream, L computed in one epoch, J kept before them, D rotated head size

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from trainer.engines.backbone import Backbone
from trainer.engines.head import Scorer
from trainer.engines.probe import obstacle
from trainer.engines.step import Step, Targets
from trainer.losses import Objective
from trainer.physical import Stream, stream, threads
from trainer.trie import Index, TokenTrie


@dataclass(frozen=True, slots=True)
class Mask4d:
    """Holds all activations of the streams. Threads share nothing; samples are taken in order of their calls."""

    def backward(self, model: nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        return _run(model, trie, objective)

    def logprobs(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return _run(model, trie, None).logprobs

    def states(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return _run(model, trie, None, keep=True).states


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """The tokens of a stream that were computed between two edits."""

    new_L: Index
    """Indices into the stream, in the order of the view."""
    rank_L: Index
    """Their places in the view."""
    kept_J: Index
    """Indices of what the view kept, in the order of the view."""
    rank_J: Index


def epochs(one: Stream) -> list[Epoch]:
    """Calls that only append belong to the epoch of the call they grew from."""
    found: list[Epoch] = []
    view = np.zeros(0, dtype=np.int64)
    begun = 0
    for call, grown in enumerate(one.views):
        if call and (len(grown) < len(view) or (grown[: len(view)] != view).any()):
            found.append(_epoch(view, begun))
            begun = one.born[call]
        view = grown
    found.append(_epoch(view, begun))
    return [epoch for epoch in found if len(epoch.new_L)]


def _epoch(view: Index, begun: int) -> Epoch:
    new = view >= begun
    return Epoch(view[new], np.flatnonzero(new), view[~new], np.flatnonzero(~new))


def _run(model: nn.Module, trie: TokenTrie, objective: Objective | None, *, keep: bool = False) -> Step:
    backbone = Backbone(model)
    if why := obstacle(backbone, trie.longest) or (len(trie.samples) and _unrotatable(backbone)):
        raise ValueError(f"mask4d needs full attention with rotary positions in halves; {why}")
    groups = [(indices, stream([trie.samples[i] for i in indices])) for indices in threads(trie.samples)]
    targets = _targets(trie, groups)
    scorer = Scorer(backbone, targets, objective=objective, keep=keep)
    hiddens: list[Tensor] = []
    grads: list[Tensor] = []
    with backbone.sharing():
        begin = 0
        for _, one in groups:
            cache = StreamCache(backbone, len(one.ids_H))
            for epoch in epochs(one):
                hidden_LD = _forward(backbone, one, epoch, cache)
                by_place = np.argsort(epoch.new_L)
                target_M, row_M = targets.predicted_by(begin + epoch.new_L[by_place])
                grad_LD = scorer.gradient(hidden_LD, target_M, by_place[row_M])
                if grad_LD is not None and hidden_LD.requires_grad:
                    hiddens.append(hidden_LD)
                    grads.append(grad_LD)
            begin += len(one.ids_H)
        if hiddens:
            torch.autograd.backward(hiddens, grads)
    return scorer.step("mask4d")


def _targets(trie: TokenTrie, groups: list[tuple[tuple[int, ...], Stream]]) -> Targets:
    """A sampled token is predicted by what stood before it in its call's view, as that was encoded in its own time."""
    token: dict[int, Index] = {}
    before: dict[int, Index] = {}
    begin = 0
    for indices, one in groups:
        for index, view in zip(indices, one.views, strict=True):
            first = len(trie.samples[index].prompt_ids)
            token[index] = begin + view[first:]
            shifted = np.concatenate([[-1 if first == 0 else begin + view[first - 1]], begin + view[first:]])
            before[index] = shifted[:-1]
        begin += len(one.ids_H)
    none = np.zeros(0, dtype=np.int64)
    order = range(len(trie.samples))
    ids = [np.asarray(sample.completion_ids) for sample in trie.samples]
    return Targets(
        trie,
        token_N=np.concatenate([none, *(token[i] for i in order)]),
        before_N=np.concatenate([none, *(before[i] for i in order)]),
        ids_N=np.concatenate([np.zeros(0, dtype=np.int32), *ids]),
    )


def _forward(backbone: Backbone, one: Stream, epoch: Epoch, cache: StreamCache) -> Tensor:
    device = backbone.device
    rank_L = torch.as_tensor(epoch.rank_L, device=device)
    rank_J = torch.as_tensor(epoch.rank_J, device=device)
    seen_LJ = torch.cat([rank_J, rank_L])[None, :] <= rank_L[:, None]
    cache.begin(epoch, rank_J)
    hidden_LD = backbone.hidden(
        torch.as_tensor(one.ids_H[epoch.new_L], dtype=torch.int64, device=device),
        positions_L=rank_L,
        seen_LJ=seen_LJ,
        cache=cache,
    )
    cache.end(epoch, rank_L)
    return hidden_LD


class StreamCache(DynamicCache):  # type: ignore[misc]
    """Every key and value of a stream as it was first computed, handed out in an epoch's order and at its positions."""

    def __init__(self, backbone: Backbone, length: int) -> None:
        super().__init__()
        self.rotary = backbone.body.rotary_emb
        self.born_H = torch.zeros(length, dtype=torch.int64, device=backbone.device)
        self.place_H = torch.zeros(length, dtype=torch.int64, device=backbone.device)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.kept_J = self.place_H[:0]
        self.moved_J = self.place_H[:0]
        self.count = 0

    def begin(self, epoch: Epoch, rank_J: Tensor) -> None:
        kept = torch.as_tensor(epoch.kept_J, device=rank_J.device)
        self.kept_J = self.place_H[kept]
        self.moved_J = rank_J - self.born_H[kept]

    def end(self, epoch: Epoch, rank_L: Tensor) -> None:
        new = torch.as_tensor(epoch.new_L, device=rank_L.device)
        self.born_H[new] = rank_L
        self.place_H[new] = torch.arange(self.count, self.count + len(new), device=rank_L.device)
        self.count += len(new)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if layer_idx == len(self.keys):
            self.keys.append(key_states)
            self.values.append(value_states)
            return key_states, value_states
        keys, values = self.keys[layer_idx][:, :, self.kept_J], self.values[layer_idx][:, :, self.kept_J]
        keys = rotated(keys, self.moved_J, self.rotary)
        self.keys[layer_idx] = torch.cat([self.keys[layer_idx], key_states], dim=2)
        self.values[layer_idx] = torch.cat([self.values[layer_idx], value_states], dim=2)
        return torch.cat([keys, key_states], dim=2), torch.cat([values, value_states], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return len(self.kept_J)


def rotated(keys: Tensor, by_J: Tensor, rotary: Any) -> Tensor:
    """Keys (1, heads, J, head size) already rotated to their positions, moved on by `by_J` positions: angles add."""
    cos_1JD, sin_1JD = rotary(keys, by_J[None])
    cos_1JD, sin_1JD = cos_1JD / rotary.attention_scaling, sin_1JD / rotary.attention_scaling
    size = cos_1JD.shape[-1]
    turned, left = keys[..., :size], keys[..., size:]
    half = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], dim=-1)
    return torch.cat([turned * cos_1JD[:, None] + half * sin_1JD[:, None], left], dim=-1)


def _unrotatable(backbone: Backbone) -> str:
    """Why keys cannot be moved: found out by computing one token at two positions; "" = they can."""
    name = type(backbone.body).__name__
    if not hasattr(getattr(backbone.body, "rotary_emb", None), "attention_scaling"):
        return f"{name} has no rotary embedding of its own"
    seen = []
    with torch.no_grad(), backbone.sharing():
        for position in (0, 5):
            cache = StreamCache(backbone, 1)
            ids = torch.zeros(1, dtype=torch.int64, device=backbone.device)
            backbone.hidden(ids, positions_L=ids + position, cache=cache)
            seen.append(cache.keys[0])
        moved = rotated(seen[0], torch.tensor([5], device=backbone.device), backbone.body.rotary_emb)
    close = torch.allclose(moved.float(), seen[1].float(), rtol=2e-2, atol=2e-2 * float(seen[1].abs().max()))
    return "" if close else f"{name} rotates its keys otherwise"
