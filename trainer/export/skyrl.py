"""SkyRL's GeneratorOutput, one row of its lists a line: a rollout is the rows up to the one that is its last step.

    prompt_token_ids   list[int]     up to the first trained token
    response_ids       list[int]     all from there on, tool results and later prompts included
    loss_masks         list[int]     one per response token: 1 = trained (not shifted)
    rewards            list[float]   one per response token: the rollout's on the last, 0.0 before
    rollout_logprobs   list[float]   nats, one per response token, 0.0 where not trained; null = not all were served
    stop_reasons       str           stop
    trajectory_ids     struct        instance_id = group, or else rollout; repetition_id = a number of the session
    is_last_step       bool          true on the last row of a session
    advantages         list[float]   one per response token; SkyRL computes its own
    id                 str           `TRAJECTORY:BRANCH`

With `generator.step_wise_trajectories=true` SkyRL computes one advantage a trajectory, on its last step, and gives it
to all of them: a rollout that forked into five rows counts once, as it should.

    rows = [json.loads(line) for line in Path("DIR/train.jsonl").read_bytes().splitlines()]
    output = {name: [row[name] for row in rows] for name in rows[0] if name not in ("id", "advantages")}
    output["trajectory_ids"] = [TrajectoryID(**one) for one in output["trajectory_ids"]]
    output["rollout_logprobs"] = None if None in output["rollout_logprobs"] else output["rollout_logprobs"]
    uids = [one.instance_id for one in output["trajectory_ids"]]

Read from: NovaSky-AI/SkyRL skyrl/train/generators/base.py (`GeneratorOutput`), skyrl/train/trainer.py
(`compute_advantages_and_returns`), skyrl/train/utils/trainer_utils.py (`validate_generator_output`), release 0.3.0.
"""

from collections.abc import Iterator

import numpy as np

from trainer.export.flat import Flat, flats
from trainer.export.format import Format, Record
from trainer.export.slime import number
from trainer.samples import Selection
from trainer.trie import TokenTrie


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    waiting: Flat | None = None
    for flat in flats(session, selection, trie):
        if waiting is not None:
            yield _record(waiting, last=False)
        waiting = flat
    if waiting is not None:
        yield _record(waiting, last=True)


def _record(flat: Flat, *, last: bool) -> Record:
    length = len(flat.ids_L) - flat.start
    rewards = np.zeros(length)
    rewards[-1] = 0.0 if flat.reward is None else flat.reward
    fields = {
        "prompt_token_ids": flat.ids_L[: flat.start],
        "response_ids": flat.ids_L[flat.start :],
        "loss_masks": flat.mask_L[flat.start :].astype(np.int8),
        "rewards": rewards,
        "rollout_logprobs": np.nan_to_num(flat.logprob_L[flat.start :], nan=0.0) if flat.served else None,
        "stop_reasons": "stop",
        "trajectory_ids": {"instance_id": flat.group or flat.rollout, "repetition_id": number(flat.trajectory)},
        "is_last_step": last,
        "advantages": flat.advantage_L[flat.start :],
        "id": flat.id,
    }
    return Record(fields, tokens=len(flat.ids_L), trained=flat.trained)


FORMAT = Format("skyrl", records, ("jsonl",))
