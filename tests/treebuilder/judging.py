"""A tree beside the truth of a world: every call's thread, session, kind and spans."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from world_parts import Made

from treebuilder.arrival import prepare
from treebuilder.build import Builder
from treebuilder.diff import Span, apply
from treebuilder.tree import Trajectory, Turn


def tree_of(made: Sequence[Made], *, structural: bool) -> Trajectory:
    builder = Builder(structural=structural)
    for one in made:
        builder.place(prepare(one.call, one.exchange))
    return builder.trajectory()


def amounts(spans: Sequence[Span]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = defaultdict(int)
    for span in spans:
        found[span.message, span.block] += span.chars
    return {place: chars for place, chars in found.items() if chars}


def faults(made: Sequence[Made], tree: Trajectory) -> Iterator[tuple[Made, Turn, str]]:
    """Each call that is told wrongly, once, with what is wrong first."""
    threads = _best(tuple((m.thread, t.thread) for m, t in zip(made, tree, strict=True) if m.lane in ("main", "agent")))
    sessions = _best(tuple((m.session, t.session) for m, t in zip(made, tree, strict=True) if m.lane == "main"))
    for one, turn in zip(made, tree, strict=True):
        wrong = ""
        if turn.messages != one.view:
            wrong = "walk"
        elif turn.kind != one.kind:
            wrong = f"kind {turn.kind}"
        elif turn.lane.partition(":")[0] != one.lane:
            wrong = f"lane {turn.lane}"
        elif one.lane in ("main", "agent") and threads[one.thread] != turn.thread:
            wrong = f"thread {turn.thread}, not {threads[one.thread]}"
        elif one.session in sessions and sessions[one.session] != turn.session and one.lane != "count":
            wrong = f"session {turn.session}"
        elif one.compared is not None and not turn.kind.aside:
            wrong = _edit_fault(one, turn, tree)
        if wrong:
            yield one, turn, wrong


def _edit_fault(one: Made, turn: Turn, tree: Trajectory) -> str:
    if turn.kind == "summary_request" and turn.lane == "summary":
        return ""
    if turn.parent is None or turn.edit is None:
        return "compared with nothing"
    if turn.parent != one.compared:
        return f"compared with {turn.parent}, not {one.compared}"
    if apply(turn.edit, tree.turns[turn.parent].messages) != turn.messages:
        return "the edit does not lead there"
    if turn.prefix != one.kept:
        return f"kept {turn.prefix}, not {one.kept}"
    if amounts(turn.edit.evicted) != one.evicted:
        return f"evicted {amounts(turn.edit.evicted)}, not {one.evicted}"
    if amounts(turn.edit.inserted) != one.inserted:
        return f"inserted {amounts(turn.edit.inserted)}, not {one.inserted}"
    return ""


def _best(pairs: Sequence[tuple[int, str]]) -> dict[int, str]:
    """For each true name the name that the tree gives most of its calls, no name given twice."""
    found: dict[int, str] = {}
    taken: set[str] = set()
    for (true, said), _ in Counter(pairs).most_common():
        if true not in found and said not in taken:
            found[true] = said
            taken.add(said)
    return defaultdict(str, found)
