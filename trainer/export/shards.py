"""Files of a dataset: cut at the borders of families of sessions, the same bytes for the same input, one after another.

    rows.parquet          rows.jsonl          excused.jsonl        one shard
    rows-00000-of-00002.parquet               excused.jsonl        more
    train/rows.parquet    eval/rows.parquet                        parts of a split

A shard is full once it holds `shard_rows` rows, or 64 million tokens; the family that fills it ends it, so a family is
never in two. What is in memory is one row group.
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.export.columns import table
from trainer.export.format import FileKind, Format, Record

GROUP_TOKENS = 1 << 20  # ours: a row group is written once it holds a million tokens
SHARD_TOKENS = 1 << 26  # ours: about a gigabyte of JSON

SIDES = ("excused", "mismatches")
"""Calls that do not train, and calls whose served ids are not the template's: one file each beside the rows."""


def line(value: object) -> bytes:
    """JSON and a newline; numpy's NaN is null. Half a surrogate pair, which orjson refuses, is escaped."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    assert isinstance(value, np.ndarray)
    return [None if x != x else x for x in value.tolist()]


@dataclass(slots=True)
class Shard:
    """One open file of each of the format's kinds, and one for each of `SIDES`."""

    folder: Path
    format: Format
    name: str
    """Without its ending; unique in the folder."""
    rows: int = 0
    tokens: int = 0
    trained: int = 0
    _jsonl: BinaryIO | None = None
    _sides: dict[str, BinaryIO] = field(default_factory=dict)
    _parquet: pq.ParquetWriter | None = None
    _arrow: pa.ipc.RecordBatchStreamWriter | None = None
    _group: list[Record] = field(default_factory=list)
    _group_tokens: int = 0

    def __post_init__(self) -> None:
        self._sides = {side: self.path(side).open("wb") for side in SIDES}
        for kind in self.format.files:
            if kind == "jsonl":
                self._jsonl = self.path(kind).open("wb")
            elif kind == "parquet":
                self._parquet = pq.ParquetWriter(self.path(kind), self.format.schema, compression="zstd")
            else:
                self._arrow = pa.ipc.new_stream(self.path(kind), self.format.schema)

    def path(self, kind: FileKind | str) -> Path:
        return self.folder / f"{self.name}.{kind}"

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            if self._jsonl is not None:
                self._jsonl.write(line(record.fields))
            if self._parquet is not None or self._arrow is not None:
                self._group.append(record)
            self._group_tokens += record.tokens
            self.rows += 1
            self.tokens += record.tokens
            self.trained += record.trained
            if self._group_tokens >= GROUP_TOKENS:
                self._flush()

    def note(self, side: str, content: object) -> None:
        self._sides[side].write(line(content))

    @property
    def files(self) -> list[str]:
        return [f"{self.name}.{kind}" for kind in (*self.format.files, *SIDES)]

    def close(self) -> None:
        """Whole and on the disk."""
        self._flush()
        self.abandon()
        for name in self.files:
            with (self.folder / name).open("rb") as f:
                os.fsync(f.fileno())

    def abandon(self) -> None:
        for file in (self._jsonl, *self._sides.values(), self._parquet, self._arrow):
            if file is not None:
                file.close()

    def _flush(self) -> None:
        if self._group:
            group = table(self._group, self.format.schema)
            if self._parquet is not None:
                self._parquet.write_table(group)
            if self._arrow is not None:
                self._arrow.write_table(group)
        self._group, self._group_tokens = [], 0


def settle(folder: Path, format: Format, shards: dict[str, list[str]]) -> dict[str, list[str]]:
    """Give the shards of each part their last names. Part -> its data files, in order, relative to `folder`."""
    for part, names in shards.items():
        for side in SIDES:
            _join([folder / f"{name}.{side}" for name in names], folder / part / f"{side}.jsonl")
    placed = {
        part: [f for kind in format.files for f in _placed(folder, format, kind, part, shards[part])] for part in shards
    }
    if "arrow" in format.files and list(shards) != [""]:
        (folder / "dataset_dict.json").write_bytes(line({"splits": list(shards)}))
    return placed


def _join(pieces: list[Path], whole: Path) -> None:
    """One file of many; none where it would be empty but for `excused.jsonl`, which says so."""
    with whole.open("wb") as out:
        for piece in pieces:
            with piece.open("rb") as f:
                shutil.copyfileobj(f, out)
            piece.unlink()
    if whole.stem != "excused" and not whole.stat().st_size:
        whole.unlink()


def _placed(folder: Path, format: Format, kind: FileKind, part: str, names: list[str]) -> list[str]:
    """Rename the files of one kind; what they are called now."""
    done = []
    for index, name in enumerate(names):
        numbered = f"-{index:05d}-of-{len(names):05d}"
        if kind == "arrow":
            file = f"data{numbered}.arrow"
        else:
            file = f"{format.stem}{numbered if len(names) > 1 else ''}.{kind}"
        (folder / f"{name}.{kind}").rename(folder / part / file)
        done.append((Path(part) / file).as_posix())
    if kind == "arrow":
        _load_from_disk(folder / part, [folder / file for file in done], part)
    return done


def _load_from_disk(folder: Path, files: list[Path], part: str) -> None:
    """What `datasets.load_from_disk` reads beside the data (datasets: src/datasets/arrow_dataset.py, save_to_disk)."""
    digest = sha256()
    for file in files:
        with file.open("rb") as f:
            while block := f.read(1 << 20):
                digest.update(block)
    state: dict[str, object] = {
        "_data_files": [{"filename": file.name} for file in files],
        "_fingerprint": digest.hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": part or None,
    }
    (folder / "state.json").write_bytes(line(state))
    (folder / "dataset_info.json").write_bytes(line({}))  # the features are in the files
