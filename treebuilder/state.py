"""What a builder remembers of the calls it has seen: turns, the trie of their prefixes, and the lines they form."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from recorder.call import Outcome
from recorder.message import Head, Message
from treebuilder.arrival import New
from treebuilder.lineage import Line, Path, echo_at
from treebuilder.tree import Node, Turn


@dataclass(slots=True)
class State:
    structural: bool
    turns: list[Turn] = field(default_factory=list)
    nodes: dict[bytes, Node] = field(default_factory=dict)
    owners: dict[bytes, int] = field(default_factory=dict)
    """Prefix id -> the first turn, no aside, that was sent it."""
    lines: dict[str, list[Line]] = field(default_factory=dict)
    """By scope: a session, or a recording where no id says which session."""
    line_of: dict[int, Line] = field(default_factory=dict)
    replies: dict[str, int] = field(default_factory=dict)
    """The server's id of a reply -> its turn."""
    said: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """(scope, digest of an echoed message) -> the turn that sampled it."""
    tool_ids: dict[tuple[str, str], int] = field(default_factory=dict)
    """(scope, id of a tool call) -> the turn that sampled it."""
    unechoed: dict[str, dict[int, None]] = field(default_factory=dict)
    """Scope -> turns whose reply no later prefix holds in its place."""
    asked: dict[str, int] = field(default_factory=dict)
    """Line name -> its last summary request that nothing quotes yet."""
    names: dict[str, int] = field(default_factory=dict)
    heads: dict[tuple[str, bytes], Head] = field(default_factory=dict)
    """Model and digest -> the head kept for all turns that share it: tools are the larger part of most requests."""

    def grow(self, ids: Path, messages: Sequence[Message]) -> Node | None:
        """The node of a prefix whose last `len(messages)` messages are given; makes what is missing."""
        known = len(ids)
        lo = len(ids) - len(messages)
        while lo < known:  # prefixes known are shorter than prefixes unknown
            middle = (lo + known) // 2
            if ids[middle] in self.nodes:
                lo = middle + 1
            else:
                known = middle
        node = self.nodes[ids[lo - 1]] if lo else None
        for at in range(lo, len(ids)):
            message = messages[at - len(ids)]
            chars = (node.chars if node else 0) + message.size_chars
            node = Node(node, message, ids[at], at + 1, chars)
            self.nodes[ids[at]] = node
        return node

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
        tag = new.ids.last.hex()[:8] if new.ids else "empty"
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


def replied(turn: Turn) -> bool:
    """A whole answer came back."""
    reply = turn.reply
    return reply is not None and reply.complete and not reply.error and turn.call.outcome is Outcome.COMPLETE


def short_name(session: str, lane: str) -> str:
    """`8f42102a~70b4/main`: enough of the session's id to tell it by, and the lane."""
    short = session if len(session) <= 16 else f"{session[:8]}~{session[-6:]}"
    return f"{short}/{lane}"
