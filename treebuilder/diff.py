"""Two prefixes, one edit: what was kept, what left, what came, down to the characters inside a changed block.

An edit is a list of hunks ("these messages became those") from which the new prefix is rebuilt exactly, and a list of
spans that says the same block by block, for people and statistics. The cost follows what changed, not what stayed.
"""

from dataclasses import dataclass

from recorder.message import Message


@dataclass(frozen=True, slots=True)
class Span:
    """A run of characters in one block of a prefix."""

    message: int
    block: int
    start: int
    """Characters into the block's plain text."""
    stop: int

    @property
    def chars(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Hunk:
    """`old[old_start:old_stop]` became `inserted`, which stands at `new_start` of the new prefix."""

    old_start: int
    old_stop: int
    new_start: int
    inserted: tuple[Message, ...]

    @property
    def new_stop(self) -> int:
        return self.new_start + len(self.inserted)


@dataclass(frozen=True, slots=True)
class Edit:
    kept: int
    """Leading messages that both prefixes share."""
    hunks: tuple[Hunk, ...]
    """In order, never overlapping; messages between two hunks are equal in both prefixes."""
    evicted: tuple[Span, ...]
    """In the old prefix: what the new one no longer holds."""
    inserted: tuple[Span, ...]
    """In the new prefix: what the old one did not hold."""
    moved: tuple[tuple[Span, Span], ...]
    """Whole blocks that left one place and stand in another: (old, new). In neither list above."""

    @property
    def evicted_chars(self) -> int:
        return sum(s.chars for s in self.evicted)

    @property
    def inserted_chars(self) -> int:
        return sum(s.chars for s in self.inserted)
