"""Train on episodes with transformers.Trainer, its forward and backward replaced by engine calls over token tries.

A step takes `accumulate` tries of `group` episodes each (a trunk they share is computed once), spreads them over the
processes, and divides by the trained tokens of the whole step, so that neither setting changes what a token counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from recorder.errors import TrainError
from trainer.conditioning import conditioned, diverging_tokens
from trainer.engines.step import Engine
from trainer.losses import Objective, grpo, nll
from trainer.models import quiet
from trainer.ranks import Ranks
from trainer.schedule import Together, shares, steps_of
from trainer.schemes import Plan
from trainer.settings import Settings
from trainer.trie import TokenTrie

FLOPS_PER_TOKEN = 6  # forward and backward, per parameter: Kaplan et al. 2020, table 1


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One optimizer step: this rank's tries, and what all ranks' means are taken over."""

    tries: tuple[tuple[tuple[Plan, ...], TokenTrie], ...]
    trained_tokens: int
    rollouts: int
    """With a trained token; one that forked counts once."""
    diverging_tokens: int


class Works(Dataset[Work]):
    """All steps of a run, in order: item n is the work of step n on this rank."""

    def __init__(self, plans: Sequence[Plan], *, settings: Settings, ranks: Ranks) -> None:
        self.plans = _alike([_named(one, number) for number, one in enumerate(plans)])
        self.sdcc = settings.scheme == "sdcc"
        self.ranks = ranks
        self.steps = steps_of(
            len(plans),
            group=settings.group,
            accumulate=settings.accumulate,
            steps=settings.steps,
            seed=settings.seed,
        )

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> Work:
        found = [(self._plans(together), self._trie(together)) for together in self.steps[index]]
        mine = shares([trie.unique_tokens for _, trie in found], self.ranks.count)[self.ranks.rank]
        plans = [one for together, _ in found for one in together]
        return Work(
            tries=tuple(found[at] for at in mine),
            trained_tokens=sum(one.trained_tokens for one in plans),
            rollouts=len({s.rollout for one in plans for s in one.samples if len(s.prompt_ids) or len(s) > 1}),
            diverging_tokens=diverging_tokens(plans) if self.sdcc else 0,
        )

    def _plans(self, together: Together) -> tuple[Plan, ...]:
        return tuple(self.plans[at] for at in together)

    def _trie(self, together: Together) -> TokenTrie:
        return TokenTrie.build(sample for one in self._plans(together) for sample in one.samples)


def _named(one: Plan, number: int) -> Plan:
    """An episode is what one rollout sampled: where its samples do not say so, their number does."""
    samples = tuple(replace(s, rollout=f"episode {number}") if s.rollout is None else s for s in one.samples)
    return replace(one, samples=samples)


def _alike(plans: Sequence[Plan]) -> list[Plan]:
    """By group, then by first tokens: neighbours, which share a trie, have the most in common."""

    def key(one: Plan) -> tuple[str, bytes]:
        first = one.samples[0]
        return str(first.group or ""), np.asarray(first.prompt_ids).astype(">i4").tobytes()

    return sorted(plans, key=key)


