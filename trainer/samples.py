"""From a tree to what trains: every sampled token is trained or excused with a reason, and the sum is checked.

sampled  =  trained  +  excused (side_call, aborted, opaque, ...)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from recorder.errors import ExportError, RenderError
from trainer.render import Rendered, Renderer
from trainer.rows import Row
from trainer.trie import Ids, Sample
from treebuilder.tree import Kind, Trajectory, Turn


class Reason(StrEnum):
    """Why a call's sampled tokens carry no loss."""

    SIDE_CALL = "side_call"
    """A helper call of the harness: a title, a topic, a safety check."""
    COUNT_TOKENS = "count_tokens"
    WARMUP = "warmup"
    ABORTED = "aborted"
    """The reply did not come to its end, so the harness did not use it as it stands."""
    RETRIED = "retried"
    """A whole reply, but the client sent the same request again."""
    OPAQUE = "opaque"
    """What was sent is not what the model saw (server-side edits), or cannot be known."""
    NOT_RENDERED = "not_rendered"
    """The chat template has no exact split of prompt and completion; the detail has its words."""
    FILTERED = "filtered"
    """The user's choice."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What trains beside the main threads."""

    subagents: bool = True
    summaries: bool = True
    side_calls: bool = False
    aborted: bool = False
    """Cut replies too, without a stop token."""
    opaque: bool = False
    kinds: frozenset[Kind] | None = None
    """Only calls of these kinds; None = all."""


@dataclass(frozen=True, slots=True)
class Excused:
    turn: int
    """Index in `Trajectory.turns`."""
    call: int
    """The recorder's number."""
    tokens: int
    """Tokens of the reply's content (its turn's own scaffolding is not counted: it has no rendering)."""
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The samples of a trajectory, in order of their calls, and what was left out of them."""

    samples: tuple[Sample, ...]
    turns: tuple[Turn, ...]
    """The turn of each sample."""
    grades: tuple[str, ...]
    """served | rendered, for each sample."""
    excused: tuple[Excused, ...]
    silent: int
    """Calls that sampled nothing: errors, refusals before the first token."""
    fallbacks: Counter[str]
    """Calls per fallback of `trainer.conversation`."""

    @property
    def trained_tokens(self) -> int:
        return sum(len(s.completion_ids) for s in self.samples)

    @property
    def excused_tokens(self) -> dict[str, int]:
        """Tokens by reason, in order of the reasons' names."""
        tokens = Counter[str]()
        for one in self.excused:
            tokens[one.reason.value] += one.tokens
        return dict(sorted(tokens.items()))

    @property
    def sampled_tokens(self) -> int:
        return self.trained_tokens + sum(one.tokens for one in self.excused)


@dataclass(slots=True, eq=False)
class _Chosen:
    turn: Turn
    rendered: Rendered
    line: list["_Chosen"] = field(default_factory=list)
    """This one and those whose prompts start its prompt: views into it, so that a line's tokens are stored once."""

    def grow_from(self, before: "_Chosen | None") -> None:
        ids = self.rendered.prompt_ids
        if before is not None and before.line[-1] is before and _starts(ids, before.rendered.prompt_ids):
            self.line = before.line
            for one in self.line:
                one.rendered = replace(one.rendered, prompt_ids=ids[: len(one.rendered.prompt_ids)])
        self.line.append(self)


