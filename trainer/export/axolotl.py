"""axolotl, tokens as they are: a dataset with exactly these columns is taken for tokenised.

    input_ids        list[int]   the whole context, root to leaf
    attention_mask   list[int]   1 everywhere
    labels           list[int]   input_ids where trained, else -100 (not shifted)

    datasets:
      - path: DIR/train.parquet
        ds_type: parquet
        type:

`type` stays empty, and `sequence_len` must not be less than the longest row, for longer ones are dropped or cut.
Read from: axolotl-ai-cloud/axolotl docs/dataset-formats/tokenized.qmd, src/axolotl/utils/data/wrappers.py
(`_is_dataset_already_tokenized`).
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from trainer.export.flat import flats
from trainer.export.format import Format, Record
from trainer.samples import Selection
from trainer.trie import TokenTrie

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("attention_mask", pa.list_(pa.int8())),
        ("labels", pa.list_(pa.int32())),
    ]
)


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    for flat in flats(session, selection, trie):
        fields = {
            "input_ids": flat.ids_L,
            "attention_mask": np.ones(len(flat.ids_L), dtype=np.int8),
            "labels": flat.labels_L,
        }
        yield Record(fields, tokens=len(flat.ids_L), trained=flat.trained)


FORMAT = Format("axolotl", records, ("parquet",), SCHEMA, advantages=False, logprobs=False)
