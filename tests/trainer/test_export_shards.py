"""A dataset in several files: cut between families, resumed where it was cut short, the same bytes every time."""

import gc
import json
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from chats import compacted, renderer, reply, turn, user
from roundtrip import EARNED, forked

from recorder.errors import ExportError
from trainer.export import FORMATS, export
from trainer.export.folder import unfinished_of
from trainer.export.journal import JOURNAL
from trainer.export.shards import line
from trainer.split import Split
from treebuilder.tree import Kind, Trajectory


def family(name: str) -> Trajectory:
    return Trajectory((turn(0, user("hi"), reply=reply(f"i am {name}"), kind=Kind.ROOT, session=name),))


FAMILIES = [forked(), *(family(f"f{i}") for i in range(4))]


class Cut(list[Trajectory]):
    """Families of which one cannot be had; `asked` are those that were."""

    def __init__(self, families: Sequence[Trajectory], *, at: int) -> None:
        super().__init__(families)
        self.at = at
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> Trajectory:  # type: ignore[override]
        self.asked.append(index)
        if index == self.at:
            raise KeyboardInterrupt
        return super().__getitem__(index)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_input_gives_the_same_bytes(format: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export(FAMILIES, renderer("qwen3"), out=tmp_path / name, format=format, rollouts=EARNED, shard_rows=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_shard_ends_with_the_family_that_fills_it(tmp_path: Path) -> None:
    manifest = export(FAMILIES, renderer("qwen3"), out=tmp_path / "d", format="trl-sft", shard_rows=2)
    names = [f"train-{i:05d}-of-00003.parquet" for i in range(3)]
    assert manifest.shards == {"": names}
    ids = [pq.read_table(tmp_path / "d" / name)["id"].to_pylist() for name in names]
    assert ids == [["s:0", "s:1", "s:1.1", "s:1.2", "s:2", "s:3"], ["f0:0", "f1:0"], ["f2:0", "f3:0"]]


def test_shards_together_hold_what_one_file_holds(tmp_path: Path) -> None:
    whole = export(FAMILIES, renderer("qwen3"), out=tmp_path / "whole")
    cut = export(FAMILIES, renderer("qwen3"), out=tmp_path / "cut", shard_rows=1)
    files = [name for name in cut.shards[""] if name.endswith(".jsonl")]
    assert len(files) == 5
    assert (
        b"".join((tmp_path / "cut" / name).read_bytes() for name in files)
        == (tmp_path / "whole" / "rows.jsonl").read_bytes()
    )
    assert cut.counts == whole.counts


class TestResume:
    @pytest.mark.parametrize("format", ["logittree", "llama-factory"])
    def test_goes_on_behind_the_last_whole_shard_to_the_same_bytes(self, format: str, tmp_path: Path) -> None:
        export(FAMILIES, renderer("qwen3"), out=tmp_path / "whole", format=format, shard_rows=2)
        with pytest.raises(KeyboardInterrupt):
            export(Cut(FAMILIES, at=4), renderer("qwen3"), out=tmp_path / "d", format=format, shard_rows=2)
        assert not (tmp_path / "d").exists()
        again = Cut(FAMILIES, at=-1)
        export(again, renderer("qwen3"), out=tmp_path / "d", format=format, shard_rows=2, resume=True)
        assert again.asked == [3, 4]  # 3 had been written, but to a shard that was not whole
        assert contents(tmp_path / "d") == contents(tmp_path / "whole")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "whole"]

    def test_goes_on_in_each_part_of_a_split(self, tmp_path: Path) -> None:
        split = Split.parse("train=0.5,eval=0.5", seed=8)
        assert [split.part(one.sessions[0]) for one in FAMILIES] == ["train", "eval", "train", "train", "train"]
        export(FAMILIES, renderer("qwen3"), out=tmp_path / "whole", split=split, shard_rows=2)
        with pytest.raises(KeyboardInterrupt):
            export(Cut(FAMILIES, at=4), renderer("qwen3"), out=tmp_path / "d", split=split, shard_rows=2)
        again = Cut(FAMILIES, at=-1)  # at the cut all of train was whole, and nothing of eval
        export(again, renderer("qwen3"), out=tmp_path / "d", split=split, shard_rows=2, resume=True)
        assert contents(tmp_path / "d") == contents(tmp_path / "whole")

    def test_a_half_written_line_of_the_journal_is_not_believed(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            export(Cut(FAMILIES, at=4), renderer("qwen3"), out=tmp_path / "d", shard_rows=2)
        with (unfinished_of(tmp_path / "d") / JOURNAL).open("ab") as f:
            f.write(b'{"part": "", "shard": "all-00002", "fam')
        export(FAMILIES, renderer("qwen3"), out=tmp_path / "whole", shard_rows=2)
        export(FAMILIES, renderer("qwen3"), out=tmp_path / "d", shard_rows=2, resume=True)
        assert contents(tmp_path / "d") == contents(tmp_path / "whole")

    def test_without_it_an_export_begins_anew(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            export(Cut(FAMILIES, at=4), renderer("qwen3"), out=tmp_path / "d", shard_rows=2)
        again = Cut(FAMILIES, at=-1)
        export(again, renderer("qwen3"), out=tmp_path / "d", shard_rows=2)
        assert again.asked == [0, 1, 2, 3, 4]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["d"]

    def test_what_was_begun_otherwise_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            export(Cut(FAMILIES, at=4), renderer("qwen3"), out=tmp_path / "d", shard_rows=2)
        with pytest.raises(
            ExportError, match=r"expected an unfinished export of the same, got another format, recordi"
        ):
            export(FAMILIES, renderer("qwen3"), out=tmp_path / "d", format="tree", state="b", shard_rows=2, resume=True)
        assert unfinished_of(tmp_path / "d").is_dir()

    def test_with_nothing_to_resume_it_is_an_export_like_any(self, tmp_path: Path) -> None:
        export(FAMILIES, renderer("qwen3"), out=tmp_path / "d", resume=True)
        assert (tmp_path / "d" / "rows.jsonl").is_file()


def test_a_second_export_to_the_same_place_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    class Second(list[Trajectory]):
        def __getitem__(self, index: int) -> Trajectory:  # type: ignore[override]
            with pytest.raises(ExportError, match="expected to be alone, got another export at work there"):
                export(FAMILIES, renderer("qwen3"), out=tmp_path / "d")
            return super().__getitem__(index)

    export(Second([compacted()]), renderer("qwen3"), out=tmp_path / "d")
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_line_that_orjson_refuses_is_the_same_json() -> None:
    content = {"ids": np.array([1, 2], dtype=np.int32), "logprobs": np.array([-0.5, np.nan])}
    assert orjson.loads(line(content | {"id": "x"})) == {"ids": [1, 2], "logprobs": [-0.5, None], "id": "x"}
    assert json.loads(line(content | {"id": "\ud83d"})) == {"ids": [1, 2], "logprobs": [-0.5, None], "id": "\ud83d"}


def test_one_family_at_a_time_is_in_memory(tmp_path: Path) -> None:
    alive: list[weakref.ref[Trajectory]] = []

    class Held(Trajectory):
        __slots__ = ("__weakref__",)

    class Made(list[Trajectory]):
        def __getitem__(self, index: int) -> Trajectory:  # type: ignore[override]
            gc.collect()
            assert [ref() for ref in alive if ref() is not None] == []
            one = Held(super().__getitem__(index).turns)
            alive.append(weakref.ref(one))
            return one

    export(Made(FAMILIES), renderer("qwen3"), out=tmp_path / "d")
    assert len(alive) == len(FAMILIES)


def test_parts_of_a_split_are_folders_and_the_manifest_says_which_files_are_whose(tmp_path: Path) -> None:
    split = Split.parse("train=0.5,eval=0.5", seed=3)
    export(FAMILIES, renderer("qwen3"), out=tmp_path / "d", format="llama-factory", split=split)
    manifest = orjson.loads((tmp_path / "d" / "manifest.json").read_bytes())
    assert manifest["shards"] == {
        "train": ["train/data-00000-of-00001.arrow"],
        "eval": ["eval/data-00000-of-00001.arrow"],
    }
    from datasets import DatasetDict, load_from_disk

    parts = load_from_disk(str(tmp_path / "d"))
    assert isinstance(parts, DatasetDict)
    # two families of five are in eval, with one row each; the six rows of the forked one are in one part
    assert {name: part.num_rows for name, part in parts.items()} == {"train": 8, "eval": 2}
