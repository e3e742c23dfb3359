"""The call that asks for a summary, and the first one whose history a summary replaced."""

from collections.abc import Sequence

from treebuilder import wording
from treebuilder.arrival import New
from treebuilder.classify import Verdict
from treebuilder.diff import Edit
from treebuilder.hindsight import revise_request
from treebuilder.lineage import Line
from treebuilder.quotes import Quote
from treebuilder.search import Found
from treebuilder.state import State
from treebuilder.tree import Kind, Turn
from treebuilder.turns import make_turn


def requested(state: State, new: New, found: Found | None, said: Verdict, key: str, lane: str) -> Turn:
    shares = found is not None and (found.rank in (2, 3, 4) or found.shared > 0 or (not new.pooled and found.rank == 1))
    same_tools = found is not None and state.turns[found.mark.turn].head.tools == new.head.tools
    if found is not None and shares and (same_tools or found.shared):
        line = found.line
        assert line.tip is not None
        return make_turn(state, new, line, said, parent=line.tip.turn)
    owner = found.line if found is not None else state.latest_main(new)
    line = state.line(new, "summary", "summary", session=owner.session if owner else None)
    turn = make_turn(state, new, line, said)
    if owner is not None:
        state.asked[owner.name] = turn.index
    return turn


def said_summarized(state: State, new: New, asked: int | None, front: int) -> bool:
    words = wording.is_summarized(new.messages(front, front + 3))
    return bool(new.hints.context_compacted) or asked is not None or bool(words)


def summarized(
    state: State,
    new: New,
    line: Line,
    before: Turn,
    edit: Edit,
    quoted: tuple[int, Quote] | None,
    asked: int | None,
    links: Sequence[str],
) -> Turn:
    evidence: list[str] = []
    if new.hints.context_compacted:
        evidence.append(f"header:x-claude-code-context-compacted={new.hints.context_compacted}")
    evidence.extend(links)
    sure = 0.9
    if quoted is not None:
        revise_request(state, quoted[0], line)
        evidence.append(f"structure:quotes {quoted[1].share:.2f} of the reply of turn {quoted[0]}")
        sure = 0.99 if quoted[1].share > 0.5 else 0.9
    elif asked is not None:
        evidence.append(f"link:turn {asked} asked for a summary")
    if not state.structural and (words := wording.is_summarized(new.messages(0)[:3])):
        evidence.append(f"wording:{words}")
    state.asked.pop(line.name, None)
    verdict = Verdict(Kind.SUMMARIZED, sure, tuple(evidence))
    source = quoted[0] if quoted else asked
    return make_turn(state, new, line, verdict, parent=before.index, edit=edit, quotes=source)
