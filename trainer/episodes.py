"""An episode is what one rollout sampled, call by call: what schemes, training and drift take, whatever its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.sample import Sample


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """The samples of one session, in order of their calls; each says which thread it belongs to."""

    name: str
    samples: tuple[Sample, ...]
    kinds: tuple[str, ...]
    """One per sample: what happened to its thread's context just before (`treebuilder.tree.Kind`); empty = unknown."""
    family: str = ""
    """The same for all sessions that share a trunk: the first one's; empty = it shares none that is known."""
    split: str = ""
    """The part of the dataset it is in, such as train or eval; empty = there are no parts."""

    def __post_init__(self) -> None:
        if len(self.kinds) != len(self.samples):
            raise ValueError(f"episode {self.name}: expected {len(self.samples)} kinds, got {len(self.kinds)}")

    @classmethod
    def of(cls, samples: Sequence[Sample], *, name: str = "", kinds: Sequence[str] = ()) -> Episode:
        return cls(name, tuple(samples), tuple(kinds) or ("",) * len(samples))

    @property
    def sampled_tokens(self) -> int:
        return sum(len(sample.completion_ids) for sample in self.samples)
