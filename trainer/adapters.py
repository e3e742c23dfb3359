"""LoRA through peft: adapters beside every linear layer but the output head; engines see the model inside."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from recorder.errors import TrainError

ALPHA_PER_RANK = 2  # as in most recipes built on peft; it only scales the learning rate


def with_adapters(model: nn.Module, *, rank: int, seed: int) -> nn.Module:
    """The model with trainable adapters, its own weights frozen. TrainError where peft is missing."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as e:
        raise TrainError(f"lora: expected the package peft, got {e}; pip install peft") from e
    config = LoraConfig(
        r=rank,
        lora_alpha=ALPHA_PER_RANK * rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks models for what transformers has renamed
        torch.manual_seed(seed)
        wrapped: nn.Module = get_peft_model(model, config)
    return wrapped


def merged(model: Any) -> Any:
    """The model with its adapters written into the weights, as if there had been none."""
    return model.merge_and_unload()
