"""The packed trie: every token once, for trainers that share prefixes. `tree.parquet`, one row a trajectory.

1 2 3 ─┬─ 4 5        input_ids  1 2 3 4 5 6 7
       └─ 6 7        before    -1 0 1 2 3 2 5      position  0 1 2 3 4 3 4

trajectory  str            session id of the recorded calls
input_ids   list[int]      nodes depth first, each node's tokens in order
before      list[int]      index of the token before each one on its path: whose logits predict it, and, followed up,
                           all that it may attend to; -1 = none
position    list[int]      tokens before it on its path: its rotary position
nodes       list[struct]   runs without a fork: parent (-1 = none), offset and length in input_ids
owners      list[struct]   who sampled what, one entry per run of input_ids:
    call, turn, thread, lane, kind, grade     as in `logittree`
    offset, length                            the run
    advantage                                 of its rollout
    logprobs               list[float] | null nats, one per token of the run; null = not served
rollout, reward, group                        as in `logittree`
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from trainer.export.format import Format, Record
from trainer.samples import Selection
from trainer.trie import TokenTrie

_NODE = pa.struct([("parent", pa.int64()), ("offset", pa.int64()), ("length", pa.int64())])
_OWNER = pa.struct(
    [
        ("call", pa.int64()),
        ("turn", pa.int64()),
        ("thread", pa.string()),
        ("lane", pa.string()),
        ("kind", pa.string()),
        ("grade", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("advantage", pa.float64()),
        ("logprobs", pa.list_(pa.float64())),
    ]
)
SCHEMA = pa.schema(
    [
        ("trajectory", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("before", pa.list_(pa.int64())),
        ("position", pa.list_(pa.int64())),
        ("nodes", pa.list_(_NODE)),
        ("owners", pa.list_(_OWNER)),
        ("rollout", pa.string()),
        ("reward", pa.float64()),
        ("group", pa.string()),
    ]
)


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    """One, or none where the session sampled nothing."""
    if not selection.samples:
        return
    owners = [one for index in range(len(selection.samples)) for one in _owned(index, selection, trie)]
    lengths = trie.stop_N - trie.start_N
    of = selection.samples[0]
    fields = {
        "trajectory": session,
        "input_ids": trie.ids_T,
        "before": trie.before_T,
        "position": trie.depth_T,
        "nodes": [
            {"parent": int(p), "offset": int(o), "length": int(n)}
            for p, o, n in zip(trie.parent_N, trie.offset_N, lengths, strict=True)
        ],
        "owners": owners,
        "rollout": None if of.rollout is None else str(of.rollout),
        "reward": of.reward,
        "group": None if of.group is None else str(of.group),
    }
    yield Record(fields, tokens=trie.unique_tokens, trained=sum(int(one["length"]) for one in owners))  # type: ignore[call-overload]


def _owned(index: int, selection: Selection, trie: TokenTrie) -> list[dict[str, object]]:
    """The runs of `input_ids` that a sample sampled."""
    sample, turn = selection.samples[index], selection.turns[index]
    tokens = trie.completion_tokens(index)
    borders = [0, *(np.flatnonzero(np.diff(tokens) != 1) + 1).tolist(), len(tokens)]
    return [
        {
            "call": turn.call.seq,
            "turn": turn.index,
            "thread": turn.thread,
            "lane": turn.lane,
            "kind": turn.kind.value,
            "grade": selection.grades[index],
            "offset": int(tokens[start]),
            "length": stop - start,
            "advantage": sample.advantage,
            "logprobs": None if sample.logprobs is None else [float(x) for x in sample.logprobs[start:stop]],
        }
        for start, stop in pairwise(borders)
    ]


FORMAT = Format("tree", records, ("parquet",), SCHEMA, stem="tree")
