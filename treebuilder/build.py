"""Calls in, trajectory out; call by call or all at once, the same tree.

Each call is looked for among the lines of its scope (its session, or, without an id, its recording), gets compared with
one earlier turn, and its edit is judged: headers first, links next, structure last. A later call can show what an
earlier one was (its reply is quoted: it asked for the summary; its parent goes on elsewhere: it was a fork): then that
turn is revised. What a call costs follows what is new in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from recorder.call import Call, Outcome
from recorder.message import Exchange, Head, Hints, Message, Reply
from recorder.wire import Opaque, read
from treebuilder import wording
from treebuilder.classify import Verdict, head_change, judge
from treebuilder.diff import Edit, diff
from treebuilder.lineage import ABSENT, Line, Mark, Match, as_messages, delegated, echo_at, path_ids, shared_depth
from treebuilder.quotes import Quote, quote, visible
from treebuilder.tree import Echo, Kind, Node, Trajectory, Turn

NEAR = 8
"""Lines of a scope, the latest first, among which a call that continues none is looked for. Ours."""


def build(calls: Iterable[Call], *, structural: bool = False) -> Trajectory:
    """The tree of some calls, in an order that keeps each thread's own. `structural` uses no header, no id outside
    tool calls and no known wording."""
    builder = Builder(structural=structural)
    for call in calls:
        builder.add(call)
    return builder.trajectory()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call parsed and fingerprinted: what needs the whole prefix is done once, here."""

    call: Call
    exchange: Exchange | Opaque
    ids: list[bytes]
    """Trie id of every prefix of the messages as sent."""


def prepare(call: Call, exchange: Exchange | Opaque | None = None) -> Prepared:
    meaning = read(call) if exchange is None else exchange
    messages = meaning.messages if isinstance(meaning, Exchange) else ()
    return Prepared(replace(call, request_body=b"", response_body=b""), meaning, path_ids(messages))


@dataclass(slots=True)
class _New:
    """The call being placed."""

    index: int
    call: Call
    wire: str
    exchange: Exchange
    ids: list[bytes]
    fresh: tuple[Message, ...]
    """The last messages of the prefix; `len(ids) - len(fresh)` stand before them in the trie."""
    scope: str
    pooled: bool
    """No id says which session: the scope holds many."""
    hints: Hints
    """Empty in structural mode."""
    opaque: str
    base: Mark | None = None
    """What a delta of items was put behind."""

    @property
    def head(self) -> Head:
        return self.exchange.head

    def messages(self, start: int) -> tuple[Message, ...]:
        """The prefix from `start` on; the part before `fresh` is walked only when it is asked for."""
        offset = len(self.ids) - len(self.fresh)
        if start >= offset:
            return self.fresh[start - offset :]
        assert self.base is not None
        assert self.base.node is not None
        return (*self.before()[start:], *self.fresh)

    def before(self) -> tuple[Message, ...]:
        return self._before

    _before: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    line: Line
    mark: Mark
    rank: int
    """4 continues it with its reply, 3 the same prefix again, 2 grows without the reply, 1 keeps some, 0 keeps none."""
    match: Match
    kept: int
    shared: int


