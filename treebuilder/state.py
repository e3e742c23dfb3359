"""What a builder remembers of the calls it has seen: turns, the trie of their prefixes, and the lines they form."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from recorder.call import Outcome
from recorder.message import Head, Message
from treebuilder.arrival import New
from treebuilder.lineage import NEAR, RECENT, Line, as_messages, echo_at
from treebuilder.node import Node, Trie
from treebuilder.tree import Turn


@dataclass(slots=True)
class State:
    structural: bool
    turns: list[Turn] = field(default_factory=list)
    trie: Trie = field(default_factory=Trie)
    owners: dict[bytes, int] = field(default_factory=dict)
    """Prefix id -> the first turn, no aside, that was sent it."""
    lines: dict[str, list[Line]] = field(default_factory=dict)
    """By scope: a session, or a recording where no id says which session."""
    line_of: dict[int, Line] = field(default_factory=dict)
    replies: dict[str, int] = field(default_factory=dict)
    """The server's id of a reply -> its turn."""
    said: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """(scope, digest of an echoed message) -> the last turn that sampled it; ask `sampler`."""
    unhashed: defaultdict[str, dict[int, None]] = field(default_factory=lambda: defaultdict(dict))
    """Scope -> turns whose reply is not in `said` yet: most are met in their place, and need no search."""
    tool_ids: dict[tuple[str, str], int] = field(default_factory=dict)
    """(scope, id of a tool call) -> the turn that sampled it."""
    unechoed: defaultdict[str, dict[int, None]] = field(default_factory=lambda: defaultdict(dict))
    """Scope -> turns whose reply no later prefix holds in its place."""
    spoken: dict[bytes, str] = field(default_factory=dict)
    """Digest of an assistant message in a prefix -> the first scope without a session's id that held it."""
    taken: dict[tuple[str, bytes], list[int]] = field(default_factory=dict)
    """(line, digest of a prompt) -> its calls with that prompt last, of which the next call held nothing."""
    joined: dict[str, str] = field(default_factory=dict)
    """Scope without a session's id -> the one that it turned out to go on from."""
    asked: dict[str, int] = field(default_factory=dict)
    """Line name -> its last summary request that nothing quotes yet."""
    names: dict[str, int] = field(default_factory=dict)
    heads: dict[tuple[str, bytes], Head] = field(default_factory=dict)
    """Model and digest -> the head kept for all turns that share it: tools are the larger part of most requests."""

    def locate(self, new: New) -> Node | None:
        """The node of a prefix that was sent whole. What it shares with a recent call is not walked message by message:
        a parser gives equal messages as the same objects, and those are compared at once."""
        lines, messages = self.lines.get(new.scope, ()), new.fresh
        count = len(messages)
        for line in reversed(lines):
            for mark in reversed(line.marks):
                sent = mark.sent
                at = len(sent)
                if 0 < at <= count and messages[at - 1] is sent[-1] and at == mark.depth and _begins(sent, messages):
                    new.near = mark.turn
                    return self.trie.grow(mark.node, messages[at:])
        whole = [m for line in lines for m in line.marks if m.node is not None and len(m.sent) == m.node.depth]
        whole.sort(key=lambda mark: mark.turn)
        base: Node | None = None
        for mark in whole[-RECENT:]:
            front = _same_front(mark.sent, messages)
            if mark.node is not None and front > (base.depth if base is not None else 0):
                base = mark.node.ancestor(front)
        return self.trie.grow(base, messages[base.depth if base is not None else 0 :])

    def waits_since(self, scope: str, turn: int) -> bool:
        """One of the latest replies that no prefix holds yet was sampled after that turn."""
        waiting = self.unechoed[scope]
        if len(waiting) == (turn in waiting):
            return False  # as it mostly is
        return any(index > turn for index in islice(reversed(waiting), NEAR))

    def sampler(self, scope: str, message: Message) -> int | None:
        """The last turn of the scope that sampled this very message."""
        waiting = self.unhashed.get(scope)
        if waiting:
            for index in waiting:
                turn = self.turns[index]
                self.note(scope, as_messages(turn.reply, turn.wire) if turn.reply else (), index)
            waiting.clear()
        return self.said.get((scope, message.digest))

    def note(self, scope: str, echo: Sequence[Message], turn: int) -> None:
        for message in echo:
            if self.said.get((scope, message.digest), -1) < turn:
                self.said[scope, message.digest] = turn

    def line(self, new: New, key: str, lane: str, *, fresh: bool = False, session: str | None = None) -> Line:
        """The scope's line of that lane, or a new one; without ids every root is a session."""
        lines = self.lines.setdefault(new.scope, [])
        if not fresh:
            for line in lines:
                if line.key == key and line.lane == lane and (session is None or line.session == session):
                    return line
        if session is None:
            session = new.hints.session or self.session(new, lines, lane)
        name = short_name(session, lane)
        if any(line.name == name for line in lines):
            name = self.unique(name)
        line = Line(key, session, lane, name)
        line.scope = new.scope
        lines.append(line)
        return line

    def session(self, new: New, lines: Sequence[Line], lane: str) -> str:
        if lane not in ("main",) and not lane.startswith("agent:"):
            last = [line for line in lines if line.lane == "main" and line.members]
            if last:
                return max(last, key=lambda line: line.members[-1]).session
        tag = new.node.id.hex()[:8] if new.node else "empty"
        return self.unique(f"run:{tag}")

    def unique(self, name: str) -> str:
        count = self.names.get(name, 0) + 1
        self.names[name] = count
        return name if count == 1 else f"{name}#{count}"

    def latest_main(self, new: New) -> Line | None:
        lines = [x for x in self.lines.get(new.scope, ()) if x.marks and x.lane not in ("title", "summary")]
        return max(lines, key=lambda x: x.members[-1]) if lines else None

    def reply_at(self, turn: Turn, messages: Sequence[Message]) -> int | None:
        """Index of the first message that repeats the turn's reply."""
        if turn.reply is None:
            return None
        said = (i for i, m in enumerate(messages) if m.role == "assistant")
        return next((i for i in said if echo_at(turn.reply, messages, i).count), None)


def _begins(start: tuple[Message, ...], messages: tuple[Message, ...]) -> bool:
    """`messages[:len(start)] == start`, without a copy of 8 bytes a message: tuples look for the first item that
    differs before they ask for an order, which messages have not."""
    try:
        return start <= messages
    except TypeError:
        return False


def _same_front(a: tuple[Message, ...], b: tuple[Message, ...]) -> int:
    """Leading equal messages, by halving: runs of the same objects are compared at C speed."""
    lo, hi = 0, min(len(a), len(b))
    if not hi or a[0] != b[0]:
        return 0
    while lo < hi:
        middle = (lo + hi + 1) // 2
        if a[lo:middle] == b[lo:middle]:
            lo = middle
        else:
            hi = middle - 1
    return lo


def replied(turn: Turn) -> bool:
    """A whole answer came back."""
    reply = turn.reply
    return reply is not None and reply.complete and not reply.error and turn.call.outcome is Outcome.COMPLETE


def short_name(session: str, lane: str) -> str:
    """`8f42102a~70b4/main`: enough of the session's id to tell it by, and the lane."""
    short = session if len(session) <= 16 else f"{session[:8]}~{session[-6:]}"
    return f"{short}/{lane}"
