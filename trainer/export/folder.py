"""A dataset's directory appears whole or not at all: it is written beside its place and renamed into it.

rows/                 the dataset, once it is whole
.rows.unfinished/     until then; it stays where a run was cut short after a shard was whole, and --resume goes on
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recorder.errors import ExportError
from trainer.export.journal import JOURNAL, Journal

MANIFEST = "manifest.json"


def unfinished_of(out: Path) -> Path:
    return out.with_name(f".{out.name}.unfinished")


def check_free(out: Path, *, overwrite: bool) -> None:
    """ExportError if `out` holds something that is not to be replaced."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ExportError(f"{out}: expected a directory or nothing, got a file")
    if not any(out.iterdir()):
        return
    if not (out / MANIFEST).is_file():
        raise ExportError(f"{out}: expected an empty directory or an earlier export, got other files")
    if not overwrite:
        raise ExportError(f"{out}: expected nothing there, got an earlier export; --overwrite replaces it")


@contextmanager
def folder(out: Path, *, settings: dict[str, object], overwrite: bool, resume: bool) -> Iterator[tuple[Path, Journal]]:
    """A directory to write into, which becomes `out` when the block ends well, and what is whole in it already.

    When the block fails, the directory vanishes, unless a shard is whole in it.
    """
    check_free(out, overwrite=overwrite)
    unfinished = unfinished_of(out)
    with _held(unfinished, out):
        try:
            journal = Journal.open(unfinished, settings, resume=resume)
            try:
                yield unfinished, journal
            finally:
                journal.close()
            check_free(out, overwrite=overwrite)
            (unfinished / JOURNAL).unlink()
            if out.exists() and any(out.iterdir()):
                old = out.with_name(f".{out.name}.old")
                shutil.rmtree(old, ignore_errors=True)
                out.rename(old)
                unfinished.rename(out)
                shutil.rmtree(old)
            else:
                unfinished.rename(out)
        except OSError as e:
            raise ExportError(f"{out}: expected to write the dataset, got {e}") from e
        finally:
            if unfinished.exists() and not Journal.holds_shards(unfinished):
                shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _held(unfinished: Path, out: Path) -> Iterator[None]:
    """Nobody else writes there meanwhile; a lock of the operating system, so a killed run holds nothing."""
    lock = unfinished.with_name(f"{unfinished.name}.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as e:
        raise ExportError(f"{out}: expected a place to write to, got {e.strerror}") from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise ExportError(f"{out}: expected to be alone, got another export at work there") from e
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
