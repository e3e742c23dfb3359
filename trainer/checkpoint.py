"""A run's directory: built under another name, given its own when whole, with a card that says what it learned from.

OUT.unfinished/   while the run goes: checkpoint-N/ (weights, optimizer, random state), run.json, log.jsonl
OUT/              afterwards: a Hugging Face checkpoint, README.md (the card), memorywalker.json (the same for programs)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson

from recorder.errors import TrainError
from trainer.episodes import Episode

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RUN = "run.json"
LIBRARIES = ("memorywalker", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Card:
    """What a checkpoint was made from and how."""

    base_model: str
    scheme: str
    engine: str
    objective: str
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


def workplace(out: Path, *, resume: bool, overwrite: bool) -> Path:
    """The directory a run works in until it is whole; refuses what would be lost."""
    work = out.with_name(out.name + ".unfinished")
    if out.exists() and not overwrite and not (out.is_dir() and not any(out.iterdir())):
        raise TrainError(f"expected a new directory, got {out}, which exists; give --overwrite or another --out")
    if work.exists() and not resume:
        if not overwrite:
            raise TrainError(
                f"expected no unfinished run, got {work}; give --resume to go on or --overwrite to start over"
            )
        shutil.rmtree(work)
    if resume and not work.exists():
        raise TrainError(f"expected an unfinished run to resume, got none at {work}")
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise TrainError(f"expected to write to {work}, got {e}") from e
    return work


def same_run(work: Path, run: Mapping[str, object]) -> None:
    """Note what an unfinished run is made of; TrainError where one that is resumed was made of something else."""
    note = work / RUN
    if note.exists():
        before = orjson.loads(note.read_bytes())
        now = orjson.loads(orjson.dumps(run))
        for name in before.keys() | now.keys():
            if before.get(name) != now.get(name):
                raise TrainError(f"{work}: expected {name} {before.get(name)} to resume with, got {now.get(name)}")
    note.write_bytes(orjson.dumps(run))


def last_checkpoint(work: Path) -> Path | None:
    """The newest complete checkpoint; None = the run got to none."""
    found = [p for p in work.glob("checkpoint-*") if (p / "trainer_state.json").is_file() and p.name[11:].isdigit()]
    return max(found, key=lambda p: int(p.name[11:]), default=None)


def forget(work: Path) -> None:
    """After a failure: remove a run that got to no checkpoint, keep one that can be resumed."""
    if work.exists() and last_checkpoint(work) is None:
        shutil.rmtree(work)


def finish(
    work: Path, out: Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, card: Card
) -> None:
    """Write the final weights, the tokenizer and the card, drop what only resuming needs, rename the directory."""
    model.save_pretrained(work)
    if tokenizer is not None:
        tokenizer.save_pretrained(work)
    (work / "README.md").write_text(markdown(card), encoding="utf-8")
    (work / "memorywalker.json").write_bytes(orjson.dumps(asdict(card), option=orjson.OPT_INDENT_2) + b"\n")
    for checkpoint in work.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    (work / RUN).unlink(missing_ok=True)
    old = out.with_name(out.name + ".replaced")
    if old.exists():
        shutil.rmtree(old)
    if out.exists():
        out.rename(old)
    os.rename(work, out)
    if old.exists():
        shutil.rmtree(old)


def markdown(card: Card) -> str:
    """The model card, as the Hugging Face hub reads it."""
    lines = [
        "---",
        "library_name: transformers",
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
                ("learning rate", f"{card.learning_rate:g}"),
                ("seed", str(card.seed)),
                ("loss, first and last step", f"{card.first_loss:.4f}, {card.last_loss:.4f}"),
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
