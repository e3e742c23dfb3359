"""Which other thread does a call start from? One whose view, with something sampled in it, stands in front.

Threads of other sessions are found through the trie of prefixes: equal prefixes are one node, and the node knows who
was sent it first. Where no id names a session, a recording that goes on from another's is joined to it.
"""

from collections.abc import Sequence

from recorder import canonical
from recorder.message import Block, Message
from treebuilder.arrival import New
from treebuilder.lineage import ABSENT, Match, echo_at
from treebuilder.node import shared
from treebuilder.quotes import MIN_LINE, quote
from treebuilder.search import find
from treebuilder.state import State
from treebuilder.tree import Turn

LATEST = 8
"""Summaries asked for in other recordings, the latest first, that a call without an id may carry on. Ours."""
ENOUGH_CHARS = 24
"""Of a sampled message without a tool's id: shorter ones (`Done.`) are said twice by chance. Ours."""


def fork(state: State, new: New) -> tuple[int, Match] | None:
    """The turn that the call starts from: the deepest whose whole view and reply it holds, or where that thread has
    gone on, its latest, which shares the reply too; or else the one that was first sent what it holds."""
    node = new.node
    while node is not None and node.id not in state.owners:
        node = node.parent
    if node is None:
        return None
    owner = state.turns[state.owners[node.id]]
    line = state.line_of[owner.index]
    best = find(state, new, [line])
    whole = (best.shared, best.mark.turn, best.match) if best is not None and best.rank == 4 else None
    root = owner
    at: Turn | None = owner
    while at is not None:
        root = at
        if whole is None or at.depth > whole[0]:
            match = echo_at(at.reply, new.messages(at.depth, at.depth + 64), 0) if _holds(new, at) else ABSENT
            if match.count:
                whole = at.depth, at.index, match
        at = state.turns[at.parent] if at.parent is not None else None
    if whole is not None:
        tip = state.line_of[whole[1]].tip
        further = tip is not None and tip.turn != whole[1] and shared(tip.node, new.node) > whole[0]
        return (tip.turn, ABSENT) if tip is not None and further else (whole[1], whole[2])
    if node.depth <= root.depth:
        return None
    tip = line.tip
    deepest = tip.turn if tip is not None and shared(tip.node, new.node) >= node.depth else owner.index
    return deepest, ABSENT


def _holds(new: New, turn: Turn) -> bool:
    return turn.node is not None and turn.depth < new.depth and shared(turn.node, new.node) == turn.depth


def handed_back(before: Turn, added: Sequence[Message]) -> str:
    """The name of the tool call of that turn whose result comes with its own prompt: the call goes on as the agent that
    it started, the parent's whole view in front. Empty = none."""
    results = {b.id for m in added for b in m.blocks if b.kind == "tool_result"}
    spoken = [b.text for m in added for b in m.blocks if b.kind == "text"]
    for call in before.reply.message.blocks if before.reply else ():
        if call.kind == "tool_call" and call.id and call.id in results:
            prompt = _longest(call)
            if len(prompt) >= 2 * MIN_LINE and " " in prompt and any(prompt in text for text in spoken):
                return call.name
    return ""


def _longest(call: Block) -> str:
    """The longest of a tool call's top-level string arguments."""
    try:
        given = canonical.loads(call.text)
    except ValueError:
        return ""
    values = given.values() if isinstance(given, dict) else ()
    return max((v.strip() for v in values if isinstance(v, str)), key=len, default="")


def joined(state: State, new: New) -> bool:
    """No id says whose call it is, and what it repeats was sampled in another recording: both are one scope now."""
    if not new.pooled:
        return False
    other = _elsewhere(state, new) or _summary_of(state, new)
    hit = fork(state, new) if other is None else None
    if hit is not None and state.line_of[hit[0]].scope.startswith("run:"):
        other = state.line_of[hit[0]].scope
    if other is None or other == new.scope:
        return False
    mine = new.scope
    state.joined = {mine: other, **{run: other if to == mine else to for run, to in state.joined.items()}}
    lines = state.lines.pop(mine, [])
    for line in lines:
        line.scope = other
    state.lines.setdefault(other, []).extend(lines)
    for index in state.unechoed.pop(mine, {}):
        state.unechoed.setdefault(other, {})[index] = None
    for index in state.unhashed.pop(mine, {}):
        state.unhashed.setdefault(other, {})[index] = None
    new.scope = other
    return True


def _summary_of(state: State, new: New) -> str | None:
    """The scope of a call that had asked for a summary, where the call quotes it."""
    text = ""
    for index in reversed(list(state.asked.values())[-LATEST:]):
        turn, scope = state.turns[index], state.line_of[index].scope
        if turn.reply is None or scope == new.scope or not scope.startswith("run:"):
            continue
        text = text or "\n".join(m.plain for m in new.messages(0))
        if quote("\n".join(b.text for b in turn.reply.message.blocks if b.kind == "text"), text).found:
            return scope
    return None


def heard(state: State, new: New, turn: Turn) -> None:
    """Remember whose recording holds which assistant messages."""
    if new.pooled and not turn.kind.aside:
        for message in new.messages(turn.prefix):
            if message.role == "assistant":
                state.spoken.setdefault(message.digest, new.scope)


def _elsewhere(state: State, new: New) -> str | None:
    for message in new.messages(0):
        scope = state.spoken.get(message.digest) if message.role == "assistant" else None
        scope = state.joined.get(scope, scope) if scope is not None else None
        telling = any(b.id for b in message.blocks) or message.size_chars >= ENOUGH_CHARS
        if scope is not None and scope != new.scope and telling:
            return scope
    return None
