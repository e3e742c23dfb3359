"""What a page is drawn from: tables that only grow, told in pieces, each what the pieces before did not hold.

    blocks    each content once, by hash
    messages  [role, blocks]
    nodes     [parent node, message]: a call's context is the walk from its node to the top
    heads     model, system blocks, tools; each tool once
    turns     one for each call: facts, edit, evidence; told again when a later call sheds new light on it

So a page grows with what is new in a session, not with how often it was sent. `-1` stands for none where a number is
meant; a turn told again takes the place of the one before.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import orjson

from recorder.message import Block, Head, Message, Reply, Tool, block_hash
from treebuilder.diff import Edit, Span
from treebuilder.names import evidence, number
from treebuilder.statistics import row, statistics
from treebuilder.tree import Node, Trajectory, Turn

Json = dict[str, object]
NEWS = 20
"""Statistics, which look at a whole session, are made anew when it has grown by one part in so many. Ours: what they
cost stays a share of what the calls cost."""


def dumps(value: object) -> str:
    """JSON on one line that can stand inside a script element: no `<`, and no line separators of Unicode's."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # half a surrogate pair, as JavaScript harnesses cut text
        text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@dataclass(slots=True)
class Tables:
    """Gives each thing a number when it first appears and keeps it."""

    images: Mapping[str, str] = field(default_factory=dict)
    """Content hash of inline image data -> data URI; what is not here is shown by its hash."""
    _blocks: dict[bytes, int] = field(default_factory=dict)
    _messages: dict[bytes, int] = field(default_factory=dict)
    _nodes: dict[bytes, int] = field(default_factory=dict)
    _heads: dict[tuple[str, bytes], int] = field(default_factory=dict)
    _tools: dict[Tool, int] = field(default_factory=dict)
    _turns: list[tuple[Turn, Json]] = field(default_factory=list)
    _counted: dict[str, int] = field(default_factory=dict)
    """Session -> how many calls its statistics were last made of."""
    _piece: dict[str, list[object]] = field(default_factory=dict)

    def piece(self, trajectory: Trajectory) -> str | None:
        """All that is new since the last piece, as JSON; None = nothing is."""
        self._piece = {name: [] for name in ("blocks", "messages", "nodes", "tools", "heads", "turns", "sessions")}
        touched: dict[str, None] = {}
        for turn in trajectory.turns:
            known = self._turns[turn.index] if turn.index < len(self._turns) else None
            if known is not None and known[0] is turn:
                continue
            told = self._turn(trajectory, turn)
            if known is not None:
                self._turns[turn.index] = turn, told
                if known[1] == told:
                    continue
                touched[known[0].session] = None
            else:
                self._turns.append((turn, told))
            touched[turn.session] = None
            self._piece["turns"].append(told)
        if not touched:
            return None
        calls = Counter(turn.session for turn in trajectory.turns)
        for session in touched:
            if calls[session] * NEWS >= self._counted.get(session, 0) * (NEWS + 1):
                self._piece["sessions"].append(_session(trajectory.only((session,)), session))
                self._counted[session] = calls[session]
        return dumps(self._piece)

    def _turn(self, trajectory: Trajectory, turn: Turn) -> Json:
        call = turn.call
        return {
            "index": turn.index,
            "number": number(turn),
            "source": call.source,
            "at": call.started_at_utc,
            "seconds": call.duration_s,
            "status": call.status,
            "outcome": call.outcome.value,
            "error": call.error or (turn.reply.error if turn.reply else ""),
            "wire": turn.wire,
            "session": turn.session,
            "thread": turn.thread,
            "lane": turn.lane,
            "kind": turn.kind.value,
            "aside": turn.kind.aside,
            "head": self._head(turn.head),
            "node": self._node(turn.node),
            "depth": turn.depth,
            "chars": turn.chars,
            "reply": self._reply(turn.reply),
            "parent": _index(turn.parent),
            "origin": _index(turn.origin),
            "quotes": _index(turn.quotes),
            "prefix": turn.prefix,
            "edit": self._edit(turn.edit),
            "confidence": turn.confidence,
            "evidence": evidence(trajectory, turn),
            "opaque": turn.opaque,
            "echoes": [[e.message, e.count, e.turn, e.exact] for e in turn.echoes],
        }

    def _reply(self, reply: Reply | None) -> Json | None:
        if reply is None:
            return None
        usage = {k: v for k, v in dataclasses.asdict(reply.usage).items() if v is not None}
        return {
            "message": self._message(reply.message),
            "stop": reply.stop_reason,
            "complete": reply.complete,
            "usage": usage,
            "notes": reply.notes,
            "edits": reply.server_edits,
        }

    def _edit(self, edit: Edit | None) -> Json | None:
        """Spans as bare numbers; a hunk is where it stood, what stood there, where it stands, what stands there."""
        if edit is None:
            return None
        return {
            "kept": edit.kept,
            "hunks": [
                [h.old_start, [*map(self._message, h.removed)], h.new_start, [*map(self._message, h.inserted)]]
                for h in edit.hunks
            ],
            "evicted": _spans(edit.evicted),
            "inserted": _spans(edit.inserted),
            "moved": [[*_spans((a,)), *_spans((b,))] for a, b in edit.moved],
            "evicted_chars": edit.evicted_chars,
            "inserted_chars": edit.inserted_chars,
        }

    def _node(self, node: Node | None) -> int:
        missing = []
        while node is not None and node.id not in self._nodes:
            missing.append(node)
            node = node.parent
        at = -1 if node is None else self._nodes[node.id]
        for one in reversed(missing):
            self._piece["nodes"].append([at, self._message(one.message)])
            at = self._nodes[one.id] = len(self._nodes)
        return at

    def _message(self, message: Message) -> int:
        known = self._messages.get(message.digest)
        if known is not None:
            return known
        blocks = [self._block(b, h) for b, h in zip(message.blocks, message.block_hashes, strict=True)]
        self._piece["messages"].append([message.role, blocks])
        return self._messages.setdefault(message.digest, len(self._messages))

    def _block(self, block: Block, hash_: bytes) -> int:
        known = self._blocks.get(hash_)
        if known is not None:
            return known
        self._piece["blocks"].append(self._content(block))
        return self._blocks.setdefault(hash_, len(self._blocks))

    def _content(self, block: Block) -> Json:
        told: Json = {"kind": block.kind, "text": block.text}
        if block.name:
            told["name"] = block.name
        if block.id:
            told["id"] = block.id
        if block.is_error:
            told["error"] = True
        if block.parts:
            told["parts"] = [self._content(part) for part in block.parts]
        if block.kind == "image" and block.text in self.images:
            told["data"] = self.images[block.text]
        return told

    def _head(self, head: Head) -> int:
        key = head.model, head.digest
        if key not in self._heads:
            self._piece["heads"].append(
                {
                    "model": head.model,
                    "system": [self._block(b, block_hash(b)) for b in head.system],
                    "tools": [self._tool(t) for t in head.tools],
                }
            )
            self._heads[key] = len(self._heads)
        return self._heads[key]

    def _tool(self, tool: Tool) -> int:
        if tool not in self._tools:
            self._piece["tools"].append([tool.name, tool.description, tool.schema])
            self._tools[tool] = len(self._tools)
        return self._tools[tool]


def _index(turn: int | None) -> int:
    return -1 if turn is None else turn


def _spans(spans: Iterable[Span]) -> list[list[int]]:
    return [[s.message, s.block, s.start, s.stop] for s in spans]


def _session(trajectory: Trajectory, session: str) -> Json:
    turns = trajectory.turns
    talk = [t for t in turns if not t.kind.aside] or turns
    return {
        "id": session,
        "harness": next((t.hints.harness for t in turns if t.hints.harness), ""),
        "models": list(dict.fromkeys(t.head.model for t in talk if t.head.model)),
        "statistics": row(session, statistics(trajectory)),
    }
