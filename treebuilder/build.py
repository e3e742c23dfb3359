"""Calls in, trajectory out; call by call or all at once, the same tree.

Each call is looked for among the lines of its scope (its session, or, without an id, its recording), gets compared with
one earlier turn, and its edit is judged: headers first, links next, structure last. A later call can show what an
earlier one was (its reply is quoted: it asked for the summary; its parent goes on elsewhere: it was a fork): then that
turn is revised. What a call costs follows what is new in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from recorder.call import Call
from recorder.message import Exchange, Hints
from recorder.wire import Opaque
from treebuilder import wording
from treebuilder.arrival import New, Prepared, prepare
from treebuilder.classify import Verdict, head_change, judge
from treebuilder.diff import Edit, diff
from treebuilder.forks import fork, handed_back, heard, joined
from treebuilder.headers import compacts, key_and_lane, said_outright
from treebuilder.hindsight import (
    is_aside,
    promote,
    quoted_by,
    revise_asides,
    revise_helpers,
    revise_request,
    split,
    summarized_elsewhere,
    unsampled,
)
from treebuilder.lineage import Line, as_messages
from treebuilder.node import shared
from treebuilder.quotes import Quote
from treebuilder.search import Found, belongs, compare, delegator, find, most_kept, strayed
from treebuilder.state import State, replied
from treebuilder.tree import Kind, Trajectory, Turn
from treebuilder.turns import links_to, make_turn, remember, unread


def build(calls: Iterable[Call], *, structural: bool = False) -> Trajectory:
    """The tree of some calls, in an order that keeps each thread's own. `structural` uses no header, no id outside
    tool calls and no known wording."""
    builder = Builder(structural=structural)
    for call in calls:
        builder.add(call)
    return builder.trajectory()


RENDERED = (Kind.REMINDER_MOVED, Kind.THINKING_DROPPED, Kind.SYSTEM_CHANGED, Kind.UNKNOWN)
"""What a switch of models looks like where a harness puts the same content otherwise for the other model."""


class Builder:
    """Grows a trajectory call by call."""

    def __init__(self, *, structural: bool = False) -> None:
        self.state = State(structural)

    def add(self, call: Call) -> Turn:
        """Parse and place one call; the turn as it looks now."""
        return self.place(prepare(call))

    def trajectory(self) -> Trajectory:
        return Trajectory(tuple(self.state.turns))

    def place(self, item: Prepared) -> Turn:
        index = len(self.state.turns)
        if isinstance(item.exchange, Opaque):
            turn = unread(index, item.call, item.exchange)
            self.state.turns.append(turn)
            return turn
        new = self._arrive(index, item, item.exchange)
        if new.exchange.kind != "generate":
            turn = self._beside(new, "count" if new.exchange.kind == "count_tokens" else "warmup")
        else:
            turn = self._judge(new)
        remember(self.state, new, turn)
        heard(self.state, new, turn)
        return self.state.turns[index]

    def _arrive(self, index: int, item: Prepared, exchange: Exchange) -> New:
        hints = Hints() if self.state.structural else exchange.hints
        pool = item.call.run or item.call.source.partition("#")[0]
        scope = f"session:{hints.session}" if hints.session else f"run:{pool}"
        scope = self.state.joined.get(scope, scope)
        new = New(index, item.call, exchange, scope, not hints.session, hints)
        if exchange.reply is not None and exchange.reply.server_edits and not compacts(new):
            new.opaque = "server edited the context: " + ", ".join(exchange.reply.server_edits)
        before = self._delta_of(new)
        if before is None:
            new.node = self.state.locate(scope, exchange.messages)
            return new
        turn = self.state.turns[before]
        trie = self.state.trie
        base = trie.grow(turn.node, as_messages(turn.reply, turn.wire) if turn.reply else ())
        new.node = trie.grow(base, exchange.messages)
        new.opaque = new.opaque or turn.opaque
        return new

    def _delta_of(self, new: New) -> int | None:
        """The turn whose prefix and reply stand, unsent, before these items."""
        if new.wire != "openai_responses":
            return None
        if not self.state.structural:
            previous = new.exchange.hints.previous_id
            if not previous:
                return None
            found = self.state.replies.get(previous)
            if found is None:
                new.opaque = f"earlier items unknown: expected a recorded reply {previous}, got none"
            return found
        if not new.fresh or new.fresh[0].role != "tool" or not new.fresh[0].blocks:
            return None
        return self.state.tool_ids.get((new.scope, new.fresh[0].blocks[0].id))

    def _beside(self, new: New, lane: str) -> Turn:
        kind = {"count": Kind.COUNT_TOKENS, "warmup": Kind.WARMUP}.get(lane, Kind.SIDE_CALL)
        evidence = f"wire:{new.exchange.kind}" if kind is not Kind.SIDE_CALL else "structure:beside the conversation"
        line = self.state.line(new, lane, lane)
        return make_turn(self.state, new, line, Verdict(kind, 1.0, (evidence,)))

    def _judge(self, new: New) -> Turn:
        said = said_outright(new, structural=self.state.structural)
        if said is not None and said.kind is Kind.SIDE_CALL:
            return make_turn(self.state, new, self.state.line(new, "title", "title"), said)
        key, lane = key_and_lane(new.hints)
        every = self.state.lines.get(new.scope, ())
        lines = [line for line in every if line.lane != "title" and self._open_to(new, line, key)]
        found = find(self.state, new, lines)
        if found is not None and found.rank == 0 and not key and self._is_handed_over(new, found):
            found = None  # an agent whose harness gives it no id of its own
        if said is not None and said.kind is Kind.SUMMARY_REQUEST:
            return self._summary_request(new, found, said, key, lane)
        if found is None or not belongs(self.state, new, found):
            quoted = summarized_elsewhere(self.state, new, lines) or most_kept(self.state, new, lines, reply_alone=True)
            if quoted is None:
                aside = find(self.state, new, [line for line in every if line.lane == "title"])
                if aside is None or aside.rank != 4:
                    return self._judge(new) if joined(self.state, new) else self._begin(new, key, lane)
                quoted = replace(aside, line=promote(self.state, aside.line, aside.mark.turn))
            found = quoted
        return self._continue(new, found)

    def _open_to(self, new: New, line: Line, key: str) -> bool:
        """May the call belong to this line? A call without an agent's id can be any agent's that was found without."""
        return new.pooled or line.key == key or (not key and line.key.startswith("agent:"))

    def _is_handed_over(self, new: New, found: Found) -> bool:
        head = self.state.turns[found.mark.turn].head
        return head.digest != new.head.digest and delegator(self.state, new)[0] is not None

    def _begin(self, new: New, key: str, lane: str) -> Turn:
        """Nothing of this call was seen in its scope: a root, a fork of another session, an agent, or an aside."""
        origin, call_name = delegator(self.state, new) if lane == "main" or lane.startswith("agent:") else (None, "")
        evidence: list[str] = []
        if new.hints.agent:
            evidence.append(f"header:agent={new.hints.agent}")
        elif new.hints.parent_session:
            evidence.append(f"header:parent-session={new.hints.parent_session}")
        elif new.hints.session:
            evidence.append(f"header:session={new.hints.session}")
        known = lane == "main" or any(line.key == key for line in self.state.lines.get(new.scope, ()))
        if known and origin is None and not new.hints.request_class and is_aside(self.state, new):
            line = self.state.line(new, "title", "title")
            return make_turn(
                self.state, new, line, Verdict(Kind.SIDE_CALL, 0.7, ("structure:own head, beside another thread",))
            )
        forked = fork(self.state, new)
        if forked is not None:
            parent, match = forked
            front = shared(self.state.turns[parent].node, new.node)
            line = self.state.line(new, key, lane, fresh=True)
            verdict = Verdict(Kind.FORKED, 0.95, (*evidence, f"structure:{front} messages of another thread"))
            return make_turn(self.state, new, line, verdict, parent=parent, match=match)
        if origin is not None:
            evidence.append(f"link:prompt given in tool call {call_name} of turn {origin}")
            if lane == "main":
                lane = f"agent:{new.node.id.hex()[:8]}" if new.node else lane
                session = new.hints.session or self.state.turns[origin].session
                line = self.state.line(new, lane, lane, fresh=True, session=session)
            else:
                line = self.state.line(new, key, lane, fresh=True)
            return make_turn(self.state, new, line, Verdict(Kind.ROOT, 0.95, tuple(evidence)), origin=origin)
        line = self.state.line(new, key, lane, fresh=True)
        turn = make_turn(
            self.state, new, line, Verdict(Kind.ROOT, 0.95 if evidence else 0.8, (*evidence, "structure:nothing kept"))
        )
        revise_asides(self.state, new, line)
        return turn

    def _continue(self, new: New, found: Found) -> Turn:
        line = found.line
        tip = line.tip
        assert tip is not None
        if found.mark is not tip and found.rank in (1, 4) and not new.hints.agent:
            reason = strayed(self.state, new, found)
            if reason.startswith("link:") or (reason and new.pooled):
                split(self.state, line, found.mark, reason)
                tip = found.mark
        if found.mark is not tip:
            found = compare(self.state, new, line, tip)
        before = self.state.turns[found.mark.turn]
        if found.rank == 4 and new.pooled and (tool := handed_back(before, new.messages(found.shared))):
            lane = f"agent:{new.node.id.hex()[:8]}" if new.node else "main"
            line = self.state.line(new, lane, lane, fresh=True, session=line.session)
            said = f"link:prompt given in tool call {tool} of turn {before.index}, its view in front"
            verdict = Verdict(Kind.FORKED, 0.9, (said,))
            return make_turn(
                self.state, new, line, verdict, parent=before.index, match=found.match, origin=before.index
            )
        if found.rank < 2 or (found.rank == 2 and quoted_by(self.state, new, line) is not None):
            return self._edited(new, line)
        return self._grown(new, found)

    def _grown(self, new: New, found: Found) -> Turn:
        """The tip's prefix stands whole in front."""
        before = self.state.turns[found.mark.turn]
        links = links_to(self.state, new, before)
        if found.rank == 4:
            if self.state.waits_since(new.scope, before.index):
                revise_helpers(self.state, new, before, new.messages(found.shared))
            self.state.asked.pop(found.line.name, None)  # the conversation went on without the summary
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
        return make_turn(
            self.state, new, found.line, verdict, parent=before.index, front=found.shared, match=found.match
        )

    def _edited(self, new: New, line: Line) -> Turn:
        quoted = quoted_by(self.state, new, line)
        tip = line.tip
        assert tip is not None
        if quoted is not None and quoted[0] == tip.turn and len(line.marks) > 1:
            line.marks.pop()
            tip = line.marks[-1]
        front = shared(tip.node, new.node)
        before = self.state.turns[tip.turn]
        old, now = tip.messages, new.messages(0)
        edit = diff(old, now, kept=front)
        links = links_to(self.state, new, before)
        asked = self.state.asked.get(line.name)
        if quoted is not None or (not self.state.structural and self._said_summarized(new, asked, front)):
            return self._summarized(new, line, before, edit, quoted, asked, links)
        echo = self.state.reply_at(before, now[front:])
        verdict = judge(
            edit,
            old,
            now,
            echo=None if echo is None else front + echo,
            replied=replied(before),
            slid_before=any(self.state.turns[i].kind is Kind.WINDOW_DROPPED for i in line.members[-8:]),
            unsampled_chars=unsampled(self.state, new, before, edit),
        )
        changed = head_change(before.head, new.head)
        if changed is not None and changed[0] is Kind.MODEL_SWITCHED:
            verdict = Verdict(Kind.MODEL_SWITCHED, 0.8, (changed[1], *verdict.evidence))
        elif before.head.model != new.head.model and verdict.kind in RENDERED:
            said = f"structure:model {before.head.model} -> {new.head.model}, the same told otherwise"
            verdict = Verdict(Kind.MODEL_SWITCHED, 0.7, (said, *verdict.evidence))
        elif verdict.kind is Kind.UNKNOWN and before.wire != new.wire:
            verdict = Verdict(Kind.MODEL_SWITCHED, 0.7, (f"structure:wire {before.wire} -> {new.wire}",))
        return make_turn(
            self.state,
            new,
            line,
            replace(verdict, evidence=(*links, *verdict.evidence)),
            parent=before.index,
            front=front,
            edit=edit,
        )

    def _summary_request(self, new: New, found: Found | None, said: Verdict, key: str, lane: str) -> Turn:
        shares = found is not None and (
            found.rank in (2, 3, 4) or found.shared > 0 or (not new.pooled and found.rank == 1)
        )
        same_tools = found is not None and self.state.turns[found.mark.turn].head.tools == new.head.tools
        if found is not None and shares and (same_tools or found.shared):
            line = found.line
            assert line.tip is not None
            return make_turn(self.state, new, line, said, parent=line.tip.turn)
        owner = found.line if found is not None else self.state.latest_main(new)
        line = self.state.line(new, "summary", "summary", session=owner.session if owner else None)
        turn = make_turn(self.state, new, line, said)
        if owner is not None:
            self.state.asked[owner.name] = turn.index
        return turn

    def _said_summarized(self, new: New, asked: int | None, front: int) -> bool:
        words = wording.is_summarized(new.messages(front, front + 3))
        return bool(new.hints.context_compacted) or asked is not None or bool(words)

    def _summarized(
        self,
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
            revise_request(self.state, quoted[0], line)
            evidence.append(f"structure:quotes {quoted[1].share:.2f} of the reply of turn {quoted[0]}")
            sure = 0.99 if quoted[1].share > 0.5 else 0.9
        elif asked is not None:
            evidence.append(f"link:turn {asked} asked for a summary")
        if not self.state.structural and (words := wording.is_summarized(new.messages(0)[:3])):
            evidence.append(f"wording:{words}")
        self.state.asked.pop(line.name, None)
        verdict = Verdict(Kind.SUMMARIZED, sure, tuple(evidence))
        source = quoted[0] if quoted else asked
        return make_turn(self.state, new, line, verdict, parent=before.index, edit=edit, quotes=source)
