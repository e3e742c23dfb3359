"""Datasets for trainers, one module per format."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from recorder.errors import ExportError
from trainer.export import logittree, tree, trl_sft
from trainer.export.folder import MANIFEST, check_free, folder
from trainer.export.manifest import Counts, Manifest, file_hash, tokenizer_hash
from trainer.export.mismatches import Mismatches
from trainer.render import Renderer
from trainer.rollouts import Rollout
from trainer.samples import Choice, Selection, samples
from trainer.split import Split
from trainer.trie import TokenTrie
from treebuilder.tree import Trajectory

WRITERS: dict[str, Callable[[Path], "Writer"]] = {
    "logittree": logittree.Writer,
    "tree": tree.Writer,
    "trl-sft": trl_sft.Writer,
}
FORMATS = tuple(WRITERS)


class Writer(Protocol):
    """Writes one format into a directory, a trajectory at a time."""

    rows: int
    owned_tokens: int
    """Sampled tokens written as trained, counted from what was written."""

    def add(self, trajectory: str, selection: Selection, trie: TokenTrie) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def export(
    trajectories: Iterable[Trajectory],
    renderer: Renderer,
    *,
    out: Path,
    sessions: Collection[str] | None = None,
    format: str = "logittree",
    tokenizer: str = "",
    source: str = "",
    choice: Choice = Choice(),  # noqa: B008  frozen
    rollouts: Mapping[str, Rollout] | None = None,
    split: Split | None = None,
    overwrite: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write the sessions of some trajectories as a dataset; one trajectory, a family whole, at a time is in memory.

    `sessions`: only these, None = all. `rollouts`: what they earned, None = every advantage is 1. `split`: parts of the
    dataset, each in a folder of its name. `tokenizer` and `source` are names for the manifest; `progress` is called
    after each call. ExportError if `out` is taken or cannot be written, or tokens do not add up: nothing is left then.
    """
    if format not in FORMATS:
        raise ExportError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    check_free(out, overwrite=overwrite)
    counts = Counts()
    with folder(out, overwrite=overwrite) as unfinished:
        mismatches = Mismatches(unfinished)
        with ExitStack() as stack:
            writers: dict[str, Writer] = {}
            for part in split.names if split else ("",):
                (unfinished / part).mkdir(exist_ok=True)
                writers[part] = stack.enter_context(WRITERS[format](unfinished / part))
            stack.enter_context(mismatches)
            for trajectory in trajectories:
                part = split.of(trajectory) if split else ""
                for session in trajectory.sessions:
                    if sessions is not None and session not in sessions:
                        continue
                    chosen = samples(
                        trajectory, renderer, session=session, choice=choice, rollouts=rollouts, progress=progress
                    )
                    selection = replace(chosen, split=part)
                    trie = TokenTrie.build(selection.samples)
                    counts.add(selection, trie)
                    mismatches.add(session, selection)
                    writers[part].add(session, selection, trie)
        counts.rows = sum(writer.rows for writer in writers.values())
        counts.owned_tokens = sum(writer.owned_tokens for writer in writers.values())
        counts.check()
        if split:
            split.check(set(counts.parts))
        files = {
            path.relative_to(unfinished).as_posix(): file_hash(path)
            for path in sorted(unfinished.rglob("*"))
            if path.is_file()
        }
        manifest = Manifest(format, source, tokenizer, tokenizer_hash(renderer.tokenizer), counts, files, split)
        (unfinished / MANIFEST).write_bytes(manifest.json())
    return manifest
