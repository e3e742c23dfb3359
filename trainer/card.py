"""What a checkpoint was made from and how, for people (the model card) and programs; its token counts add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import orjson

from recorder.errors import TrainError
from trainer.episodes import Episode

LIBRARIES = ("memorywalker", "torch", "transformers", "peft")


@dataclass(frozen=True, slots=True)
class Card:
    """What a checkpoint was made from and how."""

    base_model: str
    scheme: str
    engine: str
    objective: str
    adapter: str
    """What was trained instead of the weights, in a few words; empty = the weights themselves."""
    processes: int
    steps: int
    learning_rate: float
    seed: int
    sampled_tokens: int
    """What the model sampled in all calls of the source."""
    trained_tokens: int
    """Of these, the tokens that carried loss."""
    lost_tokens: int
    """Kept as samples, but the scheme has no place for them (0 for logittree)."""
    excused: Mapping[str, int]
    """Reason -> sampled tokens not offered to training at all."""
    data: tuple[tuple[str, str], ...]
    """(episode, content hash), see `digest`."""
    first_loss: float
    last_loss: float
    eval_losses: tuple[float, ...] = ()
    """Of held-out tokens, nats: before, on the way, after; empty = nothing was held out."""
    eval_data: tuple[tuple[str, str], ...] = ()
    """As `data`, of what was held out."""
    notes: tuple[str, ...] = ()
    """Anything that makes the contexts differ from the recorded ones, e.g. a shortened head."""
    versions: Mapping[str, str] = field(default_factory=lambda: _versions())

    def __post_init__(self) -> None:
        counted = self.trained_tokens + self.lost_tokens + sum(self.excused.values())
        if counted != self.sampled_tokens:
            raise TrainError(
                f"conservation: expected {self.sampled_tokens} sampled tokens = trained + lost + excused, got {counted}"
            )


def digest(episode: Episode) -> str:
    """Tagged hash of an episode's tokens: prompts and completions in order, each length-prefixed."""
    h = blake2b(b"episode\0", digest_size=16)
    for sample in episode.samples:
        for ids in (sample.prompt_ids, sample.completion_ids):
            h.update(len(ids).to_bytes(8, "little"))
            h.update(np.asarray(ids, dtype="<i4").tobytes())
    return "b2:" + h.hexdigest()


def markdown(card: Card) -> str:
    """The model card, as the Hugging Face hub reads it."""
    library = "peft" if card.adapter and "merged" not in card.adapter else "transformers"
    held_out = f"{card.eval_losses[0]:.4f}, {card.eval_losses[-1]:.4f}" if card.eval_losses else ""
    lines = [
        "---",
        f"library_name: {library}",
        "pipeline_tag: text-generation",
        f"base_model: {orjson.dumps(card.base_model).decode()}",
        "tags: [memorywalker]",
        "---",
        "",
        f"# {Path(card.base_model).name} after {_count(card.steps, 'step')} with memorywalker",
        "",
        *_table(
            ("", ""),
            [
                ("scheme", card.scheme),
                ("engine", card.engine),
                ("objective", card.objective),
                *((("trained", card.adapter),) if card.adapter else ()),
                *((("processes", str(card.processes)),) if card.processes > 1 else ()),
                ("learning rate", f"{card.learning_rate:g}"),
                ("seed", str(card.seed)),
                ("loss, first and last step", f"{card.first_loss:.4f}, {card.last_loss:.4f}"),
                *((("held-out loss, before and after", held_out),) if card.eval_losses else ()),
                *((name, text) for name, text in card.versions.items()),
            ],
        ),
        "",
        "## Sampled tokens",
        "",
        *_table(
            ("", "tokens"),
            [
                ("sampled", f"{card.sampled_tokens:,}"),
                ("trained", f"{card.trained_tokens:,}"),
                ("lost by the scheme", f"{card.lost_tokens:,}"),
                *((f"excused: {reason}", f"{count:,}") for reason, count in card.excused.items()),
            ],
        ),
        "",
        *([*(f"Note: {note}." for note in card.notes), ""] if card.notes else []),
        "## Data",
        "",
        *_table(("episode", "tokens' hash"), list(card.data)),
        *(["", "Held out:", "", *_table(("episode", "tokens' hash"), list(card.eval_data))] if card.eval_data else []),
    ]
    return "\n".join(lines) + "\n"


def _table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"| {a} | {b} |" for a, b in (head, ("---", "---"), *rows)]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
