"""The context of every call as a walk: nodes hold only the message they add, turns point at nodes, branches are chains.

    root ── u1 ── a1 ── u2 ── a2 ── u3          branch 0: turns 0, 1, 2
              └── s1 ── a2 ── u3 ── a3          branch 1: turns 3, 4   (turn 3 is `summarized`: u1, a1, u2 became s1)

A turn's live view is the walk from its node to the root, then its reply. A turn that only grew the view of the turn
before it stays on that branch; every edit opens a new one. So each reply belongs to exactly one branch.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from recorder.call import Call
from recorder.message import CallKind, Exchange, Head, Hints, Message, Reply
from treebuilder.diff import Edit
from treebuilder.node import Node as Node


class Kind(StrEnum):
    """What a call did to the context of its thread, compared with the call named by `Turn.parent`."""

    ROOT = "root"
    APPEND = "append"
    RETRY = "retry"
    SUMMARY_REQUEST = "summary_request"
    SUMMARIZED = "summarized"
    CLEARED = "cleared"
    REWOUND = "rewound"
    DELETED = "deleted"
    REMINDER_MOVED = "reminder_moved"
    SYSTEM_CHANGED = "system_changed"
    TOOLS_CHANGED = "tools_changed"
    MODEL_SWITCHED = "model_switched"
    FORKED = "forked"
    SIDE_CALL = "side_call"
    COUNT_TOKENS = "count_tokens"
    WARMUP = "warmup"
    TRUNCATED = "truncated"
    THINKING_DROPPED = "thinking_dropped"
    WINDOW_DROPPED = "window_dropped"
    UNKNOWN = "unknown"

    @property
    def grows(self) -> bool:
        """The view of the compared turn survives whole in front of this one."""
        return self in _GROWS

    @property
    def aside(self) -> bool:
        """Not part of any trajectory: a helper call of the harness."""
        return self in _ASIDE


_GROWS = frozenset({Kind.APPEND, Kind.RETRY, Kind.FORKED, Kind.MODEL_SWITCHED})
_ASIDE = frozenset({Kind.SIDE_CALL, Kind.COUNT_TOKENS, Kind.WARMUP})


@dataclass(frozen=True, slots=True)
class Echo:
    """A message of a prefix that repeats what the model sampled: context there, loss on the sampled form."""

    message: int
    """Index in the prefix of the turn that carries this echo."""
    count: int
    """Messages it takes: one, or one per item where the wire splits a reply (Responses)."""
    turn: int
    """Index of the turn whose reply it repeats."""
    exact: bool
    """False = the harness changed it on the way (defaults added, text trimmed, a part left out)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One call in the tree."""

    index: int
    """Place in `Trajectory.turns`: order of arrival."""
    call: Call
    """Without its bodies."""
    wire: str
    call_kind: CallKind
    head: Head
    node: Node | None
    """The prefix the model was sent, rebuilt where only new items went over the wire; None = no message, or opaque."""
    reply: Reply | None
    hints: Hints
    session: str
    """The harness's own id; `run:...` style names are derived where it says none."""
    thread: str
    lane: str
    """main | agent:ID | title | summary | count | warmup."""
    kind: Kind
    prefix: int
    """Leading messages shared with the compared turn."""
    edit: Edit | None
    """None = nothing to compare with, or an aside."""
    parent: int | None
    """Index of the turn this one was compared with (for forked: in the other thread)."""
    confidence: float
    """0 to 1: how sure the kind is."""
    evidence: tuple[str, ...]
    """Short, strongest first: `header:...`, `link:...`, `structure:...`."""
    opaque: str = ""
    """Why what was sent is not what the model saw (or cannot be known); empty = it is."""
    echoes: tuple[Echo, ...] = ()
    """Echoes among the messages that are new in this turn; `Trajectory.echoes` adds the older ones."""
    origin: int | None = None
    """Index of the turn whose tool call started this agent; None = not an agent's first turn, or not found."""
    quotes: int | None = None
    """Index of the turn whose reply, a summary, this turn's prefix carries; set on the first that does."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The full prefix as the model was sent it."""
        return self.node.walk() if self.node else ()

    @property
    def exchange(self) -> Exchange:
        """The call's meaning with the full prefix in place."""
        return Exchange(self.wire, self.call_kind, self.head, self.messages, self.reply, self.hints)

    @property
    def depth(self) -> int:
        return self.node.depth if self.node else 0

    @property
    def chars(self) -> int:
        """Characters of the prefix, system text and tools not counted."""
        return self.node.chars if self.node else 0


