"""TRL's SFTTrainer, tokens as they are: `train.parquet`, one row a branch, as in `logittree` but only what TRL reads.

    input_ids        list[int]   the whole context, root to leaf; a dataset that has it is not tokenised again
    labels           list[int]   input_ids where trained, else -100 (not shifted): TRL 1.x takes them as they are
    completion_mask  list[int]   1 = trained: what TRL 0.x reads in place of labels
    id               str         `TRAJECTORY:BRANCH`, for you; TRL drops columns it does not know

Advantages have no place in this format: all trained tokens weigh the same. Use it as
`SFTTrainer(train_dataset=load_dataset("parquet", data_files="DIR/train.parquet")["train"], ...)` without packing and
with `max_length=None`, which would cut rows (and their trained tokens) at 1024 otherwise.
"""

from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.export.logittree import GROUP_TOKENS, records
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


class Writer:
    """Streams rows into a directory; holds one Parquet row group in memory."""

    def __init__(self, out: Path) -> None:
        self._parquet = pq.ParquetWriter(out / "train.parquet", SCHEMA, compression="zstd")
        self._group: list[dict[str, object]] = []
        self._tokens = 0
        self.rows = 0
        self.owned_tokens = 0

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        self._parquet.close()

    def add(self, trajectory: str, selection: Selection, trie: TokenTrie) -> None:
        for one in records(trajectory, selection, trie):
            masks = {"labels": one.labels, "completion_mask": one.loss_mask}
            self._group.append({"input_ids": one.input_ids, **masks, "id": one.id})
            self._tokens += len(one.input_ids)
            self.rows += 1
            self.owned_tokens += sum(o.stop - o.start for o in one.owners)
            if self._tokens >= GROUP_TOKENS:
                self._flush()

    def _flush(self) -> None:
        if self._group:
            self._parquet.write_table(pa.Table.from_pylist(self._group, schema=SCHEMA))
        self._group, self._tokens = [], 0
