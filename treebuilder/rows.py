"""A tree as `memorywalker tree` tells it: one row for each call, in order of arrival."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from treebuilder.details import details, survivors
from treebuilder.diff import Span
from treebuilder.tree import Kind, Trajectory


@dataclass(frozen=True, slots=True)
class Amount:
    """How much an edit took or brought."""

    blocks: int
    """Blocks touched, whole or in part."""
    chars: int

    @classmethod
    def of(cls, spans: Collection[Span]) -> "Amount":
        return cls(len({(s.message, s.block) for s in spans}), sum(s.chars for s in spans))


@dataclass(frozen=True, slots=True)
class Row:
    """A call as `memorywalker tree --json` prints it; the names are a promise."""

    seq: int
    """Place in the database; 0 = not stored."""
    source: str
    session: str
    thread: str
    lane: str
    kind: Kind
    prefix: int
    evicted: Amount
    inserted: Amount
    """For an append: what was added at the end."""
    confidence: float
    evidence: tuple[str, ...]
    opaque: str
    details: tuple[str, ...] = ()
    """Finer than the kind: `treebuilder.details.Detail`."""
    quotes: int | None = None
    """`seq` of the call whose reply, a summary, this call was the first to carry; None = none."""
    survivors: tuple[int, ...] = ()
    """`seq` of the calls whose replies stand word for word behind the edit."""


def rows(trajectory: Trajectory) -> Iterator[Row]:
    """One for each call, in order of arrival."""
    turns = trajectory.turns
    for turn in turns:
        before = turns[turn.parent] if turn.parent is not None else None
        yield Row(
            seq=turn.call.seq,
            source=turn.call.source,
            session=turn.session,
            thread=turn.thread,
            lane=turn.lane,
            kind=turn.kind,
            prefix=turn.prefix,
            evicted=Amount.of(turn.edit.evicted if turn.edit else ()),
            inserted=Amount.of(turn.edit.inserted if turn.edit else ()),
            confidence=turn.confidence,
            evidence=turn.evidence,
            opaque=turn.opaque,
            details=details(turn, before),
            quotes=turns[turn.quotes].call.seq if turn.quotes is not None else None,
            survivors=tuple(turns[i].call.seq for i in survivors(turn, before)),
        )
