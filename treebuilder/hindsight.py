"""What a later call shows about an earlier one: it asked for a summary, it was an aside, it was another thread."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from recorder.message import Message
from treebuilder.arrival import New
from treebuilder.diff import Edit
from treebuilder.lineage import NEAR, Line, Mark
from treebuilder.node import shared
from treebuilder.quotes import MIN_CHARS, MIN_LINE, NOTHING, Quote, quote, visible
from treebuilder.search import Found, compare, near
from treebuilder.state import State, replied, short_name
from treebuilder.tree import Kind, Turn


def quoted_by(state: State, new: New, line: Line | None) -> tuple[int, Quote] | None:
    """The unechoed reply that the new prefix quotes best: of the same line, or of a call that stands alone."""
    best: tuple[int, Quote] | None = None
    waiting = state.unechoed.get(new.scope, {})
    candidates = dict.fromkeys(list(waiting)[-24:])
    if line is not None:  # other threads may have said much since
        asked = state.asked.get(line.name)
        candidates |= dict.fromkeys(i for i in (*line.members[-16:], asked) if i is not None and i in waiting)
    else:
        last = (i for other in near(state.lines.get(new.scope, ())) for i in other.members[-4:])
        candidates |= dict.fromkeys(i for i in last if i in waiting)
    if not candidates:
        return None
    messages = new.messages(0)
    text = ""
    for index in candidates:
        turn = state.turns[index]
        own = state.line_of[index]
        if turn.reply is None or not replied(turn) or turn.kind in (Kind.COUNT_TOKENS, Kind.WARMUP):
            continue
        if any(b.kind == "tool_call" for b in turn.reply.message.blocks):
            continue
        alone = len(own.members) == 1 or own.lane in ("title", "summary")
        if own is not line and not alone and line is not None:
            continue
        said = "\n".join(b.text for b in turn.reply.message.blocks if b.kind == "text")
        if said and own is line and state.reply_at(turn, new.messages(shared(turn.node, new.node))) is not None:
            continue  # a kept tail, not a quotation
        if not text:
            text = "\n".join(b.plain for m in messages for b in m.blocks if b.kind == "text")
        how = quote(said, text) if said else _item(turn.reply.message, messages)
        if how.found and (best is None or how.chars >= best[1].chars):
            best = index, how
    return best


def _item(reply: Message, messages: Sequence[Message]) -> Quote:
    """A summary that the server made is an item of its own, carried on as it is."""
    made = [b for b in reply.blocks if b.kind == "other"]
    found = bool(made) and any(b == made[-1] for m in messages for b in m.blocks)
    return Quote(max(made[-1].size_chars, MIN_CHARS), 1.0) if found else NOTHING


def unsampled(state: State, new: New, before: Turn, edit: Edit) -> int:
    """Characters of text that the edit brings in the model's name, and that no reply of its scope had."""
    known: list[str] = []
    count = 0
    for message in (m for hunk in edit.hunks for m in hunk.inserted if m.role == "assistant"):
        if state.sampler(new.scope, message) is not None or any(
            (new.scope, b.id) in state.tool_ids for b in message.blocks if b.kind == "tool_call" and b.id
        ):
            continue
        known = known or _spoken(before)
        count += sum(_rest(b.text, known) for b in message.blocks if b.kind == "text")
    return count


def _spoken(turn: Turn) -> list[str]:
    """What the model is known to have said or thought, the longest first."""
    said = [*turn.messages, *([turn.reply.message] if turn.reply else [])]
    texts = {b.text.strip() for m in said if m.role == "assistant" for b in m.blocks if b.kind in ("text", "thinking")}
    return sorted((t for t in texts if t), key=len, reverse=True)


def _rest(text: str, known: Sequence[str]) -> int:
    """Characters left of a text without what is known, which may be cut, trimmed, or run together in it."""
    for said in known:
        if text.strip() in said:
            return 0
        if len(said) >= MIN_LINE or said == text.strip():
            text = text.replace(said, "")
    return len(text.strip())


