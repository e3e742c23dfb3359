"""Datasets for trainers, one module per format."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from recorder.errors import ExportError
from trainer import kin
from trainer.export import (
    axolotl,
    llama_factory,
    logittree,
    messages,
    prime_rl,
    skyrl,
    slime,
    tinker,
    torchtune,
    tree,
    trl_grpo,
    trl_sft,
    verl,
)
from trainer.export.folder import MANIFEST, check_free, folder
from trainer.export.manifest import Manifest, file_hash, own_version, tokenizer_hash
from trainer.export.writer import Writer
from trainer.render import Renderer
from trainer.rollouts import Rollout
from trainer.samples import Choice, Selection, samples
from trainer.split import Split
from treebuilder.tree import Trajectory

_MODULES = (
    logittree,
    tree,
    trl_sft,
    trl_grpo,
    axolotl,
    llama_factory,
    verl,
    prime_rl,
    slime,
    skyrl,
    tinker,
    torchtune,
    messages,
)
FORMATS = {module.FORMAT.name: module.FORMAT for module in _MODULES}


def export(
    families: Sequence[Trajectory],
    renderer: Renderer,
    *,
    out: Path,
    sessions: Collection[str] | None = None,
    format: str = "logittree",
    tokenizer: str = "",
    source: str = "",
    state: str = "",
    choice: Choice = Choice(),  # noqa: B008  frozen
    rollouts: Mapping[str, Rollout] | None = None,
    split: Split | None = None,
    shard_rows: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write the sessions of some families as a dataset. A family is asked for when its turn comes, then forgotten.

    `sessions`: only these, None = all. `rollouts`: what they earned, None = every advantage is 1. `split`: parts of the
    dataset, each in a folder of its name. `shard_rows`: rows at which a file is full. `tokenizer` and `source` are
    names for the manifest. `state` says what the families are made of: `resume` goes on only where it is the same.
    `progress` is called after each call. ExportError if `out` is taken, cannot be written, or the tokens do not add
    up: then nothing is at `out`.
    """
    if format not in FORMATS:
        raise ExportError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    chosen = FORMATS[format]
    check_free(out, overwrite=overwrite)
    hashed = tokenizer_hash(renderer.tokenizer)
    settings: dict[str, object] = {
        "memorywalker": own_version(),
        "format": format,
        "tokenizer": hashed,
        "recording": _digest(state),
        "sessions": _digest(None if sessions is None else sorted(sessions)),
        "choice": _digest(replace(choice, kinds=None), sorted(choice.kinds or ())),
        "rewards": _digest(None if rollouts is None else sorted(rollouts.items())),
        "split": repr(split),
        "shard rows": shard_rows,
    }
    with folder(out, settings=settings, overwrite=overwrite, resume=resume) as (unfinished, journal):
        writer = Writer(unfinished, journal, chosen, split.names if split else ("",), shard_rows)

        def write(tree: Trajectory, *, index: int) -> None:
            family = kin.families(tree, rollouts)
            parts = {session: split.part(family[session]) if split else "" for session in family}

            def selections(part: str) -> Iterator[tuple[str, Selection]]:
                for session in family:
                    if parts[session] == part and (sessions is None or session in sessions):
                        one = samples(
                            tree, renderer, session=session, choice=choice, rollouts=rollouts, progress=progress
                        )
                        yield session, replace(one, family=family[session], split=part)

            for part in writer.parts:
                if part in parts.values() and index >= journal.done(part):
                    writer.add(part, selections(part), families=index + 1)
            renderer.forget()

        with writer.abandoning():
            for index in range(writer.begins_at(), len(families)):
                write(families[index], index=index)  # no name here holds a family while the next is built
            shards = writer.finish(len(families))
        counts = writer.counts
        if split is not None:
            split.check(set(counts.parts))
        paths = sorted(p for p in unfinished.rglob("*") if p.is_file() and p != journal.path)
        files = {path.relative_to(unfinished).as_posix(): file_hash(path) for path in paths}
        lost = chosen.lost(rewarded=counts.rewarded > 0, served=counts.grades["served"] > 0)
        manifest = Manifest(format, lost, source, tokenizer, hashed, counts, shards, files, split)
        (unfinished / MANIFEST).write_bytes(manifest.json())
    return manifest


def _digest(*values: object) -> str:
    return "sha256:" + sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()
