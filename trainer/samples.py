"""From a tree to what trains: every sampled token is trained or excused with a reason, and the sum is checked.

sampled  =  trained  +  excused (side_call, aborted, opaque, ...)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from recorder.errors import ExportError, RenderError
from recorder.message import Reply
from trainer.render import Rendered, Renderer
from trainer.rollouts import Rollout, origins
from trainer.rows import Row
from trainer.sample import Ids, Sample
from trainer.served import Difference
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
    NO_REWARD = "no_reward"
    """Other rollouts have a reward of the name asked for, this one has none."""
    FILTERED = "filtered"
    """The user's choice; the detail says which."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What trains. What does not is excused, never forgotten."""

    main: bool = True
    subagents: bool = True
    summaries: bool = True
    side_calls: bool = False
    aborted: bool = False
    """Cut replies too, without a stop token, and whole ones that were asked for again."""
    opaque: bool = False
    kinds: frozenset[Kind] | None = None
    """Only calls of these kinds; None = all."""
    harness: str = ""
    """Only calls of this harness; empty = all."""
    min_reward: float | None = None
    """Only rollouts that earned at least this; None = all."""

    @classmethod
    def of(
        cls,
        words: Iterable[str],
        *,
        kinds: Iterable[Kind] | None = None,
        harness: str = "",
        min_reward: float | None = None,
    ) -> "Choice":
        """What the words of `TRAINS` name trains, and nothing else."""
        named = {TRAINS[word]: True for word in words}
        given = dict.fromkeys(TRAINS.values(), False) | named
        chosen = None if kinds is None else frozenset(kinds)
        return cls(**given, kinds=chosen, harness=harness, min_reward=min_reward)


TRAINS = {
    "main": "main",
    "subagent": "subagents",
    "summary": "summaries",
    "side": "side_calls",
    "aborted": "aborted",
    "opaque": "opaque",
}
"""Word for a user -> field of `Choice`."""


@dataclass(frozen=True, slots=True)
class Excused:
    turn: int
    """Index in `Trajectory.turns`."""
    call: int
    """The recorder's number."""
    tokens: int
    """What it would train, so that the sum is the same whatever is chosen; of the reply's content alone where it has
    no rendering."""
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A call whose served ids are not those of the chat template."""

    call: int
    differs: Difference


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
    calls: int = 0
    """Calls looked at, each of which is a sample, excused or silent."""
    mismatches: tuple[Mismatch, ...] = ()
    """Samples whose served ids differ from the template's."""
    family: str = ""
    """The first of the sessions that share a trunk with this one."""
    split: str = ""
    """The part of the dataset it goes to; empty = there are no parts."""

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
    rollout: str
    earned: Rollout | None
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
    rollouts: Mapping[str, Rollout] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Selection:
    """Render what trains. `rollouts` by session, a subagent's own session being part of its parent's: None = every
    advantage is 1.0. `progress` is called after each call."""
    selection = _select(trajectory, renderer, session, choice, rollouts, progress)
    if renderer.confirm():
        return selection
    return _select(trajectory, renderer, session, choice, rollouts, lambda: None)


def _select(
    trajectory: Trajectory,
    renderer: Renderer,
    session: str | None,
    choice: Choice,
    rollouts: Mapping[str, Rollout] | None,
    progress: Callable[[], None],
) -> Selection:
    origin = origins(trajectory)
    chosen: dict[int, _Chosen] = {}
    excused: list[Excused] = []
    fallbacks: Counter[str] = Counter()
    silent = calls = 0
    retried = {t.parent: t for t in trajectory.turns if t.kind == Kind.RETRY and t.parent is not None}
    for turn in trajectory.turns:
        if session is not None and turn.session != session:
            continue
        progress()
        calls += 1
        if turn.reply is None or not (turn.reply.message.blocks or turn.reply.complete or turn.reply.served):
            silent += 1
            continue
        rollout, earned = _earned(turn.session, origin, rollouts)
        reason, detail = _reason(turn, choice, retried.get(turn.index))
        if reason is None and rollouts is not None:
            reason, detail = _unearned(earned, choice)
        if reason is None:
            try:
                rendered = renderer.render(turn.exchange)
            except RenderError as e:
                reason, detail = Reason.NOT_RENDERED, str(e)
        if reason is not None:
            excused.append(
                Excused(turn.index, turn.call.seq, _tokens(turn, turn.reply, renderer, reason), reason, detail)
            )
            continue
        fallbacks.update(rendered.fallbacks)
        if not len(rendered.completion_ids):
            silent += 1
            continue
        one = chosen[turn.index] = _Chosen(turn, rendered, rollout, earned)
        one.grow_from(chosen.get(turn.parent) if turn.parent is not None else None)
    return Selection(
        samples=tuple(
            Sample(
                one.rendered.prompt_ids,
                one.rendered.completion_ids,
                1.0 if one.earned is None else one.earned.advantage,
                one.rendered.logprobs,
                reward=None if one.earned is None else one.earned.reward,
                group=None if one.earned is None else one.earned.group,
                rollout=one.rollout,
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
        calls=calls,
        mismatches=tuple(
            Mismatch(one.turn.call.seq, one.rendered.differs)
            for one in chosen.values()
            if one.rendered.differs is not None
        ),
    )


def conserved(selection: Selection, rows: Iterable[Row]) -> Iterator[Row]:
    """The same rows, checked: loss on owned tokens only, each sampled token owned once, each call trained, excused or
    silent. ExportError if it fails."""
    told = len(selection.samples) + len(selection.excused) + selection.silent
    if selection.calls != told:
        raise ExportError(f"expected {selection.calls} calls trained, excused or silent, got {told}")
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
    if turn.lane == "main" and turn.kind != Kind.SUMMARY_REQUEST and not choice.main:
        return Reason.FILTERED, turn.lane
    if choice.kinds is not None and turn.kind not in choice.kinds:
        return Reason.FILTERED, turn.kind.value
    if choice.harness and turn.hints.harness != choice.harness:
        return Reason.FILTERED, f"harness {turn.hints.harness or 'unknown'}"
    return None, ""


def _tokens(turn: Turn, reply: Reply, renderer: Renderer, reason: Reason) -> int:
    if reason not in (Reason.NOT_RENDERED, Reason.COUNT_TOKENS, Reason.WARMUP):
        try:
            return len(renderer.render(turn.exchange).completion_ids)
        except RenderError:
            pass
    return renderer.count(reply)


def _earned(
    session: str, origin: Mapping[str, str], rollouts: Mapping[str, Rollout] | None
) -> tuple[str, Rollout | None]:
    """The rollout that a session is part of, and what it earned: its own reward, or that of whoever started it."""
    if rollouts is not None and session in rollouts:
        return session, rollouts[session]
    started = origin.get(session, session)
    return started, None if rollouts is None else rollouts.get(started)


def _unearned(earned: Rollout | None, choice: Choice) -> tuple[Reason | None, str]:
    if earned is None:
        return Reason.NO_REWARD, ""
    if choice.min_reward is not None and earned.reward < choice.min_reward:
        return Reason.FILTERED, f"reward {earned.reward:g} below {choice.min_reward:g}"
    return None, ""
