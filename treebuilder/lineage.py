"""Whose call is it? By what a prefix repeats: the view of an earlier call whole, its reply, its tool calls, its words.

A call that holds an earlier call's prefix and, right behind it, that call's reply, continues it. Everything else is a
matter of how much of which view it keeps. Headers only narrow down among whom to look.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from recorder import canonical
from recorder.message import Block, Message, Reply
from treebuilder.node import Node
from treebuilder.quotes import MIN_LINE

NEAR = 8
"""Lines of a scope, the latest first, among which a call that continues none is looked for. Ours."""
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
    sampled = reply.message.blocks
    if not sampled:
        return ABSENT
    run = messages[at].blocks
    stop = at + 1
    while len(run) < len(sampled) and stop < len(messages) and messages[stop].role == "assistant":
        run += messages[stop].blocks
        stop += 1
    if _is_echo(sampled, run):
        return Match(stop - at, True)
    return Match(stop - at, False) if _resembles([canonical.echo(b) for b in sampled], run) else ABSENT


def _is_echo(sampled: Sequence[Block], run: Sequence[Block]) -> bool:
    """Is each block `canonical.echo` of the sampled one? Told without making it."""
    if len(sampled) != len(run):
        return False
    for a, b in zip(sampled, run, strict=True):
        if a.kind != "tool_call":
            if a != b:
                return False
        elif (a.kind, a.id, a.name) != (b.kind, b.id, b.name) or canonical.arguments(a.text) != b.text:
            return False
    return True


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
    return (
        bool(said)
        and bool(echoed)
        and (said.startswith(echoed[:200]) or echoed.startswith(said[:200]) or echoed.endswith(said[-200:]))
    )


def as_messages(reply: Reply, wire: str) -> tuple[Message, ...]:
    """A reply as the messages a client would send back: one per item in Responses, one in all elsewhere."""
    blocks = tuple(canonical.echo(b) for b in reply.message.blocks)
    if wire == "openai_responses":
        return tuple(Message("assistant", (b,)) for b in blocks)
    return (Message("assistant", blocks),) if blocks else ()


@dataclass(slots=True, eq=False)
class Mark:
    """A turn that later calls may continue."""

    turn: int
    node: Node | None
    depth: int
    sent: tuple[Message, ...]
    """The messages that went over the wire: the whole prefix, or the last of it."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole prefix."""
        return self.node.walk() if self.node is not None and len(self.sent) < self.depth else self.sent


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
