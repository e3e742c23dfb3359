"""From a tree to what trains: every sampled token is trained or excused with a reason, and the sum is checked.

sampled  =  trained  +  excused (side_call, aborted, opaque, ...)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from recorder.errors import ExportError, RenderError
from recorder.message import Reply
from trainer.choice import TRAINS, Choice, Reason, left_out, unearned
from trainer.render import Rendered, Renderer
from trainer.rollouts import Rollout, origins
from trainer.rows import Row
from trainer.sample import Ids, Sample
from trainer.served import Difference
from treebuilder.tree import Kind, Trajectory, Turn

__all__ = ["TRAINS", "Choice", "Excused", "Mismatch", "Reason", "Selection", "conserved", "samples"]


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
    choice: Choice = Choice(),  # noqa: B008  frozen
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
        why, detail = left_out(turn, choice, retried.get(turn.index))
        if why is None and rollouts is not None:
            why, detail = unearned(earned, choice)
        if why is None:
            try:
                rendered = renderer.render(turn.exchange)
            except RenderError as e:
                why, detail = Reason.NOT_RENDERED, str(e)
        if why is not None:
            tokens = _tokens(turn, turn.reply, renderer, why)
            excused.append(Excused(turn.index, turn.call.seq, tokens, why, detail))
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