def summarized_elsewhere(state: State, new: New, lines: Sequence[Line]) -> Found | None:
    """No word of the history is left but a quoted summary: the line it summarises."""
    hit = quoted_by(state, new, None)
    if hit is None:
        return None
    asked = state.turns[hit[0]]
    own = state.line_of[asked.index]
    if own.lane not in ("title", "summary") and len(own.members) > 1:
        if asked.head.tools and not new.head.tools:
            return None  # it tells of the thread; it is not its next view
        return compare(state, new, own, own.marks[-1]) if own.marks else None
    best: tuple[float, Line] | None = None
    text = visible(asked.messages)
    for line in lines:
        if line is own or not line.marks or (line.lane not in ("main",) and not line.lane.startswith("agent:")):
            continue
        tip = state.turns[line.marks[-1].turn]
        if tip.head.tools and not new.head.tools:
            continue
        words = "\n".join(m.plain for m in tip.messages if m.role in ("user", "assistant"))
        score = quote(words, text).share + (0.5 if tip.head.digest == new.head.digest else 0.0)
        if score >= 0.5 and (best is None or score >= best[0]):
            best = score, line
    if best is None:
        return None
    found = compare(state, new, best[1], best[1].marks[-1])
    return replace(found, rank=1) if found.rank == 0 else found


def revise_request(state: State, index: int, line: Line) -> None:
    """The reply of this turn became the summary: so it had asked for it."""
    turn = state.turns[index]
    own = state.line_of[index]
    state.unechoed.get(own.scope, {}).pop(index, None)
    for scope in state.unechoed.values():
        scope.pop(index, None)
    if turn.kind is Kind.SUMMARY_REQUEST:
        return
    own.marks = [m for m in own.marks if m.turn != index]
    lane, thread, session = turn.lane, turn.thread, turn.session
    if own is not line and (len(own.members) == 1 or own.lane == "title"):
        asked = next((state.turns[i] for i in reversed(line.members) if i < index), None)
        if asked is not None and turn.prefix and asked.head.digest == turn.head.digest:
            lane, thread, session = line.lane, line.name, line.session
            own.members.remove(index)
            line.members = sorted((*line.members, index))
            state.line_of[index] = line
        else:
            lane, session = "summary", line.session
            thread = short_name(session, lane)
    state.turns[index] = replace(
        turn,
        kind=Kind.SUMMARY_REQUEST,
        lane=lane,
        thread=thread,
        session=session,
        confidence=0.95,
        evidence=(*turn.evidence, "structure:a later prefix quotes its reply"),
    )


def is_aside(state: State, new: New) -> bool:
    """A head of its own beside a conversation with tools; without an id that says so, no tools and the same words."""
    if new.head.tools and new.pooled:
        return False
    words = visible(new.fresh)
    for line in state.lines.get(new.scope, ()):
        if line.tip is None or line.lane == "title" or (line.key and not new.hints.agent and not new.pooled):
            continue  # beside an agent with an id of its own stands the main thread
        turn = state.turns[line.tip.turn]
        if not turn.head.tools or turn.head.digest == new.head.digest:
            continue
        if not new.pooled or repeats(turn, words):
            return True
    return False


def revise_asides(state: State, new: New, line: Line) -> None:
    """A conversation with tools begins: calls without tools just before it that hold its words were asides."""
    if not new.head.tools:
        return
    root = state.turns[-1] if state.turns and state.turns[-1].index == new.index else None
    for other in state.lines.get(new.scope, ())[-4 * NEAR :]:
        if other is line or len(other.members) != 1 or other.lane != "main":
            continue
        turn = state.turns[other.members[0]]
        if turn.kind is not Kind.ROOT or turn.head.tools:
            continue
        if not new.pooled or (root is not None and repeats(root, visible(turn.messages))):
            other.lane = other.key = "title"
            session = line.session
            state.turns[turn.index] = replace(
                turn,
                kind=Kind.SIDE_CALL,
                lane="title",
                session=session,
                thread=short_name(session, "title"),
                confidence=0.7,
                evidence=(*turn.evidence, "structure:no tools, its words begin another thread"),
            )


