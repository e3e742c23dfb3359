"""LogitTree rows as JSONL and Parquet: one row a branch, every sampled token with loss exactly once.

`rows.jsonl` and `rows.parquet` hold the same rows in the same order (trajectories as given, branches depth first):

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
        turn       int            its index in the trajectory's tree
        thread     str
        lane       str            main | agent:ID | summary | ...
        kind       str            what the call did to its context
        start      int            first position sampled by it, in this row
        stop       int            position behind the last
        advantage  float
        grade      str            served | rendered: where its ids come from
    grade          str            served | rendered | mixed: over the owners

A call stands in the owners of one row, or of two where the same tokens were sampled twice and then went apart.
`excused.jsonl` has one line per call that does not train: trajectory, call, turn, tokens, reason, detail.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.rows import Row, row
from trainer.samples import Selection, conserved
from trainer.trie import TokenTrie
from treebuilder.tree import Kind

Span = tuple[int, int]

IGNORED = -100
"""The label that Hugging Face losses skip."""

GROUP_TOKENS = 1 << 20  # ours: a Parquet row group is written once it holds a million tokens

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
    ]
)


@dataclass(frozen=True, slots=True)
class OwnerSpan:
    call: int
    turn: int
    thread: str
    lane: str
    kind: str
    start: int
    stop: int
    advantage: float
    grade: str


@dataclass(frozen=True, slots=True)
class Record:
    """A row as written; the fields are documented above."""

    id: str
    trajectory: str
    branch: int
    parent_branch: int | None
    fork: int
    fork_kind: str
    input_ids: list[int]
    loss_mask: list[int]
    labels: list[int]
    advantages: list[float]
    logprobs: list[float | None]
    owners: list[OwnerSpan]
    grade: str


def records(trajectory: str, selection: Selection, trie: TokenTrie) -> Iterator[Record]:
    """The rows of one trajectory, one at a time. ExportError if their loss does not add up."""
    sampled: dict[int, list[Span]] = {}
    rows = (row(trie, branch) for branch in range(len(trie.leaf_B)))
    for one in conserved(selection, rows):
        yield record(trajectory, selection, one, sampled=sampled)
        sampled[one.branch] = [(o.start, o.stop) for o in one.owners]


def record(trajectory: str, selection: Selection, row: Row, *, sampled: Mapping[int, Sequence[Span]]) -> Record:
    """`sampled`: spans with loss of the branches written before."""
    advantages = np.zeros(len(row))
    logprobs: list[float | None] = [None] * len(row)
    owners = []
    for owner in row.owners:
        sample, turn = selection.samples[owner.sample], selection.turns[owner.sample]
        advantages[owner.start : owner.stop] += sample.advantage
        if sample.logprobs is not None:
            first = owner.start - len(sample.prompt_ids)
            served = sample.logprobs[first : first + owner.stop - owner.start]
            logprobs[owner.start : owner.stop] = [float(x) for x in served]
        grade = selection.grades[owner.sample]
        where = (turn.call.seq, turn.index, turn.thread, turn.lane, turn.kind.value)
        owners.append(OwnerSpan(*where, owner.start, owner.stop, sample.advantage, grade))
    grades = {o.grade for o in owners}
    fork_kind = owners[0].kind if owners else ""
    if row.parent is not None and fork_kind and Kind(fork_kind).grows:
        replied = any(s <= row.fork < e for s, e in sampled.get(row.parent, []))
        fork_kind = "echo" if replied else "template"
    return Record(
        id=f"{trajectory}:{row.branch}",
        trajectory=trajectory,
        branch=row.branch,
        parent_branch=row.parent,
        fork=row.fork,
        fork_kind=fork_kind,
        input_ids=row.ids.tolist(),
        loss_mask=row.loss_mask.astype(int).tolist(),
        labels=np.where(row.loss_mask, row.ids, IGNORED).tolist(),
        advantages=advantages.tolist(),
        logprobs=logprobs,
        owners=owners,
        grade=grades.pop() if len(grades) == 1 else "mixed",
    )


class Writer:
    """Streams rows into a directory; holds one Parquet row group in memory."""

    def __init__(self, out: Path) -> None:
        self._jsonl = (out / "rows.jsonl").open("wb")
        self._excused = (out / "excused.jsonl").open("wb")
        self._parquet = pq.ParquetWriter(out / "rows.parquet", SCHEMA, compression="zstd")
        self._group: list[dict[str, object]] = []
        self._tokens = 0
        self.rows = 0
        self.owned_tokens = 0
        """Tokens owned in the rows written so far."""

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        self._parquet.close()
        self._jsonl.close()
        self._excused.close()

    def add(self, trajectory: str, selection: Selection, trie: TokenTrie) -> None:
        for one in records(trajectory, selection, trie):
            fields = {name: getattr(one, name) for name in SCHEMA.names} | {"owners": [asdict(o) for o in one.owners]}
            self._jsonl.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
            self._group.append(fields)
            self._tokens += len(one.input_ids)
            self.rows += 1
            self.owned_tokens += sum(o.stop - o.start for o in one.owners)
            if self._tokens >= GROUP_TOKENS:
                self._flush()
        for left in selection.excused:
            line = {"trajectory": trajectory} | asdict(left)
            self._excused.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def _flush(self) -> None:
        if self._group:
            self._parquet.write_table(pa.Table.from_pylist(self._group, schema=SCHEMA))
        self._group, self._tokens = [], 0