class LogitTreeTrainer(Trainer):  # type: ignore[misc]
    """transformers.Trainer over plans: optimizer, schedule, clipping, checkpoints and resume are its own."""

    def __init__(
        self,
        model: nn.Module,
        plans: Sequence[Plan],
        *,
        args: TrainingArguments,
        engine: Engine,
        settings: Settings,
        held_out: Sequence[Plan] = (),
        eval_engine: Engine | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        """`held_out`: laid out as they were sampled, whatever the scheme that trains."""
        self.ranks = Ranks.here(sharded=settings.sharded)
        if args.n_gpu > 1:
            args._n_gpu = 1  # several GPUs take several processes; DataParallel would copy the model at each call
        super().__init__(
            model=model,
            args=args,
            train_dataset=Works(plans, settings=settings, ranks=self.ranks),
            eval_dataset=list(held_out),
            callbacks=list(callbacks),
        )
        # Both of Trainer's own reporters print to stdout, which belongs to the command's result.
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        # DDP would hold a second copy of the gradients and never be called: trainer/ranks.py adds them up.
        self.accelerator.prepare_model = lambda prepared, **_: prepared
        self.engine = engine
        self.eval_engine = eval_engine or engine
        self.settings = settings
        self.stats: Mapping[str, float] = {}
        """The objective's means over the last step, all ranks."""
        self.engine_used = ""
        """The engine that ran last: another than asked for where the backbone forbids sharing."""

    def get_train_dataloader(self) -> DataLoader[Work]:
        """In order and whole on every rank: which tries are its own is in each work."""
        return DataLoader(self.train_dataset, batch_size=1, collate_fn=lambda works: {"work": works[0]})

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], None]:
        return [inputs for _, inputs in zip(range(num_batches), epoch_iterator, strict=False)], None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Behind the loading of a checkpoint's weights, before any optimizer state."""
        self.ranks.shard(self.model)
        return super().create_optimizer(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: dict[str, Work], num_items_in_batch: object = None) -> Tensor:
        """This rank's tries, then the sum over ranks: gradients in .grad, the step's loss returned."""
        work = inputs["work"]
        model.train()
        loss = torch.zeros((), dtype=torch.float64)
        found: list[Mapping[str, float]] = []
        with self.ranks.step(model):
            for plans, trie in work.tries:
                with self._autocast():
                    objective = self._objective(work, plans, model)
                    step = self.engine.backward(model, trie, objective=objective)
                loss += step.loss.double().cpu()
                found.append(step.stats)
                self.engine_used = step.engine
        parts = self.ranks.gathered((float(loss), found, self.engine_used))
        total = sum(part for part, _, _ in parts)
        if not total - total == 0:
            raise TrainError(f"step {self.state.global_step + 1}: expected a finite loss, got {total}")
        self.stats = _joined([stats for _, members, _ in parts for stats in members])
        self.engine_used = self.engine_used or next((used for _, _, used in parts if used), "")
        return torch.tensor(total, device=self.args.device)

    def _objective(self, work: Work, plans: Sequence[Plan], model: nn.Module) -> Objective:
        settings = self.settings
        per = settings.mean_per
        over = float(work.trained_tokens if per == "token" else work.rollouts)
        if settings.objective == "nll":
            task = nll(per=per, over=over)
        else:
            clip, high = settings.clip, settings.clip_high
            task = grpo(clip=clip, clip_high=high, beta=settings.beta, per=per, over=over, entropy=True)
        if not work.diverging_tokens:
            return task
        return conditioned(
            plans,
            task,
            model=model,
            engine=self.engine,
            strength=settings.sdcc_lambda,
            over=work.diverging_tokens,
        )

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if not self.settings.bf16:
            return contextlib.nullcontext()
        # Without its cache: versions of torch gave what a forward without gradient had cast to the next with gradient.
        return torch.autocast(self.args.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def evaluate(
        self, eval_dataset: object = None, ignore_keys: object = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Mean negative logprob of the held-out tokens, each in the context it was sampled in."""
        training = self.model.training
        self.model.eval()
        found = torch.zeros(2, dtype=torch.float64)
        with self.ranks.whole(self.model), self._autocast():
            for one in self.eval_dataset[self.ranks.rank :: self.ranks.count]:
                for logprob in self.eval_engine.logprobs(self.model, TokenTrie.build(one.samples)):
                    known = logprob[~logprob.isnan()].double().cpu()
                    found += torch.stack([-known.sum(), torch.tensor(float(len(known)), dtype=torch.float64)])
        self.model.train(training)
        total, tokens = self.ranks.total(found.to(self.args.device)).tolist()
        metrics = {f"{metric_key_prefix}_loss": total / max(tokens, 1), f"{metric_key_prefix}_tokens": tokens}
        self.log(dict(metrics))
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The objective's own means go with the loss."""
        super().log({**self.stats, **logs} if "loss" in logs else logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        self._save(output_dir or self.args.output_dir, state_dict=self.ranks.state_dict(self.model))

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        with quiet():
            super()._save_checkpoint(model, trial)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.ranks.sharded:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        whole = get_optimizer_state_dict(self.model, self.optimizer.optimizer, options=options)
        if self.ranks.first:
            torch.save(whole, Path(output_dir) / "optimizer.pt")
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.ranks.sharded or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        whole = torch.load(Path(checkpoint) / "optimizer.pt", weights_only=True)
        options = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(self.model, self.optimizer.optimizer, whole, options=options)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True))

    def floating_point_ops(self, inputs: dict[str, Work]) -> int:
        parameters: int = sum(p.numel() for p in self.model.parameters())
        return FLOPS_PER_TOKEN * parameters * sum(trie.unique_tokens for _, trie in inputs["work"].tries)


def _joined(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Statistics of several tries as of one: counts add up, extremes are the extreme, means are weighted."""
    found: dict[str, float] = {}
    weight = sum(part.get("weight", 0.0) for part in parts)
    for name in {name: None for part in parts for name in part}:
        values = [(part[name], part.get("weight", 0.0)) for part in parts if name in part]
        if name in ("weight", "tokens", "divergence"):  # a trie's divergence is its share of the step's mean
            found[name] = sum(value for value, _ in values)
        elif name.endswith("_max"):
            found[name] = max(value for value, _ in values)
        else:
            found[name] = sum(value * share for value, share in values) / weight if weight else 0.0
    return found
