"""A dataset's directory appears whole or not at all: it is written beside its place and renamed into it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recorder.errors import ExportError

MANIFEST = "manifest.json"


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
def folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A directory to write into, which becomes `out` when the block ends well and vanishes when it does not."""
    check_free(out, overwrite=overwrite)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    except OSError as e:
        raise ExportError(f"{out}: expected a place to write to, got {e.strerror}") from e
    try:
        yield unfinished
        check_free(out, overwrite=overwrite)
        if out.exists() and any(out.iterdir()):
            old = unfinished.with_name(unfinished.name + ".old")
            out.rename(old)
            unfinished.rename(out)
            shutil.rmtree(old)
        else:
            unfinished.rename(out)
    except OSError as e:
        raise ExportError(f"{out}: expected to write the dataset, got {e}") from e
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
