"""Train on episodes with transformers.Trainer, its forward and backward replaced by one engine call over a token trie.

A step takes `group` episodes into one trie (a trunk they share is computed once), `accumulate` times over, and divides
by the trained tokens of the whole step, so that neither setting changes what a token counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from recorder.errors import TrainError
from trainer.checkpoint import Card, digest, finish, forget, last_checkpoint, same_run, workplace
from trainer.engines.step import Engine
from trainer.losses import Objective, grpo, nll, rollouts
from trainer.models import load_model, load_tokenizer, quiet
from trainer.runlog import RunLog
from trainer.schemes import Plan, engine_for, plan
from trainer.sources import Source
from trainer.trie import TokenTrie

NO_CONTEXT = "no context: first token of an empty prompt"

ObjectiveName = Literal["nll", "grpo"]
Per = Literal["token", "rollout"]
Schedule = Literal["constant", "linear", "cosine"]
FLOPS_PER_TOKEN = 6  # forward and backward, per parameter: Kaplan et al. 2020, table 1


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train; the defaults suit a few steps on a small machine."""

    scheme: str = "logittree"
    engine: str = "auto"
    steps: int = 10
    learning_rate: float = 1e-5
    group: int = 1
    """Episodes in one trie."""
    accumulate: int = 1
    """Tries in one optimizer step."""
    objective: ObjectiveName = "nll"
    per: Per = "token"
    """What counts alike in the mean: every token, or every rollout."""
    beta: float = 0.0
    """Weight of the KL to the reference policy, for grpo; needs reference logprobs on the samples."""
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
    cpu: bool = False
    """Stay on the CPU even where there is a GPU."""

    def __post_init__(self) -> None:
        for name in ("steps", "group", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"learning rate: expected more than 0, got {self.learning_rate}")


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run left behind."""

    out: Path
    steps: int
    losses: tuple[float, ...]
    """One per optimizer step of this process, in nats; a resumed run has only the steps it did itself."""
    card: Card


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    trie: TokenTrie

    @property
    def trained_tokens(self) -> int:
        return self.trie.sampled_tokens - sum(
            not len(s.prompt_ids) and len(s.completion_ids) > 0 for s in self.trie.samples
        )


class _Plans(Dataset[Plan]):
    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, index: int) -> Plan:
        return self.plans[index]


def _collate(plans: Sequence[Plan]) -> dict[str, _Batch]:
    return {"batch": _Batch(TokenTrie.build(sample for one in plans for sample in one.samples))}


class LogitTreeTrainer(Trainer):  # type: ignore[misc]
    """transformers.Trainer over plans: optimizer, schedule, clipping, checkpoints and resume are its own."""

    def __init__(
        self,
        model: PreTrainedModel,
        plans: Sequence[Plan],
        *,
        args: TrainingArguments,
        engine: Engine,
        objective: ObjectiveName = "nll",
        per: Per = "token",
        beta: float = 0.0,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        super().__init__(
            model=model, args=args, train_dataset=_Plans(plans), data_collator=_collate, callbacks=list(callbacks)
        )
        # Both of Trainer's own reporters print to stdout, which belongs to the command's result.
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.engine = engine
        self.objective_name: ObjectiveName = objective
        self.per: Per = per
        self.beta = beta
        self.stats: Mapping[str, float] = {}
        """The engine's statistics of the last trie."""
        self.engine_used = ""
        """The engine that ran last: another than asked for where the backbone forbids sharing."""
        if self.args.world_size > 1:
            raise TrainError(f"expected one process, got {self.args.world_size}: training on several is not there yet")

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, _Batch]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, _Batch]], int | None]:
        """The tries of one optimizer step, and what its mean is taken over: trained tokens, or rollouts."""
        tries = [inputs for _, inputs in zip(range(num_batches), epoch_iterator, strict=False)]
        if self.per == "token":
            return tries, sum(inputs["batch"].trained_tokens for inputs in tries)
        return tries, sum(len(set(rollouts(inputs["batch"].trie))) for inputs in tries)

    def training_step(
        self, model: nn.Module, inputs: dict[str, _Batch], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """One trie: gradients are added to .grad, and its share of the step's loss is returned."""
        model.train()
        over = None if num_items_in_batch is None else float(num_items_in_batch)
        with self.compute_loss_context_manager():
            step = self.engine.backward(
                self.accelerator.unwrap_model(model), inputs["batch"].trie, objective=self._objective(over)
            )
        if not torch.isfinite(step.loss):
            raise TrainError(f"step {self.state.global_step + 1}: expected a finite loss, got {float(step.loss)}")
        self.stats, self.engine_used = step.stats, step.engine
        return step.loss.to(self.args.device)

    def _objective(self, over: float | None) -> Objective:
        if self.objective_name == "nll":
            return nll(per=self.per, over=over)
        return grpo(per=self.per, over=over, beta=self.beta)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The objective's own means (of the step's last trie) go with the loss."""
        super().log({**self.stats, **logs} if "loss" in logs else logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with quiet():
            super().save_model(output_dir, _internal_call)

    def floating_point_ops(self, inputs: dict[str, _Batch]) -> int:
        parameters: int = sum(p.numel() for p in self.accelerator.unwrap_model(self.model).parameters())
        return FLOPS_PER_TOKEN * parameters * inputs["batch"].trie.unique_tokens


def train(
    source: Source,
    *,
    model: str | PreTrainedModel,
    out: Path,
    settings: Settings | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Trained:
    """Train `model` on the source's episodes and leave a Hugging Face checkpoint with a model card at `out`.

    Raises ValueError for an unknown scheme or engine, TrainError where the run cannot start or be written.
    """
    settings = settings or Settings()
    engine = engine_for(settings.scheme, settings.engine)
    plans = [plan(settings.scheme, episode) for episode in source.episodes]
    trainable = [one for one in plans if one.samples]
    if not trainable:
        raise TrainError(f"expected sampled tokens to train on, got none in {len(source.episodes)} episodes")
    work = workplace(out, resume=resume, overwrite=overwrite)
    log = RunLog(work / "log.jsonl", steps=settings.steps)
    try:
        if isinstance(model, str):
            name, tokenizer, model = model, tokenizer or load_tokenizer(model), load_model(model)
        else:
            name = Path(model.name_or_path).name or type(model).__name__
        data = tuple((episode.name, digest(episode)) for episode in source.episodes)
        same_run(work, {"model": name, "data": dict(data), **asdict(settings)})
        with quiet():
            trainer = LogitTreeTrainer(
                model,
                trainable,
                args=arguments(work, settings),
                engine=engine,
                objective=settings.objective,
                per=settings.per,
                beta=settings.beta,
                callbacks=[log],
            )
        with log:
            checkpoint = last_checkpoint(work) if resume else None
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        contextless = sum(one.contextless_tokens for one in plans)
        card = Card(
            base_model=name,
            scheme=settings.scheme,
            engine=trainer.engine_used,
            objective=f"{settings.objective}, mean per {settings.per}",
            steps=trainer.state.global_step,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            sampled_tokens=source.sampled_tokens,
            trained_tokens=sum(one.trained_tokens for one in plans),
            lost_tokens=sum(one.lost_tokens for one in plans),
            excused={**source.excused, **({NO_CONTEXT: contextless} if contextless else {})},
            data=data,
            first_loss=log.first_loss,
            last_loss=log.last_loss,
            notes=source.notes,
        )
        with quiet():
            finish(work, out, model=trainer.accelerator.unwrap_model(trainer.model), tokenizer=tokenizer, card=card)
    except BaseException:
        forget(work)
        raise
    return Trained(out=out, steps=trainer.state.global_step, losses=tuple(log.losses), card=card)


def arguments(work: Path, settings: Settings) -> TrainingArguments:
    """Settings in the words of transformers."""
    return TrainingArguments(
        output_dir=str(work),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.group,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip_gradient,
        optim="adamw_torch",
        seed=settings.seed,
        bf16=settings.bf16,
        use_cpu=settings.cpu,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 1,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
