"""How to train, in one place: what the command line fills in, what a resumed run must agree with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers import TrainingArguments

ObjectiveName = Literal["nll", "grpo"]
Per = Literal["token", "rollout"]
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The defaults suit a few steps on a small machine."""

    scheme: str = "logittree"
    engine: str = "auto"
    chunk_tokens: int | None = None
    """Most tokens whose activations are held at once; None = as many as the engine likes."""
    steps: int = 10
    learning_rate: float = 1e-5
    group: int = 1
    """Episodes in one trie."""
    accumulate: int = 1
    """Tries in one optimizer step, over all processes."""
    objective: ObjectiveName = "nll"
    per: Per | None = None
    """What counts alike in the mean: every token, or every rollout. None = token for nll, rollout for grpo."""
    clip: float = 0.2
    """Of grpo: how far the ratio to the sampling policy may leave 1."""
    clip_high: float | None = None
    """Upwards; None = as `clip`."""
    beta: float = 0.0
    """Of grpo: weight of the KL to the reference policy."""
    sdcc_lambda: float = 1.0
    """Of the scheme sdcc: weight of the divergence to the live view."""
    lora: int = 0
    """Rank of the adapters that are trained instead of the weights; 0 = train the weights."""
    merge: bool = False
    """Write adapters into the weights at the end, instead of leaving an adapter."""
    clip_gradient: float = 1.0
    """Largest gradient norm; 0 = do not clip."""
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    seed: int = 0
    bf16: bool = False
    """Autocast to bfloat16; weights and optimizer stay as loaded."""
    save_steps: int = 0
    """Write a checkpoint to resume from every so many steps; 0 = none."""
    eval_steps: int = 0
    """Evaluate every so many steps; 0 = before and after only. Where nothing is held out, never."""
    cpu: bool = False
    """Stay on the CPU even where there is a GPU."""
    sharded: bool = False
    """Among several processes: each holds a share of the weights (FSDP2), not all of them."""

    def __post_init__(self) -> None:
        for name in ("steps", "group", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("clip", "beta", "sdcc_lambda", "lora", "clip_gradient", "weight_decay", "warmup_steps"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name.replace('_', ' ')}: expected 0 or more, got {getattr(self, name)}")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"learning rate: expected more than 0, got {self.learning_rate}")
        if self.merge and not self.lora:
            raise ValueError("merge: expected adapters to merge (lora), got none")
        if self.sharded and self.lora:
            raise ValueError("lora: expected whole weights on each process, got shards; adapters are small as they are")

    @property
    def mean_per(self) -> Per:
        return self.per or ("rollout" if self.objective == "grpo" else "token")

    @property
    def described(self) -> str:
        """The objective in a line, for the card."""
        said = f"{self.objective}, mean per {self.mean_per}"
        if self.objective == "grpo":
            high = self.clip if self.clip_high is None else self.clip_high
            said += f", ratio clipped to {1 - self.clip:g} .. {1 + high:g}, beta {self.beta:g}"
        if self.scheme == "sdcc":
            said += f", lambda {self.sdcc_lambda:g}"
        return said


def arguments(work: Path, settings: Settings, *, evaluates: bool = False, begins: bool = True) -> TrainingArguments:
    """Settings in the words of transformers. `begins`: not resumed."""
    return TrainingArguments(
        output_dir=str(work),
        max_steps=settings.steps,
        per_device_train_batch_size=1,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip_gradient,
        optim="adamw_torch",
        seed=settings.seed,
        use_cpu=settings.cpu,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 1,
        save_total_limit=2,
        eval_strategy="steps" if evaluates and settings.eval_steps else "no",
        eval_steps=settings.eval_steps or None,
        eval_on_start=evaluates and begins,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
