"""Rows for TRL's SFTTrainer: the tokens and labels of the LogitTree rows, read back by `datasets`."""

from pathlib import Path

from chats import compacted, renderer
from datasets import load_dataset

from trainer.export import export
from trainer.samples import samples
from trainer.trie import TokenTrie


def test_datasets_reads_back_tokens_labels_and_mask(tmp_path: Path) -> None:
    manifest = export([compacted()], renderer("qwen3"), out=tmp_path / "d", format="trl-sft")
    file = str(tmp_path / "d" / "train.parquet")
    read = load_dataset("parquet", data_files=file, cache_dir=str(tmp_path / "cache"))["train"]
    rows = TokenTrie.build(samples(compacted(), renderer("qwen3")).samples).rows()
    assert read["input_ids"][:] == [r.ids.tolist() for r in rows]
    assert read["completion_mask"][:] == [r.loss_mask.astype(int).tolist() for r in rows]
    for ids, mask, labels in zip(read["input_ids"], read["completion_mask"], read["labels"], strict=True):
        assert labels == [i if m else -100 for i, m in zip(ids, mask, strict=True)]
    assert sum(map(sum, read["completion_mask"])) == manifest.counts.trained_tokens