@dataclass(frozen=True, slots=True)
class Thread:
    """One context that grows and is edited: a session's main line, one agent, or one lane of side calls."""

    name: str
    session: str
    lane: str
    turns: tuple[int, ...]
    parent: int | None
    """Turn of another thread that this one started from; None = from nothing."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Turns of which each kept the whole view of the one before; the last view holds all the others."""

    turns: tuple[int, ...]

    @property
    def leaf(self) -> int:
        return self.turns[-1]


@dataclass(frozen=True, slots=True)
class Trajectory:
    turns: tuple[Turn, ...]

    @property
    def threads(self) -> tuple[Thread, ...]:
        """In order of their first call."""
        members: dict[str, list[int]] = {}
        for turn in self.turns:
            members.setdefault(turn.thread, []).append(turn.index)
        found = []
        for name, indices in members.items():
            first = self.turns[indices[0]]
            outside = first.parent is not None and self.turns[first.parent].thread != name
            found.append(Thread(name, first.session, first.lane, tuple(indices), first.parent if outside else None))
        return tuple(found)

    @property
    def sessions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(turn.session for turn in self.turns))

    @property
    def branches(self) -> tuple[Branch, ...]:
        """Every turn that is no aside and could be read stands in exactly one; in order of their first turn."""
        chains: list[list[int]] = []
        open_at: dict[int, list[int]] = {}
        for turn in self.turns:
            if turn.kind.aside or (turn.node is None and turn.reply is None):
                continue
            chain = open_at.pop(turn.parent, None) if turn.parent is not None and self.extends(turn) else None
            if chain is None:
                chain = []
                chains.append(chain)
            chain.append(turn.index)
            open_at[turn.index] = chain
        return tuple(Branch(tuple(chain)) for chain in chains)

    def extends(self, turn: Turn) -> bool:
        """The turn's prefix holds the compared turn's prefix and reply, under the same head, with more behind."""
        if turn.parent is None or turn.kind in (Kind.RETRY, Kind.ROOT):
            return False
        before = self.turns[turn.parent]
        if turn.prefix < before.depth or turn.head.digest != before.head.digest:
            return False
        return before.reply is None or any(e.turn == before.index and e.message == before.depth for e in turn.echoes)

    def echoes(self, turn: Turn) -> tuple[Echo, ...]:
        """Every message of the turn's prefix that repeats a reply, in order."""
        found = {e.message: e for e in turn.echoes}
        limit, at = turn.prefix, turn.parent
        while at is not None and limit > 0:
            before = self.turns[at]
            for echo in before.echoes:
                if echo.message < limit:
                    found.setdefault(echo.message, echo)
            limit, at = min(limit, before.prefix), before.parent
        return tuple(found[i] for i in sorted(found))

    def only(self, sessions: Collection[str]) -> "Trajectory":
        """The turns of some sessions, numbered anew; what they point at in other sessions is left out."""
        kept = [turn for turn in self.turns if turn.session in sessions]
        place = {turn.index: i for i, turn in enumerate(kept)}

        def at(index: int | None) -> int | None:
            return place.get(index) if index is not None else None

        return Trajectory(
            tuple(
                replace(
                    turn,
                    index=i,
                    parent=at(turn.parent),
                    origin=at(turn.origin),
                    quotes=at(turn.quotes),
                    echoes=tuple(replace(e, turn=place[e.turn]) for e in turn.echoes if e.turn in place),
                )
                for i, turn in enumerate(kept)
            )
        )

    def kinds(self) -> Counter[Kind]:
        return Counter(turn.kind for turn in self.turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.turns)
