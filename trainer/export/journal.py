"""What is whole in an unfinished dataset: a line for the settings, then one for each shard that was closed.

    {"settings": {"format": "trl-sft", "tokenizer": "sha256:...", ...}}
    {"part": "train", "shard": "train-00000", "families": 12, "rows": 910, "counts": {...}}

A family of sessions of that part is done if its place is below the part's last `families`. What a killed run left
behind its last line is overwritten.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import orjson

from recorder.errors import ExportError
from trainer.export.manifest import Counts

JOURNAL = "unfinished.jsonl"


@dataclass(frozen=True, slots=True)
class Closed:
    """A shard that is whole."""

    part: str
    shard: str
    families: int
    """Families of the source up to its end, those of other parts counted too."""
    rows: int
    files: list[str]
    counts: Counts
    """Of this shard."""

    def line(self) -> bytes:
        content = {
            "part": self.part,
            "shard": self.shard,
            "families": self.families,
            "rows": self.rows,
            "files": self.files,
            "counts": self.counts.plain(),
        }
        return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(slots=True)
class Journal:
    path: Path
    closed: list[Closed]
    _file: BinaryIO

    @classmethod
    def open(cls, folder: Path, settings: dict[str, object], *, resume: bool) -> "Journal":
        """Begin one, or take up the one that is there. ExportError where that one is of another export."""
        path = folder / JOURNAL
        if resume and path.is_file():
            before, closed, size = _read(path)
            if differs := [name for name in settings if before.get(name) != settings[name]]:
                raise ExportError(
                    f"{folder}: expected an unfinished export of the same, got another {', '.join(differs)}; "
                    "without --resume it begins anew"
                )
            if all((folder / name).is_file() for one in closed for name in one.files):
                journal = cls(path, closed, path.open("r+b"))
                journal._file.seek(size)
                return journal
        if folder.exists():
            _empty(folder)
        folder.mkdir(exist_ok=True)
        journal = cls(path, [], path.open("wb"))
        journal._write(orjson.dumps({"settings": settings}, option=orjson.OPT_APPEND_NEWLINE))
        return journal

    @staticmethod
    def holds_shards(folder: Path) -> bool:
        path = folder / JOURNAL
        return path.is_file() and bool(_read(path)[1])

    def done(self, part: str) -> int:
        """Families up to here are whole, as far as they are of this part."""
        return max((one.families for one in self.closed if one.part == part), default=0)

    def add(self, one: Closed) -> None:
        """Its files are on the disk by now."""
        self.closed.append(one)
        self._write(one.line())

    def close(self) -> None:
        self._file.close()

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())


def _read(path: Path) -> tuple[dict[str, object], list[Closed], int]:
    """Settings, shards, and how many bytes are whole lines."""
    settings: dict[str, object] = {}
    closed: list[Closed] = []
    size = 0
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # cut while it was written
        content = orjson.loads(line)
        size += len(line)
        if "settings" in content:
            settings = content["settings"]
        else:
            closed.append(Closed(**content | {"counts": Counts.of(content["counts"])}))
    return settings, closed, size


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            for inner in path.iterdir():
                inner.unlink()
            path.rmdir()
        else:
            path.unlink()
