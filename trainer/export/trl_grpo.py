"""TRL's GRPOTrainer on rollouts that exist already: one row a branch, what an agent was told inside the completion.

    prompt           str            `TRAJECTORY:BRANCH`; TRL groups and shuffles by it, the tokens are below
    prompt_ids       list[int]      up to the first trained token
    completion_ids   list[int]      all from there on, tool results and later prompts included
    env_mask         list[int]      one per completion token: 1 = trained, 0 = the environment's
    logprobs         list[float?]   nats, one per completion token, as served; null = not served
    advantages       list[float]    one per completion token; 0.0 where env_mask is 0
    reward           float | null   of the rollout
    group            str | null     rollouts compared with each other

TRL takes tokens from a `rollout_func`, and would take a mean of rewards over rows, of which a rollout that forked has
several; the advantages here are per rollout, so they are put in its place (TRL expects subclasses to give (B, T)):

    rows = load_dataset("parquet", data_files="DIR/train*.parquet", split="train")
    places = {prompt: i for i, prompt in enumerate(rows["prompt"])}

    def replay(prompts, trainer):
        chosen = rows[[places[prompt] for prompt in prompts]]
        return {name: chosen[name] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs")}

    class Replay(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            given = [torch.tensor(row["advantages"]) for row in inputs]
            padded = torch.nn.utils.rnn.pad_sequence(given, batch_first=True)
            batch["advantages"] = padded.to(batch["advantages"].device)
            return batch

    def unused(completions, **row):
        return [0.0] * len(completions)

    trainer = Replay(model, unused, args=args, train_dataset=rows, processing_class=tokenizer, rollout_func=replay)

Each row is seen `num_generations` times, which changes no weight. Read from: huggingface/trl
trl/trainer/grpo_trainer.py (`RolloutFunc`, `_generate`, `_compute_loss`), release 1.16.
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
        ("prompt", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("env_mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float64())),
        ("advantages", pa.list_(pa.float64())),
        ("reward", pa.float64()),
        ("group", pa.string()),
    ]
)


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    for flat in flats(session, selection, trie):
        fields = {
            "prompt": flat.id,
            "prompt_ids": flat.ids_L[: flat.start],
            "completion_ids": flat.ids_L[flat.start :],
            "env_mask": flat.mask_L[flat.start :].astype(np.int8),
            "logprobs": flat.logprob_L[flat.start :],
            "advantages": flat.advantage_L[flat.start :],
            "reward": flat.reward,
            "group": flat.group,
        }
        yield Record(fields, tokens=len(flat.ids_L), trained=flat.trained)


FORMAT = Format("trl-grpo", records, ("parquet",), SCHEMA)
