"""Every call by itself on exactly the prefix it had, as a decoder with a prefix cache does it: the reference for drift.

Calls are taken one after another. What a call shares with the one before stays in the key-value cache, the rest is
computed under plain causal attention: no trie, no mask, no training engine has a part in it.
"""

# L tokens of this forward, K sampled tokens, D hidden size, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from trainer.engines.backbone import Backbone
from trainer.trie import Ids, Sample

CHUNK_TOKENS = 1024  # ours: a forward's attention scores stay below 1 GB at 16k tokens of cache
HEAD_ROWS = 256


def hidden_states(
    model: nn.Module, samples: Sequence[Sample], *, step: Callable[[int], None] = lambda tokens: None
) -> tuple[Tensor, ...]:
    """For each sample the hidden states (K, D) that predict its completion; the first is NaN where the prompt is empty.

    `step` is told the tokens of each call as it is done.
    """
    backbone = Backbone(model)
    longest = max((len(sample) for sample in samples), default=0)
    cached = not backbone.obstacle(longest)
    found = []
    cache, held = DynamicCache(config=backbone.config), np.zeros(0, dtype=np.int32)
    with torch.no_grad():
        for sample in samples:
            ids = sample.ids()[:-1] if len(sample.completion_ids) else np.zeros(0, dtype=np.int32)
            first = max(len(sample.prompt_ids) - 1, 0)  # predicts the first sampled token
            if cached:
                shared = min(_shared(held, ids), first)
                cache.crop(shared - len(held))
            else:
                cache, shared = DynamicCache(config=backbone.config), 0
            held = ids
            rows = [_forward(backbone, ids, at, cache) for at in _chunks(ids, shared)]
            hidden_KD = torch.cat(rows)[first - shared :] if rows else _nothing(backbone)
            if len(sample.completion_ids) and not len(sample.prompt_ids):
                hidden_KD = torch.cat([torch.full_like(_row(backbone), torch.nan), hidden_KD])
            found.append(hidden_KD)
            step(len(sample))
    return tuple(found)


def logprobs(
    model: nn.Module, samples: Sequence[Sample], *, step: Callable[[int], None] = lambda tokens: None
) -> tuple[Tensor, ...]:
    """One tensor per sample over its completion, nats; NaN = nothing predicts the token."""
    hidden = hidden_states(model, samples, step=step)
    return tuple(
        score(model, hidden_KD, np.asarray(s.completion_ids)) for hidden_KD, s in zip(hidden, samples, strict=True)
    )


def divergence(model: nn.Module, teacher_KD: Tensor, student_KD: Tensor) -> Tensor:
    """KL(teacher || student) of each row's next-token distribution, over the whole vocabulary, nats."""
    head, dtype = Backbone(model).head, _accurate(teacher_KD)
    found = []
    with torch.no_grad():
        for teacher_MD, student_MD in zip(_parts(teacher_KD), _parts(student_KD), strict=True):
            teacher_MV = head(teacher_MD).to(dtype).log_softmax(-1)
            student_MV = head(student_MD).to(dtype).log_softmax(-1)
            found.append((teacher_MV.exp() * (teacher_MV - student_MV)).sum(-1))
    return torch.cat(found) if found else torch.zeros(0, dtype=dtype)


def _forward(backbone: Backbone, ids: Ids, at: slice, cache: DynamicCache) -> Tensor:
    ids_L = torch.as_tensor(ids[at], dtype=torch.int64, device=backbone.device)
    positions_L = torch.arange(at.start, at.stop, device=backbone.device)
    return backbone.hidden(ids_L, positions_L=positions_L, cache=cache)


def _chunks(ids: Ids, start: int) -> list[slice]:
    return [slice(at, min(at + CHUNK_TOKENS, len(ids))) for at in range(start, len(ids), CHUNK_TOKENS)]


def score(model: nn.Module, hidden_KD: Tensor, ids: Ids) -> Tensor:
    head, dtype = Backbone(model).head, _accurate(hidden_KD)
    ids_K = torch.as_tensor(ids, dtype=torch.int64, device=hidden_KD.device)
    found = [torch.zeros(0, dtype=dtype, device=hidden_KD.device)]
    with torch.no_grad():
        for hidden_MD, ids_M in zip(_parts(hidden_KD), _parts(ids_K), strict=True):
            logits_MV = head(hidden_MD).to(dtype)
            found.append(logits_MV.gather(1, ids_M[:, None])[:, 0] - logits_MV.logsumexp(-1))
    return torch.cat(found)


def _parts(rows: Tensor) -> tuple[Tensor, ...]:
    return tuple(rows[at : at + HEAD_ROWS] for at in range(0, len(rows), HEAD_ROWS))


def _accurate(hidden: Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


def _row(backbone: Backbone) -> Tensor:
    return torch.zeros(1, backbone.config.hidden_size, dtype=backbone.dtype, device=backbone.device)


def _nothing(backbone: Backbone) -> Tensor:
    return _row(backbone)[:0]


def _shared(a: Ids, b: Ids) -> int:
    """Length of the common start."""
    limit = min(len(a), len(b))
    differs = np.flatnonzero(a[:limit] != b[:limit])
    return int(differs[0]) if len(differs) else limit
