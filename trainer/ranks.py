"""Several processes, one gradient: each rank visits its own tries as often as it likes, then all add up once a step.

    alone        one process, nothing to do
    replicated   every rank holds the model (DDP's layout); gradients are all-reduced when the rank has done its tries
    sharded      FSDP2 holds a share of weights, gradients and optimizer state on each rank; a step gathers the weights
                 once and reduces the gradients once

Neither DDP's nor FSDP's own hooks are used on the way: a depth-first walk makes many forwards and backwards, another
number on every rank, and hooks that communicate in each of them would wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recorder.errors import TrainError

BUCKET_BYTES = 64 << 20  # ours: a few collectives a step, and little memory beside the gradients

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among all of them."""

    rank: int = 0
    count: int = 1
    sharded: bool = False

    @classmethod
    def here(cls, *, sharded: bool) -> Ranks:
        """The process group that the launcher set up; alone where there is none."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size(), sharded and dist.get_world_size() > 1)

    @property
    def first(self) -> bool:
        """Writes files and speaks for all."""
        return self.rank == 0

    def wait(self) -> None:
        """For all ranks."""
        if self.count > 1:
            dist.barrier()

    def total(self, value: Tensor) -> Tensor:
        """The sum over ranks, on every rank."""
        if self.count > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def gathered(self, mine: T) -> list[T]:
        """What every rank has, in order of ranks."""
        if self.count == 1:
            return [mine]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, mine)
        return found

    def shard(self, model: nn.Module) -> None:
        """Leave each rank its share of the parameters. TrainError where torch is too old for it."""
        if not self.sharded or is_sharded(model):
            return
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise TrainError(f"sharding: expected torch 2.9 or newer, got {torch.__version__}")
        # One group for the whole model: its weights are gathered once a step whatever the grouping.
        whole: Any = fully_shard(model)
        whole.set_gradient_divide_factor(1.0)
        whole.set_force_sum_reduction_for_comms(True)

    @contextmanager
    def whole(self, model: Any) -> Iterator[None]:
        """Within: the model has all of its weights, for forwards without gradient."""
        sharded = is_sharded(model)
        if sharded:
            model.unshard()
        yield
        if sharded:
            model.reshard()

    @contextmanager
    def step(self, model: Any) -> Iterator[None]:
        """Within: the tries of this rank add to .grad as if it were alone; afterwards .grad is the sum over ranks."""
        if is_sharded(model):
            model.unshard()
            yield
            self._close(model)
            return
        yield
        if self.count > 1:
            _add_up([p for p in model.parameters() if p.requires_grad])

    def _close(self, model: Any) -> None:
        """One more visit, of one token and weight 0: its backward is where FSDP reduces what has been added to .grad.

        Every rank makes exactly one, whatever its tries were.
        """
        ids_11 = torch.zeros(1, 1, dtype=torch.int64, device=next(model.parameters()).device)
        with torch.autocast(ids_11.device.type, enabled=False):
            (model(input_ids=ids_11, use_cache=False).logits.sum() * 0).backward()

    def state_dict(self, model: nn.Module) -> dict[str, Any] | None:
        """All weights, gathered on the first rank; None = the model has them at hand."""
        if not is_sharded(model):
            return None
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def is_sharded(model: nn.Module) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def _add_up(parameters: Sequence[nn.Parameter]) -> None:
    """All-reduce .grad in buckets; a rank without tries adds zeros."""
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    grads = [p.grad for p in parameters if p.grad is not None]
    bucket: list[Tensor] = []
    for at, grad in enumerate(grads):
        bucket.append(grad)
        following = grads[at + 1] if at + 1 < len(grads) else None
        size = sum(one.nbytes for one in bucket)
        if following is None or following.dtype != grad.dtype or size + following.nbytes > BUCKET_BYTES:
            flat = torch.cat([one.reshape(-1) for one in bucket])
            dist.all_reduce(flat)
            for one, summed in zip(bucket, torch.split(flat, [one.numel() for one in bucket]), strict=True):
                one.copy_(summed.view_as(one))
            bucket = []
