"""A call on its way into the tree: parsed, its scope known, its prefix found in the trie."""

from dataclasses import dataclass, replace

from recorder.call import Call
from recorder.message import Exchange, Head, Hints, Message
from recorder.wire import Opaque, read
from treebuilder.node import Node


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call parsed."""

    call: Call
    """Without its bodies."""
    exchange: Exchange | Opaque


def prepare(call: Call, exchange: Exchange | Opaque | None = None) -> Prepared:
    meaning = read(call) if exchange is None else exchange
    return Prepared(replace(call, request_body=b"", response_body=b""), meaning)


@dataclass(slots=True, eq=False)
class New:
    """The call being placed."""

    index: int
    call: Call
    exchange: Exchange
    scope: str
    pooled: bool
    """No id says which session: the scope holds many."""
    hints: Hints
    """Empty in structural mode."""
    opaque: str = ""
    node: Node | None = None
    """The whole prefix; None = no message."""
    near: int | None = None
    """A recent turn whose prefix was seen at once to stand whole in front; None = none was."""

    @property
    def head(self) -> Head:
        return self.exchange.head

    @property
    def wire(self) -> str:
        return self.exchange.wire

    @property
    def fresh(self) -> tuple[Message, ...]:
        """The messages that went over the wire, the last of the prefix; mostly all of it."""
        return self.exchange.messages

    @property
    def depth(self) -> int:
        return self.node.depth if self.node is not None else 0

    def messages(self, start: int, stop: int | None = None) -> tuple[Message, ...]:
        """The prefix from `start` on, before `stop`."""
        sent = self.exchange.messages
        offset = self.depth - len(sent)
        if start >= offset or self.node is None:
            return sent[start - offset : None if stop is None else stop - offset]
        return self.node.walk(start)[: None if stop is None else stop - start]
