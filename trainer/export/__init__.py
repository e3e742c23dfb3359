"""Datasets for trainers, one module per format."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from recorder.errors import ExportError
from trainer.export import logittree, tree, trl_sft
from trainer.export.folder import MANIFEST, check_free, folder
from trainer.export.manifest import Counts, Manifest, file_hash, tokenizer_hash
from trainer.render import Renderer
from trainer.samples import Choice, Selection, samples
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
    sessions: Sequence[str] | None = None,
    format: str = "logittree",
    tokenizer: str = "",
    source: str = "",
    choice: Choice = Choice(),  # noqa: B008  frozen
    overwrite: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write the sessions of some trajectories as a dataset; one session at a time is in memory.

    `sessions`: only these, None = all. `tokenizer` and `source` are names for the manifest; `progress` is called after
    each call. ExportError if `out` is taken, cannot be written, or the tokens do not add up: then nothing is left.
    """
    if format not in FORMATS:
        raise ExportError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    check_free(out, overwrite=overwrite)
    counts = Counts()
    with folder(out, overwrite=overwrite) as unfinished:
        with WRITERS[format](unfinished) as writer:
            for trajectory in trajectories:
                for session in trajectory.sessions if sessions is None else sessions:
                    selection = samples(trajectory, renderer, session=session, choice=choice, progress=progress)
                    trie = TokenTrie.build(selection.samples)
                    counts.add(selection, trie)
                    writer.add(session, selection, trie)
        counts.rows, counts.owned_tokens = writer.rows, writer.owned_tokens
        counts.check()
        files = {path.name: file_hash(path) for path in sorted(unfinished.iterdir())}
        manifest = Manifest(format, source, tokenizer, tokenizer_hash(renderer.tokenizer), counts, files)
        (unfinished / MANIFEST).write_bytes(manifest.json())
    return manifest
