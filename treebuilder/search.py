"""Which earlier turn does a call go on from? Among the lines of its scope: the one it holds whole, or keeps most of."""

from collections.abc import Sequence
from dataclasses import dataclass

from recorder.call import Call
from recorder.message import Message
from treebuilder.arrival import New
from treebuilder.lineage import ABSENT, NEAR, Line, Mark, Match, as_messages, delegated, echo_at
from treebuilder.node import Node, shared
from treebuilder.quotes import quote
from treebuilder.state import State, replied
from treebuilder.tree import Kind, Turn


@dataclass(slots=True, eq=False)
class Found:
    line: Line
    mark: Mark
    rank: int
    """4 continues it with its reply, 3 the same prefix again, 2 grows without the reply, 1 keeps some, 0 keeps none."""
    match: Match
    kept: int
    shared: int


def find(state: State, new: New, lines: Sequence[Line]) -> Found | None:
    """The turn that this call continues, or else the one of which it keeps most."""
    best: Found | None = None
    fronts: dict[int, Node | None] = {}
    if new.near is not None and len(lines) > 1:
        near = state.line_of[new.near]
        lines = sorted(lines, key=lambda line: line is not near)  # most others then need no more than a look
    for line in lines:
        for mark in reversed(line.marks):
            depth = mark.depth
            if best is not None and best.rank > 1:
                if not best.shared <= depth <= new.depth:
                    continue  # cannot hold as much, or is not held whole
                if depth not in fronts:
                    fronts[depth] = new.node.ancestor(depth) if new.node is not None else None
                if fronts[depth] is not mark.node:
                    continue
            found = compare(state, new, line, mark)
            if best is None or _order(state, new, found) >= _order(state, new, best):
                best = found
    if best is not None and best.rank == 0 and (new.pooled or len(lines) > 1):
        best = most_kept(state, new, lines) or best
    return best


def _order(state: State, new: New, found: Found) -> tuple[bool, int, int, bool, int]:
    same_head = state.turns[found.mark.turn].head.digest == new.head.digest
    return found.rank > 1, found.shared, found.rank, same_head, found.mark.turn


def compare(state: State, new: New, line: Line, mark: Mark) -> Found:
    front = shared(mark.node, new.node)
    if front < mark.depth:
        return Found(line, mark, 0, ABSENT, 0, front)
    if front == new.depth:
        return Found(line, mark, 3, ABSENT, front, front)
    match = echo_at(state.turns[mark.turn].reply, new.messages(front, front + 64), 0)
    return Found(line, mark, 4 if match.count else 2, match, front, front)


def most_kept(state: State, new: New, lines: Sequence[Line], *, reply_alone: bool = False) -> Found | None:
    """Among the latest lines: the mark of whose view most is in the new one, sampled messages at least one.
    `reply_alone`: the reply counts even where nothing of its prefix is left."""
    digests = {m.digest for m in new.messages(0)}
    tools = {b.id for m in new.messages(0) for b in m.blocks if b.kind == "tool_call" and b.id}
    best: Found | None = None
    for line in near(lines):
        for mark in line.marks:
            turn = state.turns[mark.turn]
            past = turn.messages
            kept = [m for m in past if m.digest in digests]
            sampled = [m for m in kept if m.role == "assistant"]
            mine = {b.id for m in past for b in m.blocks if b.kind == "tool_call" and b.id}
            if turn.reply is not None:
                echoes = as_messages(turn.reply, turn.wire)
                replied = bool(echoes) and echoes[0].digest in digests
                mine |= {b.id for b in turn.reply.message.blocks if b.kind == "tool_call" and b.id}
            else:
                replied = False
            if not sampled and not (replied and (kept or reply_alone)) and not mine & tools:
                continue
            size = len(kept) + replied
            front = shared(mark.node, new.node)
            if best is None or (size, front, mark.turn) >= (best.kept, best.shared, best.mark.turn):
                best = Found(line, mark, 1, ABSENT, size, front)
    return best


def near(lines: Sequence[Line]) -> list[Line]:
    """The latest lines, and the latest of several calls: helpers' single calls do not push a conversation out."""
    recent = sorted((line for line in lines if line.members), key=lambda line: line.members[-1])
    long = [line for line in recent if len(line.members) > 1]
    return list({id(line): line for line in (*long[-NEAR:], *recent[-NEAR:])}.values())


