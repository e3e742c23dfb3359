"""Calls in, trajectory out; call by call or all at once, the same tree.

Each call is looked for among the lines of its scope (its session, or, without an id, its recording), gets compared with
one earlier turn, and its edit is judged: headers first, links next, structure last. A later call can show what an
earlier one was (its reply is quoted: it asked for the summary; its parent goes on elsewhere: it was a fork): then that
turn is revised. What a call costs follows what is new in it.
"""

from collections.abc import Iterable
from dataclasses import replace

from recorder.call import Call
from recorder.message import Exchange, Hints
from recorder.wire import Opaque
from treebuilder.arrival import New, Prepared, prepare
from treebuilder.beginnings import begin
from treebuilder.classify import Verdict
from treebuilder.forks import heard, joined
from treebuilder.headers import compacts, key_and_lane, said_outright
from treebuilder.hindsight import promote, summarized_elsewhere
from treebuilder.lineage import Line, as_messages
from treebuilder.search import Found, belongs, delegator, find, most_kept
from treebuilder.state import State
from treebuilder.steps import go_on
from treebuilder.summaries import requested
from treebuilder.tree import Kind, Trajectory, Turn
from treebuilder.turns import make_turn, remember, unread

UNRECORDED = "earlier items unknown"


def build(calls: Iterable[Call], *, structural: bool = False) -> Trajectory:
    """The tree of some calls, in an order that keeps each thread's own. `structural` uses no header, no id outside
    tool calls and no known wording."""
    builder = Builder(structural=structural)
    for call in calls:
        builder.add(call)
    return builder.trajectory()


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
            new.node = self.state.locate(new)
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
                new.opaque = f"{UNRECORDED}: expected a recorded reply {previous}, got none"
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
        key, lane = key_and_lane(new.hints)
        every = self.state.lines.get(new.scope, ())
        if new.opaque.startswith(UNRECORDED) and new.depth == len(new.fresh):
            mine = next((line for line in every if line.key == key and line.lane == lane), None)
            if mine is not None:
                why = ("wire:items behind a reply that was not recorded",)
                return make_turn(self.state, new, mine, Verdict(Kind.UNKNOWN, 0.3, why))
        said = said_outright(new, structural=self.state.structural)
        if said is not None and said.kind is Kind.SIDE_CALL:
            return make_turn(self.state, new, self.state.line(new, "title", "title"), said)
        lines = [line for line in every if line.lane != "title" and self._open_to(new, line, key)]
        found = find(self.state, new, lines)
        if found is not None and found.rank == 0 and not key and self._is_handed_over(new, found):
            found = None  # an agent whose harness gives it no id of its own
        if said is not None and said.kind is Kind.SUMMARY_REQUEST:
            if found is None and joined(self.state, new):
                return self._judge(new)
            return requested(self.state, new, found, said, key, lane)
        if found is None or not belongs(self.state, new, found):
            quoted = summarized_elsewhere(self.state, new, lines) or most_kept(self.state, new, lines, reply_alone=True)
            if quoted is None:
                aside = find(self.state, new, [line for line in every if line.lane == "title"])
                if aside is None or aside.rank != 4:
                    return self._judge(new) if joined(self.state, new) else begin(self.state, new, key, lane)
                quoted = replace(aside, line=promote(self.state, aside.line, aside.mark.turn))
            found = quoted
        return go_on(self.state, new, found)

    def _open_to(self, new: New, line: Line, key: str) -> bool:
        """May the call belong to this line? A call without an agent's id can be any agent's that was found without."""
        return new.pooled or line.key == key or (not key and line.key.startswith("agent:"))

    def _is_handed_over(self, new: New, found: Found) -> bool:
        head = self.state.turns[found.mark.turn].head
        return head.digest != new.head.digest and delegator(self.state, new)[0] is not None
