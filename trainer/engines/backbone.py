"""A causal language model taken apart without editing it: the body gives hidden states, the head logits.

Shared engines call the body on parts of a trie, with explicit masks, positions and caches, and the head where a token
is scored. `obstacle` says which backbones that would be wrong for.
"""

# L tokens of this call, J keys it sees, D hidden size

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

FIXED_ROPES = {"default", "linear", "llama3", "yarn", "proportional"}
"""Rotary types whose angle depends on the position alone; dynamic and longrope depend on the length of the sequence."""
SCALES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "final_logit_softcapping": lambda logits, cap: cap * torch.tanh(logits / cap),  # Gemma 2, NanoChat
    "logits_soft_cap": lambda logits, cap: cap * torch.tanh(logits / cap),  # RecurrentGemma
    "logit_scale": lambda logits, scale: logits * scale,  # Cohere
    "logits_scaling": lambda logits, scale: logits / scale,  # Granite
    "lm_head_multiplier": lambda logits, scale: logits * scale,  # Falcon-H1
}
"""Config fields of models whose forward changes the head's output; probe.py finds those that are missing here."""
WINDOWS = ("sliding_window", "window_size", "local_attention", "attention_window_size")
"""What configs and attention modules call the number of tokens they look back; None or absent = all."""


class Backbone:
    """The parts of a model that engines call. Wrappers (DDP, peft, torch.compile) are looked through."""

    def __init__(self, model: nn.Module) -> None:
        causal = unwrap(model)
        self.causal: Any = causal
        prefix = getattr(causal, "base_model_prefix", "")
        self.body: nn.Module = causal.get_submodule(prefix if prefix and hasattr(causal, prefix) else "model")
        head = causal.get_output_embeddings() if hasattr(causal, "get_output_embeddings") else None
        if head is None:
            raise ValueError(f"expected a causal language model with an output head; got {type(causal).__name__}")
        self._head: nn.Module = head
        config: Any = getattr(causal, "config", None)
        self.config: Any = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        parameters = inspect.signature(self.body.forward).parameters
        self.cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.takes_positions = "position_ids" in parameters
        asked = {name: getattr(self.config, name, None) for name in SCALES}
        self._scales = [(SCALES[name], value) for name, value in asked.items() if value not in (None, 1, 1.0)]

    def head(self, hidden_MD: Tensor) -> Tensor:
        """Logits (M, V)."""
        logits_MV: Tensor = self._head(hidden_MD)
        for scale, value in self._scales:
            logits_MV = scale(logits_MV, value)
        return logits_MV

    @property
    def device(self) -> torch.device:
        return next(self.body.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the hidden states, outside autocast."""
        return next(self.body.parameters()).dtype

    @cached_property
    def vocabulary(self) -> int:
        """Columns of the logits."""
        weight = getattr(self._head, "weight", None)
        return int(weight.shape[0]) if isinstance(weight, Tensor) else int(self.config.vocab_size)

    @cached_property
    def weights(self) -> int:
        """Parameters of the body that every token is multiplied with: all but the embeddings."""
        tables = (m.weight for m in self.body.modules() if isinstance(m, nn.Embedding))
        return sum(p.numel() for p in self.body.parameters()) - sum(table.numel() for table in tables)

    @property
    def implementation(self) -> str:
        return getattr(self.config, "_attn_implementation", None) or "unknown"

    def hidden(
        self, ids_L: Tensor, positions_L: Tensor | None = None, *, seen_LJ: Tensor | None = None, cache: object = None
    ) -> Tensor:
        """Hidden states (L, D). `seen_LJ`: True = may attend; None = plain causal over these L tokens alone."""
        kwargs: dict[str, Any] = {"use_cache": cache is not None}
        if positions_L is not None:
            kwargs["position_ids"] = positions_L[None]
        if seen_LJ is not None:
            kwargs["attention_mask"] = self._mask(seen_LJ)
        if cache is not None:
            kwargs[self.cache_name] = cache
        hidden_1LD: Tensor = self.body(input_ids=ids_L[None], **kwargs)[0]
        return hidden_1LD[0]

    def flex_hidden(self, ids_T: Tensor, positions_T: Tensor, end_T: Tensor) -> Tensor:
        """Hidden states of a trie under FlexAttention: query i sees key j iff j <= i < end[j]."""
        from torch.nn.attention.flex_attention import create_block_mask

        def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (end_T[key] > query)

        length, before = len(ids_T), self.config._attn_implementation
        block_mask = create_block_mask(
            seen, None, None, length, length, device=str(ids_T.device), _compile=ids_T.is_cuda
        )
        self.config._attn_implementation = "flex_attention"
        try:
            hidden_1TD: Tensor = self.body(
                input_ids=ids_T[None], position_ids=positions_T[None], attention_mask=block_mask, use_cache=False
            )[0]
            return hidden_1TD[0]
        finally:
            self.config._attn_implementation = before

    def _mask(self, seen_LJ: Tensor) -> Tensor:
        if self.implementation == "sdpa":
            return seen_LJ[None, None]
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(seen_LJ, dtype=self.dtype).masked_fill(~seen_LJ, lowest)[None, None]

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """While a shared engine runs: attention that takes explicit masks, no checkpointing (it drops caches)."""
        before = self.implementation
        checkpointed = [m for m in self.body.modules() if getattr(m, "gradient_checkpointing", False) is True]
        if before not in ("sdpa", "eager", "unknown"):
            self.config._attn_implementation = "sdpa"
        for module in checkpointed:
            module.gradient_checkpointing = False  # type: ignore[assignment]
        try:
            yield
        finally:
            if before not in ("sdpa", "eager", "unknown"):
                self.config._attn_implementation = before
            for module in checkpointed:
                module.gradient_checkpointing = True  # type: ignore[assignment]

    def obstacle(self, longest: int) -> str:
        """Why this backbone cannot share prefixes up to `longest` tokens; "" = it can."""
        config, name = self.config, type(self.body).__name__
        if not self.takes_positions:
            return f"{name} takes no position_ids"
        if getattr(self.body, "_is_stateful", False):
            return f"{name} keeps a recurrent state, which masks and key-value caches do not cover"
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds - {"full_attention", "sliding_attention"}:
            return f"{name} has {', '.join(sorted(kinds - {'full_attention', 'sliding_attention'}))} layers"
        if self.window is not None and self.window < longest:
            reach = f"in a sliding window of {self.window} tokens"
            return f"{name} attends {reach}, shorter than the longest branch of {longest}"
        if getattr(config, "attention_chunk_size", None):
            return f"{name} attends in chunks of {config.attention_chunk_size} tokens"
        if kind := self.rotates_by_length(longest):
            return f"{name} rotates by the length of the sequence ({kind})"
        return ""

    @cached_property
    def window(self) -> int | None:
        """Tokens that the shortest-sighted layer looks back; None = all of them."""
        kinds = getattr(self.config, "layer_types", None)
        slides = getattr(self.config, "use_sliding_window", True) and (kinds is None or "sliding_attention" in kinds)
        places = [*self.body.modules(), self.config] if slides else [*self.body.modules()]
        found = [getattr(place, name, None) for place in places for name in WINDOWS]
        return min((size for size in found if isinstance(size, int) and size > 0), default=None)

    def rotates_by_length(self, longest: int) -> str:
        """The rotary type whose angles depend on how long a sequence is, in branches this long; "" = none."""
        rope = getattr(self.config, "rope_parameters", None) or getattr(self.config, "rope_scaling", None) or {}
        parts = [part for part in rope.values() if isinstance(part, dict)] or [rope]
        kinds = {part.get("rope_type", "default") for part in parts} - FIXED_ROPES
        limits = [part.get("original_max_position_embeddings") for part in parts]
        limits += [getattr(self.config, f"{name}max_position_embeddings", None) for name in ("original_", "")]
        short = longest <= min((limit for limit in limits if limit), default=0)
        return "" if short else ", ".join(sorted(kinds))


def unwrap(model: nn.Module) -> Any:
    """The causal language model inside DDP, torch.compile and peft."""
    inner: Any = model
    while True:
        if isinstance(inner, nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        elif hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        else:
            return inner


def drops(model: nn.Module) -> bool:
    """Whether a second forward of the same tokens would differ from the first."""
    attention = getattr(getattr(unwrap(model), "config", None), "attention_dropout", 0.0)
    return model.training and (bool(attention) or any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()))
