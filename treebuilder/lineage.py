"""Whose call is it? By what a prefix repeats: the view of an earlier call whole, its reply, its tool calls, its words.

A call that holds an earlier call's prefix and, right behind it, that call's reply, continues it. Everything else is a
matter of how much of which view it keeps. Headers only narrow down among whom to look.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from recorder import canonical
from recorder.message import Block, Message, Reply, block_hash, prefix_hash
from treebuilder.quotes import MIN_LINE
from treebuilder.tree import Node

_ID = 16
"""Bytes of an id."""
RECENT = 6
"""Turns of a line that a call is compared with besides the one it continues. Ours: parallel calls are fewer."""


@dataclass(frozen=True, slots=True)
class Match:
    """A reply found again as messages of a prefix."""

    count: int
    """Messages taken; 0 = not found."""
    exact: bool


ABSENT = Match(0, False)


def echo_at(reply: Reply | None, messages: Sequence[Message], at: int) -> Match:
    """Does the reply stand at `messages[at:]`? By equal content, else by tool id, else by text that starts alike."""
    if reply is None or at >= len(messages) or messages[at].role != "assistant":
        return ABSENT
    sampled = [canonical.echo(b) for b in reply.message.blocks]
    if not sampled:
        return ABSENT
    wanted = [block_hash(b) for b in sampled]
    got: list[bytes] = []
    stop = at
    while stop < len(messages) and messages[stop].role == "assistant" and len(got) < len(wanted):
        got.extend(messages[stop].block_hashes)
        stop += 1
    if got == wanted:
        return Match(stop - at, True)
    run = [b for m in messages[at:stop] for b in m.blocks]
    return Match(stop - at, False) if _resembles(sampled, run) else ABSENT


def _resembles(sampled: Sequence[Block], run: Sequence[Block]) -> bool:
    ids = {b.id for b in sampled if b.kind == "tool_call" and b.id}
    made = [b for b in run if b.kind == "tool_call"]
    if ids and made:
        return bool(ids & {b.id for b in made})
    calls = [(b.name, b.text) for b in sampled if b.kind == "tool_call"]
    if calls and calls == [(b.name, b.text) for b in run if b.kind == "tool_call"]:
        return True
    said = "".join(b.text for b in sampled if b.kind == "text").strip()
    echoed = "".join(b.text for b in run if b.kind == "text").strip()
    return bool(said) and bool(echoed) and (said.startswith(echoed[:200]) or echoed.startswith(said[:200]))


def as_messages(reply: Reply, wire: str) -> tuple[Message, ...]:
    """A reply as the messages a client would send back: one per item in Responses, one in all elsewhere."""
    blocks = tuple(canonical.echo(b) for b in reply.message.blocks)
    if wire == "openai_responses":
        return tuple(Message("assistant", (b,)) for b in blocks)
    return (Message("assistant", blocks),) if blocks else ()


class Path:
    """Trie ids of every prefix of some messages, shortest first; 16 bytes each in one piece of memory."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    @classmethod
    def of(cls, messages: Sequence[Message], *, base: "Path | None" = None) -> "Path":
        """`base` = the path of what stands before."""
        parent = base[len(base) - 1] if base else b""
        found = [base._data] if base else []
        for message in messages:
            parent = prefix_hash(parent, message.digest)
            found.append(parent)
        return cls(b"".join(found))

    def __len__(self) -> int:
        return len(self._data) // _ID

    def __getitem__(self, at: int) -> bytes:
        """Id of the first `at + 1` messages."""
        return self._data[at * _ID : (at + 1) * _ID]

    @property
    def last(self) -> bytes:
        return self._data[-_ID:]


def shared_depth(a: Path, b: Path) -> int:
    """Messages two prefixes share at the front; equal ids mean equal prefixes, so halving finds the border."""
    lo, hi = 0, min(len(a), len(b))
    if hi and a[hi - 1] == b[hi - 1]:
        return hi
    while lo < hi:
        middle = (lo + hi + 1) // 2
        if a[middle - 1] == b[middle - 1]:
            lo = middle
        else:
            hi = middle - 1
    return lo


@dataclass(frozen=True, slots=True)
class Mark:
    """A turn that later calls may continue."""

    turn: int
    ids: Path
    node: Node | None

    @property
    def depth(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class Line:
    """A thread in the making."""

    key: str
    session: str
    lane: str
    name: str
    marks: list[Mark] = field(default_factory=list)
    """The newest last, at most `RECENT`; summary requests and asides are not among them."""
    scope: str = ""
    members: list[int] = field(default_factory=list)
    """Every turn."""

    @property
    def tip(self) -> Mark | None:
        return self.marks[-1] if self.marks else None

    def push(self, mark: Mark) -> None:
        self.marks.append(mark)
        if len(self.marks) > RECENT:
            del self.marks[0]


_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def delegated(call: Block, prompt: Sequence[Block]) -> bool:
    """Was this prompt handed over in the arguments of that tool call?"""
    texts = [b.text.strip() for b in prompt if b.kind == "text" and b.text.strip()]
    given = set()
    for raw in _STRING.findall(call.text):
        try:
            value = orjson.loads(f'"{raw}"')
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, str) and len(value.strip()) >= MIN_LINE:
            given.add(value.strip())
    return any(text in given for text in texts) or any(len(g) >= 2 * MIN_LINE and g in t for g in given for t in texts)