def samples(
    trajectory: Trajectory,
    renderer: Renderer,
    *,
    session: str | None = None,
    choice: Choice = Choice(),
    advantages: Mapping[str, float] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Selection:
    """Render what trains. `advantages` by session, 1.0 by default; `progress` is called after each call."""
    given = advantages or {}
    selection = _select(trajectory, renderer, session, choice, given, progress)
    if renderer.confirm():
        return selection
    return _select(trajectory, renderer, session, choice, given, lambda: None)


def _select(
    trajectory: Trajectory,
    renderer: Renderer,
    session: str | None,
    choice: Choice,
    advantages: Mapping[str, float],
    progress: Callable[[], None],
) -> Selection:
    chosen: dict[int, _Chosen] = {}
    excused: list[Excused] = []
    fallbacks: Counter[str] = Counter()
    silent = 0
    retried = {t.parent: t for t in trajectory.turns if t.kind == Kind.RETRY and t.parent is not None}
    for turn in trajectory.turns:
        if session is not None and turn.session != session:
            continue
        progress()
        if turn.reply is None or not (turn.reply.message.blocks or turn.reply.complete or turn.reply.served):
            silent += 1
            continue
        reason, detail = _reason(turn, choice, retried.get(turn.index))
        if reason is None:
            try:
                rendered = renderer.render(turn.exchange)
            except RenderError as e:
                reason, detail = Reason.NOT_RENDERED, str(e)
        if reason is not None:
            excused.append(Excused(turn.index, turn.call.seq, renderer.count(turn.reply), reason, detail))
            continue
        fallbacks.update(rendered.fallbacks)
        if not len(rendered.completion_ids):
            silent += 1
            continue
        one = chosen[turn.index] = _Chosen(turn, rendered)
        one.grow_from(chosen.get(turn.parent) if turn.parent is not None else None)
    return Selection(
        samples=tuple(
            Sample(
                one.rendered.prompt_ids,
                one.rendered.completion_ids,
                advantages.get(one.turn.session, 1.0),
                one.rendered.logprobs,
                rollout=one.turn.session,
                thread=one.turn.thread,
                call=one.turn.call.seq,
            )
            for one in chosen.values()
        ),
        turns=tuple(one.turn for one in chosen.values()),
        grades=tuple(one.rendered.grade for one in chosen.values()),
        excused=tuple(excused),
        silent=silent,
        fallbacks=fallbacks,
    )


def conserved(selection: Selection, rows: Iterable[Row]) -> Iterator[Row]:
    """The same rows, checked: loss on owned tokens only, each sampled token owned once. ExportError if it fails."""
    owned = Counter[int]()
    for row in rows:
        expected_mask = np.zeros(len(row), dtype=bool)
        for owner in row.owners:
            owned[owner.sample] += owner.stop - owner.start
            expected_mask[owner.start : owner.stop] = True
        wrong = np.flatnonzero(expected_mask != row.loss_mask)
        if len(wrong):
            raise ExportError(
                f"row {row.branch}: expected loss on owned tokens and no others, got it wrong at {wrong[0]}"
            )
        yield row
    for index, sample in enumerate(selection.samples):
        if owned[index] != len(sample.completion_ids):
            expected = f"{len(sample.completion_ids)} sampled tokens owned once each"
            raise ExportError(f"call {sample.call}: expected {expected}, got {owned[index]}")


def _starts(ids: Ids, start: Ids) -> bool:
    return len(start) <= len(ids) and np.array_equal(ids[: len(start)], start)


def _reason(turn: Turn, choice: Choice, retry: Turn | None) -> tuple[Reason | None, str]:
    reply = turn.reply
    assert reply is not None
    if turn.kind == Kind.COUNT_TOKENS:
        return Reason.COUNT_TOKENS, ""
    if turn.kind == Kind.WARMUP:
        return Reason.WARMUP, ""
    if turn.kind == Kind.SIDE_CALL and not choice.side_calls:
        return Reason.SIDE_CALL, turn.lane
    if turn.opaque and not choice.opaque:
        return Reason.OPAQUE, turn.opaque
    if not reply.complete and not choice.aborted:
        return Reason.ABORTED, reply.error or turn.call.error or turn.call.outcome.value
    if retry is not None and not choice.aborted:
        return Reason.RETRIED, f"sent again as call {retry.call.seq}"
    if turn.lane.startswith("agent:") and not choice.subagents:
        return Reason.FILTERED, turn.lane
    if turn.kind == Kind.SUMMARY_REQUEST and not choice.summaries:
        return Reason.FILTERED, turn.kind.value
    if choice.kinds is not None and turn.kind not in choice.kinds:
        return Reason.FILTERED, turn.kind.value
    return None, ""
