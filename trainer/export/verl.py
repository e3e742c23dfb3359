"""verl, tokens as they are, by the names of its rollout batches: one row a branch.

    prompts             list[int]      up to the first trained token
    responses           list[int]      all from there on, tool results and later prompts included
    response_mask       list[int]      one per response token: 1 = trained (not shifted)
    rollout_log_probs   list[float?]   nats, one per response token, as served; null = not served
    advantages          list[float]    one per response token; 0.0 where the mask is 0
    reward              float | null   of the rollout
    uid                 str            its group, or else the rollout itself: what verl compares with each other
    id                  str            `TRAJECTORY:BRANCH`

For its SFT trainer a dataset class of this kind, named by `data.custom_cls.path` and `.name`, with
`data.pad_mode=no_padding`:

    class Rows(torch.utils.data.Dataset):
        def __init__(self, parquet_files, tokenizer=None, config=None, processor=None, max_samples=-1):
            files = parquet_files if isinstance(parquet_files, str) else list(parquet_files)
            self.rows = load_dataset("parquet", data_files=files, split="train")

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            row = self.rows[index]
            ids = torch.tensor(row["prompts"] + row["responses"])
            mask = torch.tensor([0] * len(row["prompts"]) + row["response_mask"])
            return {"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask}

For its RL trainers the same columns, padded, are the tensors of a `DataProto` (prompts on the left, the rest on the
right). Read from: volcengine/verl verl/trainer/sft_trainer.py (`create_sft_dataset`),
verl/utils/dataset/multiturn_sft_dataset.py (what an item holds), verl/workers/utils/losses.py (`sft_loss` shifts the
mask, `ppo_loss` reads response_mask and advantages), release 0.9.1.
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
        ("prompts", pa.list_(pa.int32())),
        ("responses", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.int8())),
        ("rollout_log_probs", pa.list_(pa.float64())),
        ("advantages", pa.list_(pa.float64())),
        ("reward", pa.float64()),
        ("uid", pa.string()),
        ("id", pa.string()),
    ]
)


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    for flat in flats(session, selection, trie):
        fields = {
            "prompts": flat.ids_L[: flat.start],
            "responses": flat.ids_L[flat.start :],
            "response_mask": flat.mask_L[flat.start :].astype(np.int8),
            "rollout_log_probs": flat.logprob_L[flat.start :],
            "advantages": flat.advantage_L[flat.start :],
            "reward": flat.reward,
            "uid": flat.group or flat.rollout,
            "id": flat.id,
        }
        yield Record(fields, tokens=len(flat.ids_L), trained=flat.trained)


FORMAT = Format("verl", records, ("parquet",), SCHEMA)
