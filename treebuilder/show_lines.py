"""The lines of the picture that `show` draws: a call each, or a run of appends, or of alike asides, folded into one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recorder.call import Outcome
from treebuilder.names import evidence, number
from treebuilder.tree import Kind, Thread, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Line:
    """As `memorywalker show --json` prints it; the names are a promise."""

    session: str
    thread: str
    lane: str
    """main | agent:ID | title | summary | count | warmup."""
    source: str | None
    """The call that the thread was started by or forked from; None = from nothing."""
    branch: int
    """Edits of this thread so far: steps to the right."""
    opens: bool
    """The first line of its thread."""
    kind: Kind
    calls: tuple[str, ...]
    """Numbers as `calls` prints them; more than one: a folded run."""
    messages: int
    """In the last call's prefix."""
    characters: int
    """In the last call's prefix; system text and tools are not counted."""
    evicted: int
    """Characters that left, all calls together."""
    inserted: int
    confidence: float
    evidence: tuple[str, ...]
    failed: tuple[str, ...]
    """How calls ended that did not end well: `http error 429`, `truncated`."""
    opaque: str


def lines(trajectory: Trajectory, *, fold: bool = True) -> Iterator[Line]:
    """Session by session; in each the main line first, then agents, then what stands aside."""
    place = {session: i for i, session in enumerate(trajectory.sessions)}
    for thread in sorted(trajectory.threads, key=lambda t: (place[t.session], _rank(t), t.turns[0])):
        yield from _of_thread(trajectory, thread, fold=fold)


def _rank(thread: Thread) -> int:
    return 0 if thread.lane == "main" else 1 if thread.lane.startswith("agent:") else 2


def _of_thread(trajectory: Trajectory, thread: Thread, *, fold: bool) -> Iterator[Line]:
    branch = 0
    run: list[Turn] = []
    turns = [trajectory.turns[i] for i in thread.turns]
    for turn in turns:
        folds = fold and not turn.opaque and (turn.kind is Kind.APPEND or turn.kind.aside)
        if run and (turn.kind is not run[0].kind or not folds):
            yield _line(trajectory, thread, run, branch)
            run = []
        branch += turn is not turns[0] and is_edit(turn.kind)
        run.append(turn)
        if not folds:
            yield _line(trajectory, thread, run, branch)
            run = []
    if run:
        yield _line(trajectory, thread, run, branch)


def is_edit(kind: Kind) -> bool:
    """Opens a branch of its own."""
    return not kind.aside and kind not in (Kind.APPEND, Kind.RETRY, Kind.SUMMARY_REQUEST)


def _line(trajectory: Trajectory, thread: Thread, run: Sequence[Turn], branch: int) -> Line:
    last = run[-1]
    first = trajectory.turns[thread.turns[0]]
    source = first.origin if first.origin is not None else thread.parent
    edits = [t.edit for t in run if t.edit]
    return Line(
        session=thread.session,
        thread=thread.name,
        lane=thread.lane,
        source=None if source is None else number(trajectory.turns[source]),
        branch=branch,
        opens=run[0] is first,
        kind=last.kind,
        calls=tuple(number(t) for t in run),
        messages=last.depth,
        characters=last.chars,
        evicted=sum(e.evicted_chars for e in edits),
        inserted=sum(e.inserted_chars for e in edits),
        confidence=min(t.confidence for t in run),
        evidence=evidence(trajectory, last),
        failed=tuple(_failure(t) for t in run if t.call.outcome is not Outcome.COMPLETE),
        opaque=last.opaque,
    )


def _failure(turn: Turn) -> str:
    how = turn.call.outcome.replace("_", " ")
    return f"{how} {turn.call.status}" if turn.call.outcome is Outcome.HTTP_ERROR else how
