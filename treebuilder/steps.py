"""A call that goes on from an earlier one of its thread: it only grew that view, or it edited it."""

from dataclasses import replace

from treebuilder.arrival import New
from treebuilder.asides import asked_before, notice
from treebuilder.classify import Verdict, head_change, judge
from treebuilder.diff import diff
from treebuilder.forks import handed_back
from treebuilder.hindsight import quoted_by, revise_helpers, split, unsampled
from treebuilder.lineage import Line
from treebuilder.node import shared
from treebuilder.search import Found, compare, strayed
from treebuilder.state import State, replied
from treebuilder.summaries import said_summarized, summarized
from treebuilder.tree import Kind, Turn
from treebuilder.turns import links_to, make_turn

RENDERED = (Kind.REMINDER_MOVED, Kind.THINKING_DROPPED, Kind.SYSTEM_CHANGED, Kind.UNKNOWN)
"""What a switch of models looks like where a harness puts the same content otherwise for the other model."""


def go_on(state: State, new: New, found: Found) -> Turn:
    line = found.line
    if asked_before(state, new, found):
        why = ("structure:a prompt taken back again and again",)
        beside = state.line(new, "title", "title", session=line.session)
        return make_turn(state, new, beside, Verdict(Kind.SIDE_CALL, 0.8, why))
    notice(state, new, found)
    tip = line.tip
    assert tip is not None
    if found.mark is not tip and found.rank in (1, 4) and not new.hints.agent:
        reason = strayed(state, new, found)
        if reason.startswith("link:") or (reason and new.pooled):
            split(state, line, found.mark, reason)
            tip = found.mark
    if found.mark is not tip:
        found = compare(state, new, line, tip)
    before = state.turns[found.mark.turn]
    if found.rank == 4 and new.pooled and (tool := handed_back(before, new.messages(found.shared))):
        lane = f"agent:{new.node.id.hex()[:8]}" if new.node else "main"
        line = state.line(new, lane, lane, fresh=True, session=line.session)
        said = f"link:prompt given in tool call {tool} of turn {before.index}, its view in front"
        verdict = Verdict(Kind.FORKED, 0.9, (said,))
        return make_turn(state, new, line, verdict, parent=before.index, match=found.match, origin=before.index)
    if found.rank < 2 or (found.rank == 2 and quoted_by(state, new, line) is not None):
        return _edited(state, new, line)
    return _grown(state, new, found)


def _grown(state: State, new: New, found: Found) -> Turn:
    """The tip's prefix stands whole in front."""
    before = state.turns[found.mark.turn]
    links = links_to(state, new, before)
    if found.rank == 4:
        if state.waits_since(new.scope, before.index):
            revise_helpers(state, new, before, new.messages(found.shared))
        state.asked.pop(found.line.name, None)  # the conversation went on without the summary
    changed = head_change(before.head, new.head)
    if changed is None and before.wire != new.wire:
        changed = Kind.MODEL_SWITCHED, f"structure:wire {before.wire} -> {new.wire}"
    elif changed is None and found.rank == 4 and not found.match.exact and before.head.model != new.head.model:
        said = f"structure:model {before.head.model} -> {new.head.model}, its reply told otherwise"
        changed = Kind.MODEL_SWITCHED, said
    if changed is not None:
        verdict = Verdict(changed[0], 0.95, (*links, changed[1]))
    elif found.rank == 3:
        failed = "" if replied(before) else " after a failed one"
        verdict = Verdict(Kind.RETRY, 0.95 if failed else 0.8, (*links, f"structure:same prefix{failed}"))
    elif found.rank == 4:
        how = "repeated" if found.match.exact else "repeated, changed"
        verdict = Verdict(Kind.APPEND, 0.99, (*links, f"structure:prefix kept, reply {how}"))
    else:
        sure = 0.7 if replied(before) else 0.9
        verdict = Verdict(Kind.APPEND, sure, (*links, "structure:prefix kept, reply dropped"))
    return make_turn(state, new, found.line, verdict, parent=before.index, front=found.shared, match=found.match)


def _edited(state: State, new: New, line: Line) -> Turn:
    quoted = quoted_by(state, new, line)
    tip = line.tip
    assert tip is not None
    if quoted is not None and quoted[0] == tip.turn and len(line.marks) > 1:
        line.marks.pop()
        tip = line.marks[-1]
    front = shared(tip.node, new.node)
    before = state.turns[tip.turn]
    old, now = tip.messages, new.messages(0)
    edit = diff(old, now, kept=front)
    links = links_to(state, new, before)
    asked = state.asked.get(line.name)
    if quoted is not None or (not state.structural and said_summarized(state, new, asked, front)):
        return summarized(state, new, line, before, edit, quoted, asked, links)
    echo = state.reply_at(before, now[front:])
    verdict = judge(
        edit,
        old,
        now,
        echo=None if echo is None else front + echo,
        replied=replied(before),
        slid_before=any(state.turns[i].kind is Kind.WINDOW_DROPPED for i in line.members[-8:]),
        unsampled_chars=unsampled(state, new, before, edit),
    )
    changed = head_change(before.head, new.head)
    if changed is not None and changed[0] is Kind.MODEL_SWITCHED:
        verdict = Verdict(Kind.MODEL_SWITCHED, 0.8, (changed[1], *verdict.evidence))
    elif before.head.model != new.head.model and verdict.kind in RENDERED:
        said = f"structure:model {before.head.model} -> {new.head.model}, the same told otherwise"
        verdict = Verdict(Kind.MODEL_SWITCHED, 0.7, (said, *verdict.evidence))
    elif before.wire != new.wire:
        verdict = Verdict(Kind.MODEL_SWITCHED, 0.7, (f"structure:wire {before.wire} -> {new.wire}", *verdict.evidence))
    return make_turn(
        state,
        new,
        line,
        replace(verdict, evidence=(*links, *verdict.evidence)),
        parent=before.index,
        front=front,
        edit=edit,
    )
