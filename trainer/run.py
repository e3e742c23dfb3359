"""A training run from a source of episodes to a checkpoint with its card; `memorywalker train` is this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from recorder.errors import TrainError
from trainer.adapters import merged, with_adapters
from trainer.card import Card, digest
from trainer.checkpoint import finish, forget, last_checkpoint, same_run, workplace
from trainer.models import load_model, load_tokenizer, quiet
from trainer.ranks import Ranks
from trainer.reference import with_reference
from trainer.runlog import RunLog
from trainer.schemes import Plan, engine_for, plan
from trainer.settings import Settings, arguments
from trainer.sources import Source
from trainer.train import LogitTreeTrainer

NO_CONTEXT = "no context: first token of an empty prompt"


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run left behind."""

    out: Path
    steps: int
    losses: tuple[float, ...]
    """One per optimizer step of this process, in nats; a resumed run has only the steps it did itself."""
    eval_losses: tuple[float, ...]
    """Of the held-out tokens, nats: before, at every `eval_steps`, and after; empty = nothing is held out."""
    card: Card


def train(
    source: Source,
    *,
    model: str | nn.Module,
    out: Path,
    settings: Settings | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    held_out: Source | None = None,
    reference: str | nn.Module | None = None,
    tensorboard: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> Trained:
    """Train `model` on the source's episodes and leave a Hugging Face checkpoint with a model card at `out`.

    `reference`: the policy of grpo's KL; None = the model as it starts. `tensorboard`: write event files to
    OUT/tensorboard too. Raises ValueError for an unknown scheme or engine, TrainError where the run cannot start or
    be written.
    """
    settings = settings or Settings()
    engine = engine_for(settings.scheme, settings.engine, chunk_tokens=settings.chunk_tokens)
    plans = [plan(settings.scheme, episode) for episode in source.episodes]
    trainable = [one for one in plans if one.trained_tokens]
    if not trainable:
        raise TrainError(f"expected sampled tokens to train on, got none in {len(source.episodes)} episodes")
    if settings.objective == "grpo":
        _rewarded(trainable)
    work = out.with_name(out.name + ".unfinished")
    evaluates = held_out is not None
    args = arguments(work, settings, evaluates=evaluates, begins=not resume)
    with quiet():
        args.device  # noqa: B018  joins the launcher's process group
    ranks = Ranks.here(sharded=settings.sharded)
    if settings.accumulate < ranks.count:
        expected = f"accumulate of {ranks.count} or more, a trie for each process"
        raise TrainError(f"expected {expected}, got {settings.accumulate}")
    if ranks.first:
        workplace(out, resume=resume, overwrite=overwrite)
    ranks.wait()
    log = RunLog(work, steps=settings.steps, tensorboard=tensorboard, first=ranks.first)
    try:
        trained: nn.Module
        if isinstance(model, str):
            name, tokenizer, trained = model, tokenizer or load_tokenizer(model), load_model(model)
        else:
            name, trained = Path(str(getattr(model, "name_or_path", ""))).name or type(model).__name__, model
        data = tuple((episode.name, digest(episode)) for episode in source.episodes)
        if ranks.first:
            same_run(work, {"model": name, "data": dict(data), **asdict(settings)})
        if settings.objective == "grpo" and settings.beta:
            trainable = _referenced(trainable, reference or trained, args.device, settings, ranks)
        if settings.lora:
            trained = with_adapters(trained, rank=settings.lora, seed=settings.seed)
        with quiet():
            trainer = LogitTreeTrainer(
                trained,
                trainable,
                args=args,
                engine=engine,
                settings=settings,
                held_out=[plan("logittree", episode) for episode in held_out.episodes] if held_out else (),
                eval_engine=engine_for("logittree", "auto" if settings.scheme == "mask4d" else settings.engine),
                callbacks=[log],
            )
        with log:
            checkpoint = last_checkpoint(work) if resume else None
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            if evaluates and not (settings.eval_steps and trainer.state.global_step % settings.eval_steps == 0):
                trainer.evaluate()
        state = ranks.state_dict(trainer.model)
        contextless = sum(one.contextless_tokens for one in plans)
        card = Card(
            base_model=name,
            scheme=settings.scheme,
            engine=trainer.engine_used,
            objective=settings.described,
            adapter=f"LoRA of rank {settings.lora}{', merged' if settings.merge else ''}" if settings.lora else "",
            processes=ranks.count,
            steps=trainer.state.global_step,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            sampled_tokens=source.sampled_tokens,
            trained_tokens=sum(one.trained_tokens for one in plans),
            lost_tokens=sum(one.lost_tokens for one in plans),
            excused={**source.excused, **({NO_CONTEXT: contextless} if contextless else {})},
            data=data,
            first_loss=log.first_loss if ranks.first else 0.0,
            last_loss=log.last_loss if ranks.first else 0.0,
            eval_losses=tuple(log.eval_losses),
            eval_data=tuple((episode.name, digest(episode)) for episode in held_out.episodes) if held_out else (),
            notes=source.notes,
        )
        final = merged(trainer.model) if settings.merge else trainer.model
        if ranks.first:
            with quiet():
                finish(work, out, model=final, state=state, tokenizer=tokenizer, card=card)
        ranks.wait()
    except BaseException:
        if ranks.first:
            forget(work)
        raise
    return Trained(out, trainer.state.global_step, tuple(log.losses), tuple(log.eval_losses), card)


def _referenced(
    plans: Sequence[Plan], reference: str | nn.Module, device: torch.device, settings: Settings, ranks: Ranks
) -> list[Plan]:
    policy = load_model(reference) if isinstance(reference, str) else reference
    engine = engine_for(settings.scheme, settings.engine, chunk_tokens=settings.chunk_tokens)
    return with_reference(plans, policy.to(device), engine=engine, group=settings.group, ranks=ranks)


def _rewarded(plans: Sequence[Plan]) -> None:
    """TrainError where nobody said which rollouts were better, or none was."""
    samples = [sample for one in plans for sample in one.samples]
    if all(sample.reward is None and sample.advantage == 1.0 for sample in samples):
        raise TrainError(
            f"grpo: expected rewards, got none in {len(plans)} episodes; memorywalker reward SESSION VALUE"
        )
    if all(sample.advantage == 0.0 for sample in samples):
        expected = "rollouts that earned more and less than others of their group"
        raise TrainError(f"grpo: expected {expected}, got advantage 0 in all {len(plans)} episodes")
