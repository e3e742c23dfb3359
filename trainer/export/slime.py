"""slime's Sample, one JSON object a line, as its `from_dict` reads it: a branch is a prompt and one long response.

    tokens              list[int]        the whole context, root to leaf
    response_length     int              tokens from the first trained one on
    loss_mask           list[int]        one per response token: 1 = trained (not shifted)
    reward              float            the advantage of the rollout (1.0 where there are no rewards)
    rollout_log_probs   list[float]      nats, one per response token, 0.0 where not trained; null = not all were served
    index, group_index  int              of the row, and of its group or else its rollout: hashes, equal where these are
    prompt, response    str              empty: the tokens say it
    status              str              completed
    metadata            struct           id, rollout, group, reward (of the rollout; null = none was given)

slime would take a mean of rewards over rows, of which a rollout that forked has several. So `reward` is the advantage
of the rollout already: train with `--disable-rewards-normalization`, and with `--load-debug-rollout-data
rollout_{rollout_id}.pt` after

    rows = [json.loads(line) for line in Path("DIR/train.jsonl").read_bytes().splitlines()]
    samples = [Sample.from_dict(row) for row in rows]
    torch.save({"samples": [sample.to_dict() for sample in samples]}, "rollout_0.pt")

Read from: THUDM/slime slime/utils/types.py (`Sample`), slime/ray/rollout.py, slime/utils/arguments.py.
"""

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from trainer.export.flat import flats
from trainer.export.format import Format, Record
from trainer.samples import Selection
from trainer.trie import TokenTrie


def number(name: str) -> int:
    """An index for a name: 0 to 2^53 - 1, exact in any JSON reader."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    for flat in flats(session, selection, trie):
        logprobs = np.nan_to_num(flat.logprob_L[flat.start :], nan=0.0)
        fields = {
            "index": number(flat.id),
            "group_index": number(flat.group or flat.rollout),
            "prompt": "",
            "tokens": flat.ids_L,
            "response": "",
            "response_length": len(flat.ids_L) - flat.start,
            "loss_mask": flat.mask_L[flat.start :].astype(np.int8),
            "reward": flat.advantage,
            "rollout_log_probs": logprobs if flat.served else None,
            "status": "completed",
            "metadata": {"id": flat.id, "rollout": flat.rollout, "group": flat.group, "reward": flat.reward},
        }
        yield Record(fields, tokens=len(flat.ids_L), trained=flat.trained)


FORMAT = Format("slime", records, ("jsonl",))
