"""The packed trie as written: walking `before` from where a call ended gives back what the model had."""

from pathlib import Path

import pyarrow.parquet as pq
from chats import compacted, renderer

from trainer.export import export
from trainer.samples import samples
from trainer.trie import TokenTrie


def test_each_call_reads_back_from_its_last_token(tmp_path: Path) -> None:
    export([compacted()], renderer("qwen3"), out=tmp_path / "d", format="tree")
    (row,) = pq.read_table(tmp_path / "d" / "tree.parquet").to_pylist()
    ids, before, position = row["input_ids"], row["before"], row["position"]
    chosen = samples(compacted(), renderer("qwen3"))
    for sample in chosen.samples:
        (run,) = [o for o in row["owners"] if o["call"] == sample.call]
        assert run["length"] == len(sample.completion_ids)
        walk: list[int] = []
        at = run["offset"] + run["length"] - 1
        while at >= 0:
            assert position[at] == len(sample.ids()) - 1 - len(walk)
            walk.append(ids[at])
            at = before[at]
        assert walk[::-1] == sample.ids().tolist()


def test_every_token_stands_once(tmp_path: Path) -> None:
    manifest = export([compacted()], renderer("qwen3"), out=tmp_path / "d", format="tree")
    (row,) = pq.read_table(tmp_path / "d" / "tree.parquet").to_pylist()
    trie = TokenTrie.build(samples(compacted(), renderer("qwen3")).samples)
    assert len(row["input_ids"]) == trie.unique_tokens == sum(n["length"] for n in row["nodes"])
    assert [n["parent"] for n in row["nodes"]] == [-1, 0, 0]
    assert manifest.counts.owned_tokens == manifest.counts.trained_tokens == sum(o["length"] for o in row["owners"])