class Builder:
    """Grows a trajectory call by call."""

    def __init__(self, *, structural: bool = False) -> None:
        self.structural = structural
        self._turns: list[Turn] = []
        self._nodes: dict[bytes, Node] = {}
        self._owners: dict[bytes, int] = {}
        """Prefix id -> the first turn, no aside, that was sent it."""
        self._lines: dict[str, list[Line]] = {}
        self._line_of: dict[int, Line] = {}
        self._replies: dict[str, int] = {}
        self._said: dict[tuple[str, bytes], int] = {}
        """(scope, digest of an echoed message) -> the turn that sampled it."""
        self._tool_ids: dict[tuple[str, str], int] = {}
        self._unechoed: dict[str, dict[int, None]] = {}
        """Scope -> turns whose reply no later prefix holds in its place."""
        self._asked: dict[str, int] = {}
        """Line name -> its last summary request that nothing quotes yet."""
        self._names: dict[str, int] = {}

    def add(self, call: Call) -> Turn:
        """Parse and place one call; the turn as it looks now."""
        return self.place(prepare(call))

    def trajectory(self) -> Trajectory:
        return Trajectory(tuple(self._turns))

    def place(self, item: Prepared) -> Turn:
        index = len(self._turns)
        if isinstance(item.exchange, Opaque):
            turn = _unread(index, item.call, item.exchange)
            self._turns.append(turn)
            return turn
        new = self._arrive(index, item, item.exchange)
        if new.exchange.kind != "generate":
            turn = self._beside(new, "count" if new.exchange.kind == "count_tokens" else "warmup")
        else:
            turn = self._judge(new)
        self._remember(new, turn)
        return self._turns[index]

    # -- arrival: scope and whole prefix

    def _arrive(self, index: int, item: Prepared, exchange: Exchange) -> _New:
        hints = Hints() if self.structural else exchange.hints
        pool = item.call.run or item.call.source.partition("#")[0]
        scope = f"session:{hints.session}" if hints.session else f"run:{pool}"
        new = _New(
            index, item.call, exchange.wire, exchange, item.ids, exchange.messages, scope, not hints.session, hints, ""
        )
        if exchange.reply and exchange.reply.server_edits:
            new.opaque = "server edited the context: " + ", ".join(exchange.reply.server_edits)
        before = self._delta_of(new)
        if before is None:
            return new
        turn = self._turns[before]
        past = turn.messages + (as_messages(turn.reply, turn.wire) if turn.reply else ())
        base = path_ids(past)
        new._before, new.base = past, Mark(before, base, self._grow(base, past, before))
        new.ids = path_ids(exchange.messages, base=base)
        new.opaque = new.opaque or turn.opaque
        return new

    def _delta_of(self, new: _New) -> int | None:
        """The turn whose prefix and reply stand, unsent, before these items."""
        if new.wire != "openai_responses":
            return None
        if not self.structural:
            previous = new.exchange.hints.previous_id
            if not previous:
                return None
            found = self._replies.get(previous)
            if found is None:
                new.opaque = f"earlier items unknown: expected a recorded reply {previous}, got none"
            return found
        if not new.fresh or new.fresh[0].role != "tool" or not new.fresh[0].blocks:
            return None
        return self._tool_ids.get((new.scope, new.fresh[0].blocks[0].id))

    # -- the trie

    def _grow(self, ids: Sequence[bytes], messages: Sequence[Message], turn: int) -> Node | None:
        """The node of a prefix whose last `len(messages)` messages are given; makes what is missing."""
        known = len(ids)
        lo = len(ids) - len(messages)
        while lo < known:  # prefixes known are shorter than prefixes unknown
            middle = (lo + known) // 2
            if ids[middle] in self._nodes:
                lo = middle + 1
            else:
                known = middle
        node = self._nodes[ids[lo - 1]] if lo else None
        for at in range(lo, len(ids)):
            message = messages[at - len(ids)]
            chars = (node.chars if node else 0) + message.size_chars
            node = Node(node, message, ids[at], at + 1, chars)
            self._nodes[ids[at]] = node
        return node

    # -- judging

    def _beside(self, new: _New, lane: str) -> Turn:
        kind = {"count": Kind.COUNT_TOKENS, "warmup": Kind.WARMUP}.get(lane, Kind.SIDE_CALL)
        evidence = f"wire:{new.exchange.kind}" if kind is not Kind.SIDE_CALL else "structure:beside the conversation"
        line = self._line(new, lane, lane)
        return self._turn(new, line, Verdict(kind, 1.0, (evidence,)))

    def _judge(self, new: _New) -> Turn:
        said = self._by_header(new)
        if said is not None and said.kind is Kind.SIDE_CALL:
            return self._turn(new, self._line(new, "title", "title"), said)
        key, lane = self._key(new)
        lines = [line for line in self._lines.get(new.scope, ()) if new.pooled or line.key == key]
        found = self._find(new, lines)
        if said is not None and said.kind is Kind.SUMMARY_REQUEST:
            return self._summary_request(new, found, said, key, lane)
        if found is None or not self._belongs(new, found):
            quoted = self._summarized_elsewhere(new, lines) or self._most_kept(new, lines, reply_alone=True)
            if quoted is None:
                return self._begin(new, key, lane)
            found = quoted
        return self._continue(new, found)

    def _by_header(self, new: _New) -> Verdict | None:
        """What headers and known wording say about a call that is not simply the next."""
        hints = new.hints
        if hints.compaction or hints.request_class == "compaction":
            return Verdict(Kind.SUMMARY_REQUEST, 1.0, (f"header:x-claude-code-compaction={hints.compaction or 'yes'}",))
        if hints.request_class == "auxiliary":
            return Verdict(Kind.SIDE_CALL, 1.0, ("header:x-claude-code-request-class=auxiliary",))
        if self.structural:
            return None
        words = wording.asks_for_title(new.head, new.fresh)
        if words:
            return Verdict(Kind.SIDE_CALL, 0.95, (f"wording:{words}",))
        words = wording.asks_for_summary(new.head, new.fresh)
        return Verdict(Kind.SUMMARY_REQUEST, 0.95, (f"wording:{words}",)) if words else None

    def _key(self, new: _New) -> tuple[str, str]:
        if new.hints.agent:
            return new.hints.agent, f"agent:{new.hints.agent}"
        if new.hints.parent_session:
            return "", f"agent:{new.hints.session}"
        return "", "main"

    def _find(self, new: _New, lines: Sequence[Line]) -> _Found | None:
        """The turn that this call continues, or else the one of which it keeps most."""
        best: _Found | None = None
        for line in lines:
            for mark in line.marks:
                found = self._compare(new, line, mark)
                if best is None or self._order(new, found) >= self._order(new, best):
                    best = found
        if best is not None and best.rank == 0:
            best = self._most_kept(new, lines) or best
        return best

    def _order(self, new: _New, found: _Found) -> tuple[bool, int, int, bool, int]:
        same_head = self._turns[found.mark.turn].head.digest == new.head.digest
        return found.rank > 1, found.shared, found.rank, same_head, found.mark.turn

    def _compare(self, new: _New, line: Line, mark: Mark) -> _Found:
        shared = shared_depth(mark.ids, new.ids)
        if shared < mark.depth:
            return _Found(line, mark, 0, ABSENT, 0, shared)
        if shared == len(new.ids):
            return _Found(line, mark, 3, ABSENT, shared, shared)
        match = echo_at(self._turns[mark.turn].reply, new.messages(shared)[:64], 0)
        return _Found(line, mark, 4 if match.count else 2, match, shared, shared)

    def _most_kept(self, new: _New, lines: Sequence[Line], *, reply_alone: bool = False) -> _Found | None:
        """Among the latest lines: the mark of whose view most is in the new one, sampled messages at least one.
        `reply_alone`: the reply counts even where nothing of its prefix is left."""
        digests = {m.digest for m in new.messages(0)}
        tools = {b.id for m in new.messages(0) for b in m.blocks if b.kind == "tool_call" and b.id}
        best: _Found | None = None
        recent = sorted(lines, key=lambda line: line.members[-1] if line.members else -1)[-NEAR:]
        for line in recent:
            for mark in line.marks:
                turn = self._turns[mark.turn]
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
                shared = shared_depth(mark.ids, new.ids)
                if best is None or (size, shared, mark.turn) >= (best.kept, best.shared, best.mark.turn):
                    best = _Found(line, mark, 1, ABSENT, size, shared)
        return best

    def _belongs(self, new: _New, found: _Found) -> bool:
        """A session's id ties a call to its line; without one, something sampled must be kept, or a failure retried."""
        first = self._turns[found.line.members[0]]
        if not new.pooled:
            if found.rank or found.shared:
                return True
            before = self._turns[found.mark.turn]
            return before.head.digest == new.head.digest or before.head.tools == new.head.tools != ()
        match found.rank:
            case 4 | 1:
                return True
            case 3:
                return found.shared > first.depth or not _replied(self._turns[found.mark.turn])
            case 2:
                return found.shared > first.depth or not _replied(self._turns[found.mark.turn])
            case _:
                return False

    def _summarized_elsewhere(self, new: _New, lines: Sequence[Line]) -> _Found | None:
        """No word of the history is left but a quoted summary: the line it summarises."""
        hit = self._quoted(new, None)
        if hit is None:
            return None
        asked = self._turns[hit[0]]
        own = self._line_of[asked.index]
        if own.lane == "main" and len(own.members) > 1:
            return self._compare(new, own, own.marks[-1]) if own.marks else None
        best: tuple[float, Line] | None = None
        text = visible(asked.messages)
        for line in lines:
            if line is own or not line.marks or (line.lane not in ("main",) and not line.lane.startswith("agent:")):
                continue
            tip = self._turns[line.marks[-1].turn]
            if tip.head.tools and not new.head.tools:
                continue
            words = "\n".join(m.plain for m in tip.messages if m.role in ("user", "assistant"))
            score = quote(words, text).share + (0.5 if tip.head.digest == new.head.digest else 0.0)
            if score >= 0.5 and (best is None or score >= best[0]):
                best = score, line
        if best is None:
            return None
        found = self._compare(new, best[1], best[1].marks[-1])
        return replace(found, rank=1) if found.rank == 0 else found

    def _begin(self, new: _New, key: str, lane: str) -> Turn:
        """Nothing of this call was seen in its scope: a root, a fork of another session, an agent, or an aside."""
        origin, call_name = self._delegator(new) if lane == "main" or lane.startswith("agent:") else (None, "")
        evidence: list[str] = []
        if new.hints.agent:
            evidence.append(f"header:agent={new.hints.agent}")
        elif new.hints.parent_session:
            evidence.append(f"header:parent-session={new.hints.parent_session}")
        elif new.hints.session:
            evidence.append(f"header:session={new.hints.session}")
        if lane == "main" and self._is_aside(new):
            line = self._line(new, "title", "title")
            return self._turn(
                new, line, Verdict(Kind.SIDE_CALL, 0.7, ("structure:no tools, own head, beside another",))
            )
        fork = self._fork(new)
        if fork is not None:
            parent, shared, match = fork
            line = self._line(new, key, lane, fresh=True)
            verdict = Verdict(Kind.FORKED, 0.95, (*evidence, f"structure:{shared} messages of another thread"))
            return self._turn(new, line, verdict, parent=parent, match=match)
        if origin is not None:
            evidence.append(f"link:prompt given in tool call {call_name} of turn {origin}")
            if lane == "main":
                lane = f"agent:{new.ids[-1].hex()[:8]}" if new.ids else lane
                line = self._line(new, lane, lane, fresh=True, session=self._turns[origin].session)
            else:
                line = self._line(new, key, lane, fresh=True)
            return self._turn(new, line, Verdict(Kind.ROOT, 0.95, tuple(evidence)), origin=origin)
        line = self._line(new, key, lane, fresh=True)
        turn = self._turn(
            new, line, Verdict(Kind.ROOT, 0.95 if evidence else 0.8, (*evidence, "structure:nothing kept"))
        )
        self._revise_asides(new, line)
        return turn

    def _continue(self, new: _New, found: _Found) -> Turn:
        line = found.line
        tip = line.tip
        assert tip is not None
        if found.mark is not tip and found.rank in (1, 4) and new.pooled:
            reason = self._strayed(new, found)
            if reason:
                self._split(line, found.mark, reason)
                tip = found.mark
        if found.rank in (2, 3, 4) and found.mark is tip:
            return self._grown(new, found)
        return self._edited(new, line, found if found.mark is tip else self._compare(new, line, tip))

    def _grown(self, new: _New, found: _Found) -> Turn:
        """The tip's prefix stands whole in front."""
        before = self._turns[found.mark.turn]
        links = self._links(new, before)
        if found.rank == 4:
            self._asked.pop(found.line.name, None)  # the conversation went on without the summary
        changed = head_change(before.head, new.head)
        if changed is None and before.wire != new.wire:
            changed = Kind.MODEL_SWITCHED, f"structure:wire {before.wire} -> {new.wire}"
        if changed is not None:
            verdict = Verdict(changed[0], 0.95, (*links, changed[1]))
        elif found.rank == 3:
            failed = "" if _replied(before) else " after a failed one"
            verdict = Verdict(Kind.RETRY, 0.95 if failed else 0.8, (*links, f"structure:same prefix{failed}"))
        elif found.rank == 4:
            how = "repeated" if found.match.exact else "repeated, changed"
            verdict = Verdict(Kind.APPEND, 0.99, (*links, f"structure:prefix kept, reply {how}"))
        else:
            sure = 0.7 if _replied(before) else 0.9
            verdict = Verdict(Kind.APPEND, sure, (*links, "structure:prefix kept, reply dropped"))
        return self._turn(new, found.line, verdict, parent=before.index, match=found.match)

    def _edited(self, new: _New, line: Line, found: _Found) -> Turn:
        quoted = self._quoted(new, line)
        tip = line.tip
        assert tip is not None
        if quoted is not None and quoted[0] == tip.turn and len(line.marks) > 1:
            line.marks.pop()
            tip = line.marks[-1]
        shared = shared_depth(tip.ids, new.ids)
        before = self._turns[tip.turn]
        old, now = before.messages, new.messages(0)
        edit = diff(old, now, kept=shared)
        links = self._links(new, before)
        asked = self._asked.get(line.name)
        if quoted is not None or (not self.structural and self._said_summarized(new, asked, shared)):
            return self._summarized(new, line, before, edit, quoted, asked, links)
        echoed = self._holds_reply(before, now[shared:])
        verdict = judge(
            edit,
            old,
            now,
            echoed=echoed,
            replied=_replied(before),
            slid_before=any(self._turns[i].kind is Kind.WINDOW_DROPPED for i in line.members[-8:]),
        )
        changed = head_change(before.head, new.head)
        if changed is not None and changed[0] is Kind.MODEL_SWITCHED:
            verdict = Verdict(Kind.MODEL_SWITCHED, 0.8, (changed[1], *verdict.evidence))
        elif verdict.kind is Kind.UNKNOWN and before.wire != new.wire:
            verdict = Verdict(Kind.MODEL_SWITCHED, 0.7, (f"structure:wire {before.wire} -> {new.wire}",))
        return self._turn(
            new, line, replace(verdict, evidence=(*links, *verdict.evidence)), parent=before.index, edit=edit
        )

    # -- summaries

    def _summary_request(self, new: _New, found: _Found | None, said: Verdict, key: str, lane: str) -> Turn:
        shares = found is not None and (
            found.rank in (2, 3, 4) or found.shared > 0 or (not new.pooled and found.rank == 1)
        )
        same_head = found is not None and self._turns[found.mark.turn].head.tools == new.head.tools
        if found is not None and shares and same_head:
            line = found.line
            assert line.tip is not None
            return self._turn(new, line, said, parent=line.tip.turn)
        owner = found.line if found is not None else self._latest_main(new)
        line = self._line(new, "summary", "summary", session=owner.session if owner else None)
        turn = self._turn(new, line, said)
        if owner is not None:
            self._asked[owner.name] = turn.index
        return turn

    def _latest_main(self, new: _New) -> Line | None:
        lines = [x for x in self._lines.get(new.scope, ()) if x.marks and x.lane not in ("title", "summary")]
        return max(lines, key=lambda x: x.members[-1]) if lines else None

    def _said_summarized(self, new: _New, asked: int | None, shared: int) -> bool:
        words = wording.is_summarized(new.messages(shared)[:3])
        return bool(new.hints.context_compacted) or asked is not None or bool(words)

    def _summarized(
        self,
        new: _New,
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
            self._revise_request(quoted[0], line)
            evidence.append(f"structure:quotes {quoted[1].share:.2f} of the reply of turn {quoted[0]}")
            sure = 0.99 if quoted[1].share > 0.5 else 0.9
        elif asked is not None:
            evidence.append(f"link:turn {asked} asked for a summary")
        if not self.structural and (words := wording.is_summarized(new.messages(0)[:3])):
            evidence.append(f"wording:{words}")
        self._asked.pop(line.name, None)
        verdict = Verdict(Kind.SUMMARIZED, sure, tuple(evidence))
        source = quoted[0] if quoted else asked
        return self._turn(new, line, verdict, parent=before.index, edit=edit, quotes=source)

    def _quoted(self, new: _New, line: Line | None) -> tuple[int, Quote] | None:
        """The unechoed reply that the new prefix quotes best: of the same line, or of a call that stands alone."""
        best: tuple[int, Quote] | None = None
        candidates = list(self._unechoed.get(new.scope, ()))[-24:]
        if not candidates:
            return None
        messages = new.messages(0)
        text = ""
        for index in candidates:
            turn = self._turns[index]
            own = self._line_of[index]
            if turn.reply is None or not _replied(turn) or turn.kind in (Kind.COUNT_TOKENS, Kind.WARMUP):
                continue
            if any(b.kind == "tool_call" for b in turn.reply.message.blocks):
                continue
            alone = len(own.members) == 1 or own.lane in ("title", "summary")
            if own is not line and not alone and line is not None:
                continue
            if own is line and self._holds_reply(turn, messages):
                continue  # a kept tail, not a quotation
            said = "\n".join(b.text for b in turn.reply.message.blocks if b.kind == "text")
            if not text:
                text = "\n".join(b.plain for m in messages for b in m.blocks if b.kind == "text")
            how = quote(said, text)
            if how.found and (best is None or how.chars >= best[1].chars):
                best = index, how
        return best

    def _revise_request(self, index: int, line: Line) -> None:
        """The reply of this turn became the summary: so it had asked for it."""
        turn = self._turns[index]
        own = self._line_of[index]
        self._unechoed.get(_scope_of(own), {}).pop(index, None)
        for scope in self._unechoed.values():
            scope.pop(index, None)
        if turn.kind is Kind.SUMMARY_REQUEST:
            return
        own.marks = [m for m in own.marks if m.turn != index]
        lane, thread, session = turn.lane, turn.thread, turn.session
        if own is not line and (len(own.members) == 1 or own.lane == "title"):
            lane, session = "summary", line.session
            thread = _name(session, lane)
        self._turns[index] = replace(
            turn,
            kind=Kind.SUMMARY_REQUEST,
            lane=lane,
            thread=thread,
            session=session,
            confidence=0.95,
            evidence=(*turn.evidence, "structure:a later prefix quotes its reply"),
        )

    # -- asides, agents, forks

    def _is_aside(self, new: _New) -> bool:
        """No tools, a head of its own, where a conversation with tools is under way whose words it repeats."""
        if new.head.tools:
            return False
        words = visible(new.fresh)
        for line in self._lines.get(new.scope, ()):
            if line.tip is None or line.lane == "title":
                continue
            turn = self._turns[line.tip.turn]
            if not turn.head.tools or turn.head.digest == new.head.digest:
                continue
            if not new.pooled or _repeats(turn, words):
                return True
        return False

    def _revise_asides(self, new: _New, line: Line) -> None:
        """A conversation with tools begins: calls without tools just before it that hold its words were asides."""
        if not new.head.tools:
            return
        root = self._turns[-1] if self._turns and self._turns[-1].index == new.index else None
        for other in self._lines.get(new.scope, ())[-NEAR:]:
            if other is line or len(other.members) != 1 or other.lane != "main":
                continue
            turn = self._turns[other.members[0]]
            if turn.kind is not Kind.ROOT or turn.head.tools or new.index - turn.index > NEAR:
                continue
            if not new.pooled or (root is not None and _repeats(root, visible(turn.messages))):
                other.lane, other.key, other.marks = "title", "title", []
                session = line.session
                self._turns[turn.index] = replace(
                    turn,
                    kind=Kind.SIDE_CALL,
                    lane="title",
                    session=session,
                    thread=_name(session, "title"),
                    confidence=0.7,
                    evidence=(*turn.evidence, "structure:no tools, its words begin another thread"),
                )

    def _delegator(self, new: _New) -> tuple[int | None, str]:
        """The turn whose tool call handed over this call's prompt, and the tool's name."""
        prompt = [b for m in new.fresh[:4] if m.role == "user" for b in m.blocks]
        scopes = [new.scope]
        if new.hints.parent_session:
            scopes.append(f"session:{new.hints.parent_session}")
        for scope in scopes:
            for line in reversed(self._lines.get(scope, [])):
                for mark in reversed(line.marks):
                    reply = self._turns[mark.turn].reply
                    for block in reply.message.blocks if reply else ():
                        if block.kind == "tool_call" and delegated(block, prompt):
                            return mark.turn, block.name
        return None, ""

    def _fork(self, new: _New) -> tuple[int, int, Match] | None:
        """Another thread's prefix, with something sampled in it, stands in front: its latest turn, and how much."""
        lo, hi = 0, len(new.ids)
        while lo < hi:
            middle = (lo + hi) // 2
            if new.ids[middle] in self._owners:
                lo = middle + 1
            else:
                hi = middle
        if not lo:
            return None
        owner = self._owners[new.ids[lo - 1]]
        line = self._line_of[owner]
        found = self._find(new, [line])
        if found is None:
            return None
        first = self._turns[line.members[0]]
        if found.rank != 4 and found.shared <= first.depth:
            return None
        tip = line.tip
        if tip is not None and tip is not found.mark and (deeper := shared_depth(tip.ids, new.ids)) > found.shared:
            return tip.turn, deeper, ABSENT
        return found.mark.turn, found.shared, found.match

    def _strayed(self, new: _New, found: _Found) -> str:
        """Why the turns behind `found.mark` were another thread's, not steps that the new call takes back."""
        line, mark = found.line, found.mark
        after = [self._turns[i] for i in line.members if i > mark.turn]
        if not after:
            return ""
        base = self._turns[mark.turn]
        if after[0].head.digest != base.head.digest == new.head.digest:
            return "structure:its head differs, the other thread goes on with the old one"
        last = after[-1]
        if _replied(last) and last.reply is not None:
            report = "\n".join(b.text for b in last.reply.message.blocks if b.kind == "text")
            results = "\n".join(
                b.plain for m in new.messages(found.shared) for b in m.blocks if b.kind == "tool_result"
            )
            if results and quote(report, results).found:
                return "link:a tool result quotes its last reply"
        if _overlap(new.call, last.call):
            return "structure:both were in flight together"
        if after[0].kind in (Kind.REWOUND, Kind.DELETED) and after[0].edit is not None and after[0].edit.evicted:
            kept = {m.digest for m in new.messages(0)}
            if found.rank == 4 or any(m.digest in kept for m in base.messages[after[0].prefix :]):
                return "structure:what it had dropped stands in the other thread's next prefix"
        return ""

    def _split(self, line: Line, mark: Mark, reason: str) -> None:
        """Move the turns behind `mark` to a line of their own: they were a fork."""
        after = [i for i in line.members if i > mark.turn and not self._turns[i].kind.aside]
        moved = Line(line.key, "", "main", "")
        agent = reason.startswith("link:")
        first = self._turns[after[0]]
        tag = (first.node.id.hex() if first.node else "")[:8]
        moved.lane = f"agent:{tag}" if agent else "main"
        moved.session = line.session if agent else self._unique(f"run:{tag}")
        moved.name = _name(moved.session, moved.lane)
        moved.members, moved.marks = after, [m for m in line.marks if m.turn > mark.turn]
        line.members = [i for i in line.members if i not in after]
        line.marks = [m for m in line.marks if m.turn <= mark.turn]
        self._lines[_scope_of(line)].append(moved)
        for i in after:
            self._line_of[i] = moved
            self._turns[i] = replace(self._turns[i], session=moved.session, lane=moved.lane, thread=moved.name)
        self._turns[after[0]] = replace(
            self._turns[after[0]], kind=Kind.FORKED, confidence=0.8, evidence=(*first.evidence, reason)
        )

    # -- lines and turns

    def _line(self, new: _New, key: str, lane: str, *, fresh: bool = False, session: str | None = None) -> Line:
        """The scope's line of that lane, or a new one; without ids every root is a session."""
        lines = self._lines.setdefault(new.scope, [])
        if not fresh:
            for line in lines:
                if line.key == key and line.lane == lane and (session is None or line.session == session):
                    return line
        if session is None:
            session = new.hints.session or self._session(new, lines, lane)
        name = _name(session, lane)
        if any(line.name == name for line in lines):
            name = self._unique(name)
        line = Line(key, session, lane, name)
        line.scope = new.scope
        lines.append(line)
        return line

    def _session(self, new: _New, lines: Sequence[Line], lane: str) -> str:
        if lane not in ("main",) and not lane.startswith("agent:"):
            last = [line for line in lines if line.lane == "main" and line.members]
            if last:
                return max(last, key=lambda line: line.members[-1]).session
        tag = new.ids[-1].hex()[:8] if new.ids else "empty"
        return self._unique(f"run:{tag}")

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0) + 1
        self._names[name] = count
        return name if count == 1 else f"{name}#{count}"

    def _turn(
        self,
        new: _New,
        line: Line,
        verdict: Verdict,
        *,
        parent: int | None = None,
        edit: Edit | None = None,
        match: Match = ABSENT,
        quotes: int | None = None,
        origin: int | None = None,
    ) -> Turn:
        before = self._turns[parent] if parent is not None else None
        shared = 0
        if before is not None:
            old_ids = next((m.ids for m in line.marks if m.turn == parent), None)
            if old_ids is None:
                old_ids = next((m.ids for m in self._line_of[before.index].marks if m.turn == parent), None)
            shared = shared_depth(old_ids if old_ids is not None else path_ids(before.messages), new.ids)
            if edit is None:
                old = before.messages if shared < before.depth else ()
                if shared == before.depth:
                    edit = _growth(before.depth, new.messages(shared))
                else:
                    edit = diff(old, new.messages(0), kept=shared)
        node = self._grow(new.ids, new.fresh, new.index)
        turn = Turn(
            index=new.index,
            call=new.call,
            wire=new.wire,
            call_kind=new.exchange.kind,
            head=new.head,
            node=node,
            reply=new.exchange.reply,
            hints=new.exchange.hints,
            session=line.session,
            thread=line.name,
            lane=line.lane,
            kind=verdict.kind,
            prefix=shared,
            parent=parent,
            edit=edit,
            confidence=verdict.confidence,
            evidence=verdict.evidence,
            opaque=new.opaque,
            echoes=self._echoes(new, before, shared, match) if not verdict.kind.aside else (),
            quotes=quotes,
            origin=origin,
        )
        self._turns.append(turn)
        line.members.append(new.index)
        self._line_of[new.index] = line
        if verdict.kind is Kind.SUMMARY_REQUEST:
            self._asked[line.name] = new.index
        elif not verdict.kind.aside:
            line.push(Mark(new.index, new.ids, node))
        return turn

    def _echoes(self, new: _New, before: Turn | None, shared: int, match: Match) -> tuple[Echo, ...]:
        found: list[Echo] = []
        messages = new.messages(shared)
        at = 0
        if before is not None and match.count and shared == before.depth:
            found.append(Echo(shared, match.count, before.index, match.exact))
            self._unechoed.get(new.scope, {}).pop(before.index, None)
            at = match.count
        for offset in range(at, len(messages)):
            message = messages[offset]
            if message.role != "assistant":
                continue
            turn = self._said.get((new.scope, message.digest))
            exact = turn is not None
            if turn is None:
                ids = [b.id for b in message.blocks if b.kind == "tool_call" and b.id]
                turn = next((self._tool_ids[new.scope, i] for i in ids if (new.scope, i) in self._tool_ids), None)
            if turn is None:
                continue
            self._unechoed.get(new.scope, {}).pop(turn, None)
            last = found[-1] if found else None
            if last is not None and last.turn == turn and last.message + last.count == shared + offset:
                found[-1] = replace(last, count=last.count + 1, exact=last.exact and exact)
            else:
                found.append(Echo(shared + offset, 1, turn, exact))
        return tuple(found)

    def _remember(self, new: _New, turn: Turn) -> None:
        reply = turn.reply
        if turn.kind.aside and turn.kind is not Kind.SIDE_CALL:
            if reply is not None and reply.id:
                self._replies[reply.id] = turn.index
            return
        if not turn.kind.aside:
            for depth in range(max(turn.prefix, 0), len(new.ids)):
                self._owners.setdefault(new.ids[depth], turn.index)
        if reply is None:
            return
        if reply.id:
            self._replies[reply.id] = turn.index
        for block in reply.message.blocks:
            if block.kind == "tool_call" and block.id:
                self._tool_ids[new.scope, block.id] = turn.index
        for message in as_messages(reply, turn.wire):
            self._said[new.scope, message.digest] = turn.index
        self._unechoed.setdefault(new.scope, {})[turn.index] = None

    def _links(self, new: _New, before: Turn) -> tuple[str, ...]:
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

    def _holds_reply(self, before: Turn, messages: Sequence[Message]) -> bool:
        if before.reply is None:
            return False
        return any(echo_at(before.reply, messages, i).count for i, m in enumerate(messages) if m.role == "assistant")


