"""prime-rl's TrainingSample, one JSON object a line: a branch as a flat sequence, its credit in loss channels.

    token_ids      list[int]     the whole context, root to leaf
    mask           list[bool]    true = trained (not shifted)
    logprobs       list[float]   nats, as served; 0.0 where not trained or not served
    temperatures   list[float]   1.0: not recorded
    env_name       str           "memorywalker"
    advantages     list          channels of {loss, values, mask}, each as long as token_ids:
                                 rl = tokens with a served logprob, which its importance ratios need
                                 ce = the rest, values as weights
    reward         float | null  of the rollout

    rows = [json.loads(line) for line in Path("DIR/train.jsonl").read_bytes().splitlines()]
    channels = [[TrainingAdvantage(**channel) for channel in row["advantages"]] for row in rows]
    samples = [TrainingSample(**row | {"advantages": some}) for row, some in zip(rows, channels)]
    batch = msgspec.msgpack.encode(TrainingBatch(examples=samples, step=0))

Earlier releases split prompt and completion: cut each list at the first true of `mask`. Read from:
PrimeIntellect-ai/prime-rl src/prime_rl/transport/types.py, src/prime_rl/trainer/batch.py (`prepare_sample`).
"""

from collections.abc import Iterator

import numpy as np

from trainer.export.flat import flats
from trainer.export.format import Format, Record
from trainer.samples import Selection
from trainer.trie import TokenTrie


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    for flat in flats(session, selection, trie):
        scored_L = ~np.isnan(flat.logprob_L)
        channels = {"rl": flat.mask_L & scored_L, "ce": flat.mask_L & ~scored_L}
        fields = {
            "token_ids": flat.ids_L,
            "mask": flat.mask_L,
            "logprobs": np.nan_to_num(flat.logprob_L, nan=0.0),
            "temperatures": np.ones(len(flat.ids_L)),
            "env_name": "memorywalker",
            "advantages": [
                {"loss": loss, "values": np.where(mask_L, flat.advantage_L, 0.0), "mask": mask_L}
                for loss, mask_L in channels.items()
                if mask_L.any()
            ],
            "reward": flat.reward,
        }
        yield Record(fields, tokens=len(flat.ids_L), trained=flat.trained)


FORMAT = Format("prime-rl", records, ("jsonl",))
