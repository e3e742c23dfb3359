"""What each of several processes runs in test_distributed.py; alone it gives what they are held against.

python on_ranks.py FOLDER RANK COUNT      ranks meet over a file in FOLDER: no port is opened for it
"""

from __future__ import annotations

import contextlib
import copy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from oracles import float64_model
from torch import nn
from transformers import TrainerCallback

from trainer.episodes import Episode
from trainer.run import train
from trainer.schemes import engine_for, plan
from trainer.settings import Settings, arguments
from trainer.sources import Source
from trainer.train import LogitTreeTrainer
from trainer.trie import Sample

EPISODES = (
    Episode.of([Sample([1, 2], [3, 4]), Sample([1, 2, 9], [5])], name="two short calls"),
    Episode.of([Sample([*range(1, 20)], [20 + n, *range(30, 40)]) for n in range(12)], name="twelve legs"),
    Episode.of([Sample([7], [8])], name="one token"),
    Episode.of([Sample([40 + n, 41, 42, *range(n)], [n + 1, n + 2]) for n in range(5)], name="five roots"),
    Episode.of([Sample([1, 2, 3], [4, 5]), Sample([1, 3, 4, 5, 6], [7, 8])], name="evicted"),
)
"""Of very different numbers of visits. Five episodes, three tries a step: the second step of an epoch has two."""

CASES: dict[str, dict[str, Any]] = {
    "depth first": {"engine": "depth-first"},
    "depth first, chunks of 3 recomputed": {"engine": "depth-first", "chunk_tokens": 3},
    "packed": {"engine": "packed"},
    "separate": {"engine": "separate"},
    "rollout mean": {"engine": "depth-first", "per": "rollout"},
    "grpo": {"engine": "depth-first", "objective": "grpo", "beta": 0.1},
    "sdcc": {"engine": "depth-first", "scheme": "sdcc", "sdcc_lambda": 0.5},
    "five tries, clipped": {"engine": "depth-first", "accumulate": 5, "clip_gradient": 0.5},
    "an idle rank": {"engine": "depth-first", "group": 5, "accumulate": 3},
}


class _Gradients(TrainerCallback):  # type: ignore[misc]
    """Takes what the optimizer would be given."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: object, state: object, control: object, **kwargs: Any) -> None:
        found = {}
        for name, p in kwargs["model"].named_parameters():
            grad = p.grad
            found[name] = (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).detach().clone()
        self.steps.append(found)


def gradients_of(case: str, folder: Path, *, sharded: bool) -> dict[str, Any]:
    """Gradients, losses and statistics of two steps."""
    settings = Settings(steps=2, cpu=True, sharded=sharded, **{"accumulate": 3, "clip_gradient": 0.0, **CASES[case]})
    plans = [plan(settings.scheme, episode) for episode in EPISODES]
    model: nn.Module = copy.deepcopy(float64_model())
    if settings.beta:
        from trainer.ranks import Ranks
        from trainer.reference import with_reference

        plans = with_reference(plans, model, engine=engine_for("logittree", "auto"), ranks=Ranks.here(sharded=False))
    taken, stats = _Gradients(), []

    class _Trainer(LogitTreeTrainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            if "loss" in logs:
                stats.append({"loss": logs["loss"], "norm": float(logs["grad_norm"]), **self.stats})

    trainer = _Trainer(
        model,
        plans,
        args=arguments(folder / "work", settings),
        engine=engine_for(settings.scheme, settings.engine, chunk_tokens=settings.chunk_tokens),
        settings=settings,
        callbacks=[taken],
    )
    trainer.train()
    return {"gradients": taken.steps, "stats": stats}


def runs(folder: Path) -> None:
    """Whole runs to a checkpoint: replicated and sharded, cut short and resumed."""
    source, held_out = Source(EPISODES[:4]), Source(EPISODES[4:])
    for name, sharded in (("replicated", False), ("sharded", True)):
        settings = Settings(steps=4, accumulate=2, learning_rate=1e-2, save_steps=1, cpu=True, sharded=sharded)
        train(source, model="tiny", out=folder / name, settings=settings, held_out=held_out)
        if name == "sharded":
            _cut_and_resume(source, folder / "resumed", settings, held_out)


def _cut_and_resume(source: Source, out: Path, settings: Settings, held_out: Source) -> None:
    from trainer.runlog import RunLog

    def killed(self: object, args: object, state: Any, control: object, **kwargs: object) -> None:
        if state.global_step == 3:
            raise KeyboardInterrupt

    RunLog.on_step_end = killed
    with contextlib.suppress(KeyboardInterrupt):
        train(source, model="tiny", out=out, settings=settings, held_out=held_out)
    del RunLog.on_step_end
    train(source, model="tiny", out=out, settings=settings, held_out=held_out, resume=True)


def main(folder: Path, rank: int, count: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    found = {}
    for sharded in (False, True):
        for case in CASES:
            found[case, sharded] = gradients_of(case, folder, sharded=sharded)
    if rank == 0:
        torch.save(found, folder / "gradients.pt")
    runs(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
