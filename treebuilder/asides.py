"""A prompt that is put again and again and taken back each time is no user's: the harness asks beside the conversation.

u1 a1 S        x1        S is asked behind the whole view; nothing of it stays
u1 a1 u2       a2        looks like a user who took S back
u1 a1 u2 a2 S  x2        the same S
u1 a1 u2 a2 u3 a3        taken back again: both were asides, and so is every S from here on
"""

from dataclasses import replace

from treebuilder.arrival import New
from treebuilder.diff import Edit
from treebuilder.lineage import Line
from treebuilder.search import Found
from treebuilder.spans import Hunk
from treebuilder.state import State, short_name
from treebuilder.tree import Kind, Turn

MIN_PROMPT = 24
"""Characters; a user may well say `continue` twice and take it back twice. Ours."""


def asked_before(state: State, new: New, found: Found) -> bool:
    """The newest prompt was taken back twice already: one more of those."""
    last = new.fresh[-1] if new.fresh else None
    return last is not None and found.rank == 4 and len(state.taken.get((found.line.name, last.digest), ())) > 1


def notice(state: State, new: New, found: Found) -> None:
    """`new` goes on from before the tip's prompt. If that prompt was taken back before, both calls become asides."""
    line = found.line
    tip = state.turns[line.marks[-1].turn]
    if found.rank != 4 or len(line.marks) < 2 or line.marks[-2] is not found.mark or tip.parent != found.mark.turn:
        return
    prompt = tip.messages[-1]
    one_more = tip.depth == found.shared + found.match.count + 1
    spoken = prompt.role == "user" and all(b.kind == "text" for b in prompt.blocks)
    if not one_more or not spoken or prompt.size_chars < MIN_PROMPT:
        return
    before = state.taken.setdefault((line.name, prompt.digest), [])
    before.append(tip.index)
    if len(before) == 1:
        return
    line.marks.pop()
    for index in before[-2:]:
        if state.turns[index].kind is not Kind.SIDE_CALL:
            _set_aside(state, line, index)


def _set_aside(state: State, line: Line, index: int) -> None:
    turn = state.turns[index]
    beside = next((x for x in state.lines[line.scope] if x.lane == "title" and x.session == line.session), None)
    if beside is None:
        beside = Line("title", line.session, "title", short_name(line.session, "title"), scope=line.scope)
        state.lines[line.scope].append(beside)
    line.members.remove(index)
    line.marks = [m for m in line.marks if m.turn != index]
    beside.members.append(index)
    state.line_of[index] = beside
    said = (*turn.evidence, "structure:the same prompt taken back again and again")
    state.turns[index] = replace(
        turn, kind=Kind.SIDE_CALL, lane="title", thread=beside.name, edit=None, echoes=(), confidence=0.8, evidence=said
    )
    after = next((t for t in state.turns[index + 1 :] if t.parent == index and t.kind is Kind.REWOUND), None)
    if after is not None and turn.parent is not None:
        state.turns[after.index] = _grew(after, turn, state.turns[turn.parent])


def _grew(turn: Turn, aside: Turn, before: Turn) -> Turn:
    """The turn that seemed to take the aside's prompt back, compared with the call before that."""
    added = turn.messages[before.depth :]
    edit = Edit(before.depth, (Hunk(before.depth, (), before.depth, added),) if added else ())
    echoes = tuple(e for e in aside.echoes if e.message < turn.prefix) + turn.echoes
    return replace(
        turn,
        kind=Kind.APPEND,
        parent=before.index,
        prefix=before.depth,
        edit=edit,
        echoes=tuple(sorted(set(echoes), key=lambda e: e.message)),
        confidence=0.9,
        evidence=(*turn.evidence, "structure:what it had dropped was asked beside it"),
    )
