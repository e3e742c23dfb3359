"""TRL's SFTTrainer, tokens as they are: one row a branch.

    input_ids        list[int]   the whole context, root to leaf; a dataset that has it is not tokenised again
    labels           list[int]   input_ids where trained, else -100 (not shifted): TRL 1.x takes them as they are
    completion_mask  list[int]   1 = trained: what TRL 0.x reads in place of labels
    id               str         `TRAJECTORY:BRANCH`, for you; TRL drops columns it does not know

    rows = load_dataset("parquet", data_files="DIR/train*.parquet")["train"]
    SFTTrainer(model, args=SFTConfig(max_length=None), train_dataset=rows).train()

`max_length=None`, for rows would be cut, with their trained tokens, at 1024; no packing.
Read from: huggingface/trl trl/trainer/sft_trainer.py (`DataCollatorForLanguageModeling`, the dataset preparation).
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
        ("labels", pa.list_(pa.int32())),
        ("completion_mask", pa.list_(pa.int8())),
        ("id", pa.string()),
    ]
)


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    for flat in flats(session, selection, trie):
        fields = {
            "input_ids": flat.ids_L,
            "labels": flat.labels_L,
            "completion_mask": flat.mask_L.astype(np.int8),
            "id": flat.id,
        }
        yield Record(fields, tokens=len(flat.ids_L), trained=flat.trained)


FORMAT = Format("trl-sft", records, ("parquet",), SCHEMA, advantages=False, logprobs=False)
