"""Tinker's Datum, one JSON object a line: shifted by one, so that position i predicts target i.

    tokens           1  2  3  4      trained: 3 4
    model_input      1  2  3
    target_tokens    2  3  4
    weights          0  1  1

    model_input      {"chunks": [{"type": "encoded_text", "tokens": [...]}]}: all but the last token
    loss_fn_inputs   name -> {data, dtype, shape}, each as long as model_input:
        target_tokens   int64     all but the first token
        weights         float32   1.0 = trained; of `cross_entropy`
        advantages      float32   of the rollout, 0.0 where not trained; of `importance_sampling`, `ppo` and the like
        logprobs        float32   nats, as served, 0.0 where not trained; absent = not all were served
    id               str          `TRAJECTORY:BRANCH`

A loss takes its own inputs and no others:

    CROSS_ENTROPY, RL = ("target_tokens", "weights"), ("target_tokens", "advantages", "logprobs")

    def datum(row, names):
        given = {name: TensorData(**row["loss_fn_inputs"][name]) for name in names}
        return Datum(model_input=ModelInput(**row["model_input"]), loss_fn_inputs=given)

Read from: thinking-machines-lab/tinker src/tinker/types/datum.py, tensor_data.py, model_input.py (release 0.38);
thinking-machines-lab/tinker-cookbook tinker_cookbook/supervised/common.py, tinker_cookbook/rl/data_processing.py.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trainer.export.flat import flats
from trainer.export.format import Format, Record
from trainer.sample import Floats, Ids
from trainer.samples import Selection
from trainer.trie import TokenTrie


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    for flat in flats(session, selection, trie):
        inputs = {
            "target_tokens": _tensor(flat.ids_L[1:], "int64"),
            "weights": _tensor(flat.mask_L[1:].astype(np.float32), "float32"),
            "advantages": _tensor(flat.advantage_L[1:], "float32"),
        }
        if flat.served:
            inputs["logprobs"] = _tensor(np.nan_to_num(flat.logprob_L[1:], nan=0.0), "float32")
        fields = {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": flat.ids_L[:-1]}]},
            "loss_fn_inputs": inputs,
            "id": flat.id,
        }
        yield Record(fields, tokens=len(flat.ids_L), trained=int(flat.mask_L[1:].sum()))


def _tensor(data: Ids | Floats | NDArray[np.float32], dtype: str) -> dict[str, object]:
    return {"data": data, "dtype": dtype, "shape": [len(data)]}


FORMAT = Format("tinker", records, ("jsonl",))
