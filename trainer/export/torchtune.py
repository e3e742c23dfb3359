"""torchtune, tokens as they are: what its recipes get from any dataset.

    tokens   list[int]   the whole context, root to leaf
    labels   list[int]   tokens where trained, else -100 (not shifted: the recipes shift)

torchtune's own builders tokenise messages, so a dataset of tokens is a component of two lines, named in the config as
`dataset: {_component_: rows.rows, data_files: DIR/train*.parquet}` with this as rows.py:

    from datasets import load_dataset

    def rows(tokenizer, data_files):
        return load_dataset("parquet", data_files=data_files, split="train").select_columns(["tokens", "labels"])

Read from: pytorch/torchtune recipes/full_finetune_single_device.py (`_setup_data`, `_loss_step`),
torchtune/data/_collate.py (`padded_collate_sft`), release 0.6.1.
"""

from collections.abc import Iterator

import pyarrow as pa

from trainer.export.flat import flats
from trainer.export.format import Format, Record
from trainer.samples import Selection
from trainer.trie import TokenTrie

SCHEMA = pa.schema([("tokens", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32())), ("id", pa.string())])


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    for flat in flats(session, selection, trie):
        fields = {"tokens": flat.ids_L, "labels": flat.labels_L, "id": flat.id}
        yield Record(fields, tokens=len(flat.ids_L), trained=flat.trained)


FORMAT = Format("torchtune", records, ("parquet",), SCHEMA, advantages=False, logprobs=False)
