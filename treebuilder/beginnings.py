"""A call that goes on from nothing in its scope: a root, a fork of another session, an agent, or an aside."""

from treebuilder.arrival import New
from treebuilder.classify import Verdict
from treebuilder.forks import fork
from treebuilder.hindsight import is_aside, revise_asides
from treebuilder.node import shared
from treebuilder.search import delegator
from treebuilder.state import State
from treebuilder.tree import Kind, Turn
from treebuilder.turns import make_turn


def begin(state: State, new: New, key: str, lane: str) -> Turn:
    """Nothing of this call was seen in its scope: a root, a fork of another session, an agent, or an aside."""
    origin, call_name = delegator(state, new) if lane == "main" or lane.startswith("agent:") else (None, "")
    evidence: list[str] = []
    if new.hints.agent:
        evidence.append(f"header:agent={new.hints.agent}")
    elif new.hints.parent_session:
        evidence.append(f"header:parent-session={new.hints.parent_session}")
    elif new.hints.session:
        evidence.append(f"header:session={new.hints.session}")
    known = lane == "main" or any(line.key == key for line in state.lines.get(new.scope, ()))
    if known and origin is None and not new.hints.request_class and is_aside(state, new):
        line = state.line(new, "title", "title")
        return make_turn(state, new, line, Verdict(Kind.SIDE_CALL, 0.7, ("structure:own head, beside another thread",)))
    forked = fork(state, new)
    if forked is not None:
        parent, match = forked
        front = shared(state.turns[parent].node, new.node)
        line = state.line(new, key, lane, fresh=True)
        verdict = Verdict(Kind.FORKED, 0.95, (*evidence, f"structure:{front} messages of another thread"))
        return make_turn(state, new, line, verdict, parent=parent, match=match)
    if origin is not None:
        evidence.append(f"link:prompt given in tool call {call_name} of turn {origin}")
        if lane == "main":
            lane = f"agent:{new.node.id.hex()[:8]}" if new.node else lane
            session = new.hints.session or state.turns[origin].session
            line = state.line(new, lane, lane, fresh=True, session=session)
        else:
            line = state.line(new, key, lane, fresh=True)
        return make_turn(state, new, line, Verdict(Kind.ROOT, 0.95, tuple(evidence)), origin=origin)
    line = state.line(new, key, lane, fresh=True)
    turn = make_turn(
        state, new, line, Verdict(Kind.ROOT, 0.95 if evidence else 0.8, (*evidence, "structure:nothing kept"))
    )
    revise_asides(state, new, line)
    return turn
