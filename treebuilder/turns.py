"""The turn that a placed call becomes: its node, its edit, the echoes in it; and what later calls need of it."""

from dataclasses import replace

from recorder.call import Call
from recorder.message import Head, Hints, Message
from recorder.wire import Opaque
from treebuilder.arrival import New
from treebuilder.classify import Verdict
from treebuilder.diff import Edit, Hunk, diff
from treebuilder.lineage import ABSENT, Line, Mark, Match
from treebuilder.node import shared
from treebuilder.state import State, short_name
from treebuilder.tree import Echo, Kind, Turn


def make_turn(
    state: State,
    new: New,
    line: Line,
    verdict: Verdict,
    *,
    parent: int | None = None,
    front: int | None = None,
    edit: Edit | None = None,
    match: Match = ABSENT,
    quotes: int | None = None,
    origin: int | None = None,
) -> Turn:
    """`front`: messages shared with the parent turn; None = not known yet."""
    before = state.turns[parent] if parent is not None else None
    if before is None:
        front = 0
    else:
        front = shared(before.node, new.node) if front is None else front
        if edit is None:
            if front == before.depth:
                edit = _growth(front, new.messages(front))
            else:
                edit = diff(before.messages, new.messages(0), kept=front)
    turn = Turn(
        index=new.index,
        call=new.call,
        wire=new.wire,
        call_kind=new.exchange.kind,
        head=state.heads.setdefault((new.head.model, new.head.digest), new.head),
        node=new.node,
        reply=new.exchange.reply,
        hints=new.exchange.hints,
        session=line.session,
        thread=line.name,
        lane=line.lane,
        kind=verdict.kind,
        prefix=front,
        parent=parent,
        edit=edit,
        confidence=verdict.confidence,
        evidence=verdict.evidence,
        opaque=new.opaque,
        echoes=_echoes(state, new, before, front, match) if not verdict.kind.aside else (),
        quotes=quotes,
        origin=origin,
    )
    state.turns.append(turn)
    line.members.append(new.index)
    state.line_of[new.index] = line
    if verdict.kind is Kind.SUMMARY_REQUEST:
        state.asked[line.name] = new.index
    elif verdict.kind is Kind.SIDE_CALL or not verdict.kind.aside:
        line.push(Mark(new.index, new.node, new.depth, new.fresh))
    return turn


def _echoes(state: State, new: New, before: Turn | None, front: int, match: Match) -> tuple[Echo, ...]:
    found: list[Echo] = []
    messages = new.messages(front)
    at = 0
    if before is not None and match.count and front == before.depth:
        found.append(Echo(front, match.count, before.index, match.exact))
        state.unechoed[new.scope].pop(before.index, None)
        if match.exact:
            state.unhashed[new.scope].pop(before.index, None)
            state.note(new.scope, messages[: match.count], before.index)
        at = match.count
    for offset in range(at, len(messages)):
        message = messages[offset]
        if message.role != "assistant":
            continue
        turn = state.sampler(new.scope, message)
        exact = turn is not None
        if turn is None:
            ids = [b.id for b in message.blocks if b.kind == "tool_call" and b.id]
            turn = next((state.tool_ids[new.scope, i] for i in ids if (new.scope, i) in state.tool_ids), None)
        if turn is None:
            continue
        state.unechoed.get(new.scope, {}).pop(turn, None)
        last = found[-1] if found else None
        if last is not None and last.turn == turn and last.message + last.count == front + offset:
            found[-1] = replace(last, count=last.count + 1, exact=last.exact and exact)
        else:
            found.append(Echo(front + offset, 1, turn, exact))
    return tuple(found)


def remember(state: State, new: New, turn: Turn) -> None:
    reply = turn.reply
    if turn.kind.aside and turn.kind is not Kind.SIDE_CALL:
        if reply is not None and reply.id:
            state.replies[reply.id] = turn.index
        return
    if not turn.kind.aside:
        node = new.node
        while node is not None and node.depth > turn.prefix:
            state.owners.setdefault(node.id, turn.index)
            node = node.parent
    if reply is None:
        return
    if reply.id:
        state.replies[reply.id] = turn.index
    for block in reply.message.blocks:
        if block.kind == "tool_call" and block.id:
            state.tool_ids[new.scope, block.id] = turn.index
    state.unhashed[new.scope][turn.index] = None
    state.unechoed[new.scope][turn.index] = None


def links_to(state: State, new: New, before: Turn) -> tuple[str, ...]:
    """Ids that tie the call to the compared turn."""
    found: list[str] = []
    if new.hints.session:
        found.append(f"header:session={new.hints.session}")
    if new.hints.agent:
        found.append(f"header:agent={new.hints.agent}")
    previous = new.hints.previous_id
    if previous and before.reply is not None and previous == before.reply.id:
        found.append(f"link:previous reply {previous}")
    return tuple(found)


def _growth(depth: int, added: tuple[Message, ...]) -> Edit:
    return Edit(depth, (Hunk(depth, (), depth, added),) if added else ())


def unread(index: int, call: Call, why: Opaque) -> Turn:
    session = f"run:{call.run or call.source.partition('#')[0] or 'unread'}"
    return Turn(
        index=index,
        call=call,
        wire=why.wire,
        call_kind="generate",
        head=Head("", (), ()),
        node=None,
        reply=None,
        hints=Hints(),
        session=session,
        thread=short_name(session, "unread"),
        lane="main",
        kind=Kind.UNKNOWN,
        prefix=0,
        edit=None,
        parent=None,
        confidence=0.0,
        evidence=(),
        opaque=why.reason,
    )
