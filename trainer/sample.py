"""One model call in tokens: what it was asked (`P_c`), what it sampled (`S_c`), and what the sampling earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Index = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kept:
    """A run of tokens that survived an edit: tokens [before, before + length) are now [after, after + length)."""

    before: int
    after: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One model call: what it was asked (`P_c`) and what it sampled (`S_c`), in tokens."""

    prompt_ids: Ids | Sequence[int]
    """The whole prefix as the model saw it, int32 after construction."""
    completion_ids: Ids | Sequence[int]
    """The sampled tokens with their stop token; empty = nothing to train, only context."""
    advantage: float = 1.0
    """Of the whole rollout; the same on each of its samples."""
    logprobs: Floats | Sequence[float] | None = None
    """Nats, one per sampled token, from the engine that sampled; None = it gave none, not 0."""
    ref_logprobs: Floats | Sequence[float] | None = field(default=None, kw_only=True)
    """Nats, one per sampled token, under the reference policy; None = not computed."""
    reward: float | None = field(default=None, kw_only=True)
    """Of the whole rollout, as it was given; None = none was."""
    group: str | int | None = field(default=None, kw_only=True)
    """Rollouts with the same value are compared with each other for their advantages; None = with none."""
    rollout: str | int | None = field(default=None, kw_only=True)
    """Samples with the same value are one rollout, however often it forked; None = a rollout of its own."""
    thread: str | int | None = field(default=None, kw_only=True)
    """Within a rollout: the line of context it belongs to (main, a subagent), its samples in the order of calls."""
    call: int | None = field(default=None, kw_only=True)
    """The recorder's number of the call; None = not recorded."""
    kept: tuple[Kept, ...] | None = field(default=None, kw_only=True)
    """What of the thread's previous `R_c` is still in this prompt, in order; None = to be inferred from the tokens."""

    def __post_init__(self) -> None:
        for name in ("prompt_ids", "completion_ids"):
            object.__setattr__(self, name, _ids(getattr(self, name), name=name))
        for name in ("logprobs", "ref_logprobs"):
            value = getattr(self, name)
            if value is None:
                continue
            array = np.asarray(value, dtype=np.float64)
            if array.shape != (len(self.completion_ids),):
                expected = f"{len(self.completion_ids)} values, one per sampled token"
                raise ValueError(f"{name} must hold {expected}; got shape {array.shape}")
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    def ids(self) -> Ids:
        """`R_c = P_c + S_c`."""
        return np.concatenate([self.prompt_ids, self.completion_ids])


def _ids(values: Ids | Sequence[int], *, name: str) -> Ids:
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be one list of token ids; got {array.dtype} of shape {array.shape}")
    if array.min() < 0 or array.max() > np.iinfo(np.int32).max:
        bad = int(np.flatnonzero((array < 0) | (array > np.iinfo(np.int32).max))[0])
        raise ValueError(f"{name} must be token ids from 0 to 2^31 - 1; got {array[bad]} at {bad}")
    return array.astype(np.int32, copy=False)
