"""A call on its way into the tree: parsed, fingerprinted, its scope known, its whole prefix at hand."""

from dataclasses import dataclass, replace

from recorder.call import Call
from recorder.message import Exchange, Head, Hints, Message
from recorder.wire import Opaque, read
from treebuilder.lineage import Path


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call parsed and fingerprinted: what needs the whole prefix is done once, here."""

    call: Call
    exchange: Exchange | Opaque
    ids: Path
    """Trie id of every prefix of the messages as sent."""


def prepare(call: Call, exchange: Exchange | Opaque | None = None) -> Prepared:
    meaning = read(call) if exchange is None else exchange
    messages = meaning.messages if isinstance(meaning, Exchange) else ()
    return Prepared(replace(call, request_body=b"", response_body=b""), meaning, Path.of(messages))


@dataclass(slots=True)
class New:
    """The call being placed."""

    index: int
    call: Call
    wire: str
    exchange: Exchange
    ids: Path
    fresh: tuple[Message, ...]
    """The last messages of the prefix; `len(ids) - len(fresh)` stand before them in the trie."""
    scope: str
    pooled: bool
    """No id says which session: the scope holds many."""
    hints: Hints
    """Empty in structural mode."""
    opaque: str
    before: tuple[Message, ...] = ()
    """What a delta of items was put behind; empty = everything was sent."""

    @property
    def head(self) -> Head:
        return self.exchange.head

    def messages(self, start: int) -> tuple[Message, ...]:
        """The prefix from `start` on."""
        offset = len(self.ids) - len(self.fresh)
        return self.fresh[start - offset :] if start >= offset else (*self.before[start:], *self.fresh)
