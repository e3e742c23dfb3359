"""The LogitTree dataset: read back, it is the rows; written, it is whole or not there."""

from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from chats import assistant, compacted, renderer, reply, thinking, turn, user

from recorder.errors import ExportError
from recorder.importing import read_har
from trainer.export import export
from trainer.export.logittree import SCHEMA
from trainer.samples import samples
from trainer.trie import TokenTrie
from treebuilder.build import build
from treebuilder.tree import Kind, Trajectory

CAPTURES = Path(__file__).parents[1] / "captures"
NAMES = (
    "claude-code/autocompact",
    "claude-code/subagent",
    "opencode/compact_auto_anthropic",
    "opencode/tools_responses",
)


def lines(path: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


class TestReadBack:
    def test_jsonl_and_parquet_hold_the_same_rows(self, tmp_path: Path) -> None:
        export([compacted()], renderer("qwen3"), out=tmp_path / "d")
        table = pq.read_table(tmp_path / "d" / "rows.parquet")
        assert table.schema == SCHEMA
        assert table.to_pylist() == lines(tmp_path / "d" / "rows.jsonl")

    def test_rows_are_the_tries(self, tmp_path: Path) -> None:
        export([compacted()], renderer("qwen3"), out=tmp_path / "d")
        rows = TokenTrie.build(samples(compacted(), renderer("qwen3")).samples).rows()
        written = lines(tmp_path / "d" / "rows.jsonl")
        assert [w["input_ids"] for w in written] == [r.ids.tolist() for r in rows]
        assert [w["loss_mask"] for w in written] == [r.loss_mask.astype(int).tolist() for r in rows]
        assert [(w["id"], w["parent_branch"], w["fork"]) for w in written] == [
            (f"s:{r.branch}", r.parent, r.fork) for r in rows
        ]

    def test_the_fields_of_a_compacted_session(self, tmp_path: Path) -> None:
        export([compacted()], renderer("qwen3"), out=tmp_path / "d")
        main, after = lines(tmp_path / "d" / "rows.jsonl")
        assert (main["branch"], main["parent_branch"], main["fork"], main["fork_kind"]) == (0, None, 0, "root")
        assert (after["branch"], after["parent_branch"], after["fork_kind"]) == (1, 0, "summarized")
        owners = main["owners"]
        assert isinstance(owners, list)
        assert [(o["call"], o["turn"], o["lane"], o["kind"], o["grade"]) for o in owners] == [
            (2, 1, "main", "root", "rendered"),
            (4, 3, "main", "retry", "rendered"),
            (5, 4, "summary", "summary_request", "rendered"),
        ]
        ids, mask, labels, advantages = (main[n] for n in ("input_ids", "loss_mask", "labels", "advantages"))
        assert isinstance(ids, list)
        assert isinstance(mask, list)
        assert labels == [i if m else -100 for i, m in zip(ids, mask, strict=True)]
        assert advantages == [float(m) for m in mask]
        assert set(main["logprobs"]) == {None}  # type: ignore[call-overload]
        tokenizer = renderer("qwen3").tokenizer
        last = owners[-1]
        assert tokenizer.decode(ids[last["start"] : last["stop"]]) == "it was broken<|im_end|>"

    def test_a_row_that_forks_because_thinking_was_dropped_says_so(self, tmp_path: Path) -> None:
        asked, spoken = user("hi"), assistant(thinking("so"), "well")
        dropping = Trajectory(
            (
                turn(0, asked, reply=reply(thinking("so"), "well"), kind=Kind.ROOT),
                turn(1, asked, spoken, user("and"), reply=reply("ok"), parent=0),
            )
        )
        export([dropping], renderer("qwen3"), out=tmp_path / "d")
        written = lines(tmp_path / "d" / "rows.jsonl")
        assert [(w["fork_kind"], [o["kind"] for o in w["owners"]]) for w in written] == [  # type: ignore[attr-defined]
            ("root", ["root"]),
            ("echo", ["append"]),
        ]

    def test_excused_calls_are_listed(self, tmp_path: Path) -> None:
        export([compacted()], renderer("qwen3"), out=tmp_path / "d")
        assert [(e["call"], e["reason"]) for e in lines(tmp_path / "d" / "excused.jsonl")] == [
            (1, "side_call"),
            (3, "aborted"),
            (7, "opaque"),
        ]

    def test_the_manifest_adds_up(self, tmp_path: Path) -> None:
        export([compacted()], renderer("qwen3"), out=tmp_path / "d", tokenizer="tiny", source="traces.db")
        manifest = orjson.loads((tmp_path / "d" / "manifest.json").read_bytes())
        kept = manifest["conservation"]
        assert kept["sampled_tokens"] == kept["trained_tokens"] + kept["excused_tokens"]
        assert kept["trained_tokens"] == sum(sum(r["loss_mask"]) for r in lines(tmp_path / "d" / "rows.jsonl"))  # type: ignore[call-overload]
        assert {r: e["calls"] for r, e in kept["excused"].items()} == {"aborted": 1, "opaque": 1, "side_call": 1}
        assert manifest["counts"]["calls"] == 8
        assert manifest["counts"]["rows"] == 2
        assert manifest["source"] == "traces.db"
        assert manifest["tokenizer"]["name"] == "tiny"
        assert manifest["grades"] == {"rendered": 4}
        assert sorted(manifest["files"]) == ["excused.jsonl", "rows.jsonl", "rows.parquet"]


class TestWrittenWholeOrNotAtAll:
    def test_the_same_input_gives_the_same_bytes(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            export([compacted()], renderer("qwen3"), out=tmp_path / name)
        for file in sorted((tmp_path / "a").iterdir()):
            assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()

    def test_an_export_that_fails_leaves_nothing(self, tmp_path: Path) -> None:
        class Failing(list[Trajectory]):
            def __getitem__(self, at: object) -> Trajectory:  # type: ignore[override]
                raise RuntimeError("the database went away")

        with pytest.raises(RuntimeError, match="went away"):
            export(Failing([compacted()]), renderer("qwen3"), out=tmp_path / "d")
        assert list(tmp_path.iterdir()) == []

    def test_an_earlier_export_stays_unless_overwritten(self, tmp_path: Path) -> None:
        out = tmp_path / "d"
        export([compacted()], renderer("qwen3"), out=out)
        before = (out / "rows.jsonl").read_bytes()
        with pytest.raises(ExportError, match="expected nothing there, got an earlier export; --overwrite replaces it"):
            export([compacted()], renderer("smollm2"), out=out)
        assert (out / "rows.jsonl").read_bytes() == before
        export([compacted()], renderer("smollm2"), out=out, overwrite=True)
        assert (out / "rows.jsonl").read_bytes() != before
        assert [p.name for p in tmp_path.iterdir()] == ["d"]

    def test_other_files_are_never_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("two years")
        with pytest.raises(ExportError, match="expected an empty directory or an earlier export, got other files"):
            export([compacted()], renderer("qwen3"), out=tmp_path, overwrite=True)
        assert (tmp_path / "thesis.txt").read_text() == "two years"

    def test_an_unknown_format_names_the_known_ones(self, tmp_path: Path) -> None:
        with pytest.raises(ExportError, match=r"format: expected one of logittree.*, got 'csv'"):
            export([compacted()], renderer("qwen3"), out=tmp_path / "d", format="csv")

    def test_a_database_without_calls_is_an_empty_dataset(self, tmp_path: Path) -> None:
        export([Trajectory(())], renderer("qwen3"), out=tmp_path / "d")
        assert pq.read_table(tmp_path / "d" / "rows.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("style", "name"), [("qwen3", n) for n in NAMES] + [(s, NAMES[3]) for s in ("llama3", "smollm2")]
)
def test_every_sampled_token_of_a_real_session_trains_once(name: str, style: str, tmp_path: Path) -> None:
    manifest = export([build(read_har(CAPTURES / f"{name}.har"))], renderer(style), out=tmp_path / "d")
    counts = manifest.counts
    assert counts.trained_tokens == counts.owned_tokens > 0
    assert counts.excused_calls.keys() <= {"side_call", "count_tokens"}
    assert counts.branch_tokens < counts.call_tokens
    trained = sum(sum(r["loss_mask"]) for r in lines(tmp_path / "d" / "rows.jsonl"))  # type: ignore[call-overload]
    assert trained == counts.trained_tokens