def revise_helpers(state: State, new: New, before: Turn, added: Sequence[Message]) -> None:
    """A tool result repeats the last reply of a thread that began after the call: the tool had started it."""
    results = "\n".join(b.plain for m in added for b in m.blocks if b.kind == "tool_result")
    if not results:
        return
    since = (i for i in islice(reversed(state.unechoed.get(new.scope, {})), 8 * NEAR) if i > before.index)
    for index in sorted(since):
        own, last = state.line_of[index], state.turns[index]
        if last.reply is None or own.lane != "main" or own.members[0] <= before.index or own.members[-1] != index:
            continue
        report = "\n".join(b.text for b in last.reply.message.blocks if b.kind == "text")
        first = state.turns[own.members[0]]
        if first.kind is not Kind.ROOT or not quote(report, results).found:
            continue
        line = state.line_of[before.index]
        helper = len(own.members) == 1 and not last.head.tools
        tag = first.node.id.hex()[:8] if first.node else ""
        own.lane = own.key = "title" if helper else f"agent:{tag}"
        own.session = line.session
        own.name = short_name(own.session, own.lane)
        for i in own.members:
            state.turns[i] = replace(state.turns[i], session=own.session, lane=own.lane, thread=own.name)
        said = (*first.evidence, f"link:a tool result in turn {new.index} quotes its last reply")
        first = replace(state.turns[first.index], origin=before.index, confidence=0.9, evidence=said)
        state.turns[first.index] = replace(first, kind=Kind.SIDE_CALL) if helper else first


def promote(state: State, line: Line, index: int) -> Line:
    """A call taken for an aside goes on: it was the first of an agent's thread."""
    turn = state.turns[index]
    tag = turn.node.id.hex()[:8] if turn.node else ""
    made = Line(line.key, line.session, f"agent:{tag}", "", scope=line.scope, members=[index])
    made.key, made.name = made.lane, short_name(made.session, made.lane)
    made.marks = [m for m in line.marks if m.turn == index]
    line.members.remove(index)
    line.marks = [m for m in line.marks if m.turn != index]
    state.lines[line.scope].append(made)
    state.line_of[index] = made
    state.turns[index] = replace(
        turn,
        kind=Kind.ROOT,
        lane=made.lane,
        thread=made.name,
        confidence=0.7,
        evidence=(*turn.evidence, "structure:a later call goes on from it"),
    )
    return made


def split(state: State, line: Line, mark: Mark, reason: str) -> None:
    """Move the turns behind `mark` to a line of their own: they were a fork."""
    after = [i for i in line.members if i > mark.turn and not state.turns[i].kind.aside]
    moved = Line(line.key, "", "main", "")
    agent = reason.startswith("link:")
    first = state.turns[after[0]]
    tag = (first.node.id.hex() if first.node else "")[:8]
    moved.lane = f"agent:{tag}" if agent else "main"
    moved.session = line.session if agent else state.unique(f"run:{tag}")
    moved.name = short_name(moved.session, moved.lane)
    moved.members, moved.marks = after, [m for m in line.marks if m.turn > mark.turn]
    line.members = [i for i in line.members if i not in after]
    line.marks = [m for m in line.marks if m.turn <= mark.turn]
    state.lines[line.scope].append(moved)
    for i in after:
        state.line_of[i] = moved
        state.turns[i] = replace(state.turns[i], session=moved.session, lane=moved.lane, thread=moved.name)
    state.turns[after[0]] = replace(
        state.turns[after[0]], kind=Kind.FORKED, confidence=0.8, evidence=(*first.evidence, reason)
    )


def repeats(root: Turn, words: str) -> bool:
    """Do these words hold some user text of that turn?"""
    texts = [b.text for m in root.messages if m.role == "user" for b in m.blocks if b.kind == "text"]
    return any(t.strip() and (t.strip() in words) for t in texts[-6:])
