"""LogitTree rows as JSONL and Parquet: one row a branch, every sampled token with loss exactly once.

`rows.jsonl` and `rows.parquet` hold the same rows in the same order (sessions as given, branches depth first):

    id             str            `TRAJECTORY:BRANCH`
    trajectory     str            session id of the recorded calls
    branch         int            number of this branch in its trajectory, depth first
    parent_branch  int | null     the branch it forked from; null = it shares no token with an earlier one
    fork           int            leading tokens shared with `parent_branch`: position of the first token of its own
    fork_kind      str            why it forked: what its first call had done to the context (summarized, cleared, ...);
                                  echo = that call only grew it, but the parent's reply stands there otherwise now
                                  (changed by the harness, or by the template: thinking dropped);
                                  template = it only grew it, and the template says older messages otherwise now
    input_ids      list[int]      the whole context, root to leaf
    loss_mask      list[int]      1 = trained here; position i marks input_ids[i] itself (not shifted)
    labels         list[int]      input_ids where loss_mask is 1, else -100 (not shifted, as Hugging Face has it)
    advantages     list[float]    0.0 where loss_mask is 0; where several calls own a token, the sum of theirs
    logprobs       list[float?]   nats, as the engine served them; null = not trained here, or not served
    owners         list[struct]   who sampled what:
        call       int            the recorder's number of the call
        turn       int            its index in the tree of its family of sessions
        thread     str
        lane       str            main | agent:ID | summary | ...
        kind       str            what the call did to its context
        start      int            first position sampled by it, in this row
        stop       int            position behind the last
        advantage  float
        grade      str            served | rendered: where its ids come from
    grade          str            served | rendered | mixed: over the owners
    rollout        str            the session whose rollout this is part of; a subagent's is the one that started it
    reward         float | null   of that rollout; null = none was given
    group          str | null     rollouts of the same group are compared with each other; null = with none
    family         str            the same for all sessions that share a trunk: evaluate on other families than train

A call stands in the owners of one row, or of two where the same tokens were sampled twice and then went apart.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from trainer.export.flat import IGNORED
from trainer.export.format import Format, Record
from trainer.rows import Row, row
from trainer.samples import Selection, conserved
from trainer.trie import TokenTrie
from treebuilder.tree import Kind

Span = tuple[int, int]

_OWNER = pa.struct(
    [
        ("call", pa.int64()),
        ("turn", pa.int64()),
        ("thread", pa.string()),
        ("lane", pa.string()),
        ("kind", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("advantage", pa.float64()),
        ("grade", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("trajectory", pa.string()),
        ("branch", pa.int64()),
        ("parent_branch", pa.int64()),
        ("fork", pa.int64()),
        ("fork_kind", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("labels", pa.list_(pa.int32())),
        ("advantages", pa.list_(pa.float64())),
        ("logprobs", pa.list_(pa.float64())),
        ("owners", pa.list_(_OWNER)),
        ("grade", pa.string()),
        ("rollout", pa.string()),
        ("reward", pa.float64()),
        ("group", pa.string()),
        ("family", pa.string()),
    ]
)


def records(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    sampled: dict[int, list[Span]] = {}
    rows = (row(trie, branch) for branch in range(len(trie.leaf_B)))
    for one in conserved(selection, rows):
        yield _record(session, selection, one, sampled)
        sampled[one.branch] = [(o.start, o.stop) for o in one.owners]


def _record(session: str, selection: Selection, row: Row, sampled: Mapping[int, Sequence[Span]]) -> Record:
    """`sampled`: spans with loss of the branches written before."""
    advantages, logprobs = np.zeros(len(row)), np.full(len(row), np.nan)
    owners = []
    for owner in row.owners:
        sample, turn = selection.samples[owner.sample], selection.turns[owner.sample]
        advantages[owner.start : owner.stop] += sample.advantage
        if sample.logprobs is not None:
            first = owner.start - len(sample.prompt_ids)
            logprobs[owner.start : owner.stop] = sample.logprobs[first : first + owner.stop - owner.start]
        owners.append(
            {
                "call": turn.call.seq,
                "turn": turn.index,
                "thread": turn.thread,
                "lane": turn.lane,
                "kind": turn.kind.value,
                "start": owner.start,
                "stop": owner.stop,
                "advantage": sample.advantage,
                "grade": selection.grades[owner.sample],
            }
        )
    first_call = row.owners[0].sample
    grades = {selection.grades[owner.sample] for owner in row.owners}
    of = selection.samples[first_call]
    fields = {
        "id": f"{session}:{row.branch}",
        "trajectory": session,
        "branch": row.branch,
        "parent_branch": row.parent,
        "fork": row.fork,
        "fork_kind": _fork_kind(row, selection.turns[first_call].kind, sampled),
        "input_ids": row.ids,
        "loss_mask": row.loss_mask.astype(np.int8),
        "labels": np.where(row.loss_mask, row.ids, IGNORED).astype(np.int32),
        "advantages": advantages,
        "logprobs": logprobs,
        "owners": owners,
        "grade": grades.pop() if len(grades) == 1 else "mixed",
        "rollout": None if of.rollout is None else str(of.rollout),
        "reward": of.reward,
        "group": None if of.group is None else str(of.group),
        "family": selection.family,
    }
    return Record(fields, tokens=len(row), trained=sum(o.stop - o.start for o in row.owners))


def _fork_kind(row: Row, kind: Kind, sampled: Mapping[int, Sequence[Span]]) -> str:
    if row.parent is None or not kind.grows:
        return kind.value
    replied = any(start <= row.fork < stop for start, stop in sampled.get(row.parent, []))
    return "echo" if replied else "template"


FORMAT = Format("logittree", records, ("jsonl", "parquet"), SCHEMA, stem="rows")