def belongs(state: State, new: New, found: Found) -> bool:
    """A session's id ties a call to its line; without one, something sampled must be kept, or a failure retried."""
    first = state.turns[found.line.members[0]]
    if not new.pooled and found.line.key.startswith("agent:") and not found.rank:
        return False
    if not new.pooled:
        if found.rank or found.shared:
            return True
        before = state.turns[found.mark.turn]
        return before.head.digest == new.head.digest or before.head.tools == new.head.tools != ()
    match found.rank:
        case 4 | 1:
            return True
        case 3 | 2:
            before = state.turns[found.mark.turn]
            return found.shared > first.depth or (not replied(before) and before.head.digest == new.head.digest)
        case _:
            return False


def strayed(state: State, new: New, found: Found) -> str:
    """Why the turns behind `found.mark` were another thread's, not steps that the new call takes back."""
    line, mark = found.line, found.mark
    after = [state.turns[i] for i in line.members if i > mark.turn]
    if not after:
        return ""
    base = state.turns[mark.turn]
    theirs = {
        b.id for t in after for b in (t.reply.message.blocks if t.reply else ()) if b.kind == "tool_call" and b.id
    }
    if theirs and any(b.id in theirs for m in new.messages(found.shared) for b in m.blocks if b.kind == "tool_call"):
        return ""  # it holds what was sampled there
    if after[0].head.digest != base.head.digest == new.head.digest:
        return "structure:its head differs, the other thread goes on with the old one"
    last = after[-1]
    if replied(last) and last.reply is not None:
        report = "\n".join(b.text for b in last.reply.message.blocks if b.kind == "text")
        results = "\n".join(b.plain for m in new.messages(found.shared) for b in m.blocks if b.kind == "tool_result")
        if results and quote(report, results).found:
            return "link:a tool result quotes its last reply"
    if found.rank == 4 and replied(last) and _answered_otherwise(after, new.messages(found.shared), found.shared):
        return "link:the same tool calls have other results there"
    if overlap(new.call, last.call):
        return "structure:both were in flight together"
    if after[0].kind in (Kind.REWOUND, Kind.DELETED) and after[0].edit is not None and after[0].edit.evicted:
        kept = {m.digest for m in new.messages(0)}
        if found.rank == 4 or any(m.digest in kept for m in base.messages[after[0].prefix :]):
            return "structure:what it had dropped stands in the other thread's next prefix"
    return ""


def _answered_otherwise(after: Sequence[Turn], added: Sequence[Message], front: int) -> bool:
    """Both answer the same tool calls, with other results, and the newer holds nothing that was said to the older."""
    theirs = {b.id: b for m in after[-1].messages[front:] for b in m.blocks if b.kind == "tool_result" and b.id}
    mine = {b.id: b for m in added for b in m.blocks if b.kind == "tool_result" and b.id}
    same = theirs.keys() & mine.keys()
    return bool(same) and all(theirs[i] != mine[i] for i in same) and not any(_repeated(turn, added) for turn in after)


def _repeated(turn: Turn, messages: Sequence[Message]) -> bool:
    return any(echo_at(turn.reply, messages, i).count for i in range(len(messages)))


def delegator(state: State, new: New) -> tuple[int | None, str]:
    """The turn whose tool call handed over this call's prompt, and the tool's name."""
    prompt = [b for m in new.fresh[:4] if m.role == "user" for b in m.blocks]
    scopes = [new.scope]
    if new.hints.parent_session:
        scopes.append(f"session:{new.hints.parent_session}")
    scopes += [state.line_of[t.index].scope for t in reversed(state.turns[-NEAR:]) if t.index in state.line_of]
    for scope in dict.fromkeys(scopes):
        for line in reversed(state.lines.get(scope, [])):
            for mark in reversed(line.marks):
                reply = state.turns[mark.turn].reply
                for block in reply.message.blocks if reply else ():
                    if block.kind == "tool_call" and delegated(block, prompt):
                        return mark.turn, block.name
    return None, ""


def overlap(a: Call, b: Call) -> bool:
    if not a.started_at_utc or not b.started_at_utc or b.duration_s is None:
        return False
    return b.started_at_utc <= a.started_at_utc < b.started_at_utc + b.duration_s
