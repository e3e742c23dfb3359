"""A run's directory: built under another name, given its own when whole, with a card that says what it learned from.

OUT.unfinished/   while the run goes: checkpoint-N/ (weights, optimizer, random state), run.json, log.jsonl
OUT/              afterwards: a Hugging Face checkpoint, README.md (the card), memorywalker.json (the same for programs)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from recorder.errors import TrainError
from trainer.card import Card, markdown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RUN = "run.json"


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
    work: Path,
    out: Path,
    *,
    model: Any,
    state: dict[str, Any] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    card: Card,
) -> None:
    """Write the final weights, the tokenizer and the card, drop what only resuming needs, rename the directory.

    `state`: the weights where the model holds only its share of them.
    """
    model.save_pretrained(work, state_dict=state)
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
