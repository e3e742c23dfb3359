"""LLaMA-Factory, tokens as they are: the folder that its `tokenized_path` names, as `datasets.save_to_disk` makes it.

    input_ids        list[int]   the whole context, root to leaf
    attention_mask   list[int]   1 everywhere
    labels           list[int]   input_ids where trained, else -100 (not shifted)

    tokenized_path: DIR

Where such a folder exists, LLaMA-Factory reads nothing else: no template, no `cutoff_len`, no `dataset_info.json` of
its own. Parts of a split are looked for under the names train and validation. Read from: hiyouga/LLaMA-Factory
src/llamafactory/data/loader.py (`get_dataset`), src/llamafactory/data/data_utils.py (`get_dataset_module`).
"""

from trainer.export.axolotl import SCHEMA, records
from trainer.export.format import Format

FORMAT = Format("llama-factory", records, ("arrow",), SCHEMA, advantages=False, logprobs=False)