def _growth(depth: int, added: tuple[Message, ...]) -> Edit:
    return diff((), added) if not depth else _shifted(depth, added)


def _shifted(depth: int, added: tuple[Message, ...]) -> Edit:
    from treebuilder.diff import Hunk, Span

    spans = tuple(Span(depth + i, j, 0, len(b.plain)) for i, m in enumerate(added) for j, b in enumerate(m.blocks))
    return Edit(depth, (Hunk(depth, depth, depth, added),) if added else (), (), spans, ())


def _replied(turn: Turn) -> bool:
    """A whole answer came back."""
    reply: Reply | None = turn.reply
    return reply is not None and reply.complete and not reply.error and turn.call.outcome is Outcome.COMPLETE


def _repeats(root: Turn, words: str) -> bool:
    """Do these words hold some user text of that turn?"""
    texts = [b.text for m in root.messages if m.role == "user" for b in m.blocks if b.kind == "text"]
    return any(t.strip() and (t.strip() in words) for t in texts[-6:])


def _overlap(a: Call, b: Call) -> bool:
    if not a.started_at_utc or not b.started_at_utc or b.duration_s is None:
        return False
    return b.started_at_utc <= a.started_at_utc < b.started_at_utc + b.duration_s


def _name(session: str, lane: str) -> str:
    """`8f42102a~70b4/main`: enough of the session's id to tell it by, and the lane."""
    short = session if len(session) <= 16 else f"{session[:8]}~{session[-6:]}"
    return f"{short}/{lane}"


def _scope_of(line: Line) -> str:
    return line.scope


def _unread(index: int, call: Call, why: Opaque) -> Turn:
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
        thread=_name(session, "unread"),
        lane="main",
        kind=Kind.UNKNOWN,
        prefix=0,
        edit=None,
        parent=None,
        confidence=0.0,
        evidence=(),
        opaque=why.reason,
    )
