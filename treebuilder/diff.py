"""Two prefixes, one edit: what was kept, what left, what came, down to the characters inside a changed block.

An edit is a list of hunks ("these messages became those") from which the new prefix is rebuilt exactly. Lists of spans
say the same block by block, for people and statistics; they are made when asked for. Equal messages are found by
digest: the shared front first, the shared back next, unique messages as anchors between; so the cost follows what
changed, not what stayed.

    old   u1  a1  t1  a2  t2            hunks   [2,3) -> (c1)   and   [5,5) -> (a3, t3)
    new   u1  a1  c1  a2  t2  a3  t3    evicted the text of t1     inserted the texts of c1, a3, t3
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from recorder.message import Message
from treebuilder.spans import Hunk as Hunk
from treebuilder.spans import Span as Span
from treebuilder.spans import Told, increasing, spans


@dataclass(frozen=True)
class Edit:
    kept: int
    """Leading messages that both prefixes share."""
    hunks: tuple[Hunk, ...]
    """In order, never overlapping; messages between two hunks are equal in both prefixes."""

    @property
    def evicted(self) -> tuple[Span, ...]:
        """In the old prefix: what the new one no longer holds."""
        return self._spans[0]

    @property
    def inserted(self) -> tuple[Span, ...]:
        """In the new prefix: what the old one did not hold."""
        return self._spans[1]

    @property
    def moved(self) -> tuple[tuple[Span, Span], ...]:
        """Whole blocks that left one place and stand in another: (old, new). In neither list above."""
        return self._spans[2]

    @property
    def stayed(self) -> tuple[tuple[Span, Span], ...]:
        """Inside hunks: text that both prefixes hold, in one order: (old, new)."""
        return self._spans[3]

    @cached_property
    def _spans(self) -> Told:
        return spans(self.hunks)

    @property
    def evicted_chars(self) -> int:
        return sum(s.chars for s in self.evicted)

    @property
    def inserted_chars(self) -> int:
        return sum(s.chars for s in self.inserted)


def diff(old: Sequence[Message], new: Sequence[Message], *, kept: int | None = None) -> Edit:
    """The edit that makes `new` of `old`. `kept`, where the caller knows it, saves comparing the shared front."""
    front = _shared_front(old, new) if kept is None else kept
    back = 0
    limit = min(len(old), len(new)) - front
    while back < limit and old[-1 - back].digest == new[-1 - back].digest:
        back += 1
    old_stop, new_stop = len(old) - back, len(new) - back
    hunks = tuple(
        Hunk(a0, tuple(old[a0:a1]), b0, tuple(new[b0:b1]))
        for a0, a1, b0, b1 in _gaps(old, new, front, old_stop, front, new_stop)
    )
    return Edit(front, hunks)


def apply(edit: Edit, old: Sequence[Message]) -> tuple[Message, ...]:
    """The new prefix; the inverse of `diff`."""
    made: list[Message] = []
    at = 0
    for hunk in edit.hunks:
        made.extend(old[at : hunk.old_start])
        made.extend(hunk.inserted)
        at = hunk.old_stop
    made.extend(old[at:])
    return tuple(made)


def _shared_front(old: Sequence[Message], new: Sequence[Message]) -> int:
    count = 0
    for a, b in zip(old, new, strict=False):
        if a.digest != b.digest:
            break
        count += 1
    return count


def _gaps(
    old: Sequence[Message], new: Sequence[Message], a0: int, a1: int, b0: int, b1: int
) -> Iterator[tuple[int, int, int, int]]:
    """Ranges (old from, to, new from, to) that differ, given a range whose first and last messages differ."""
    if a0 == a1 and b0 == b1:
        return
    digests_a = [old[i].digest for i in range(a0, a1)]
    digests_b = [new[i].digest for i in range(b0, b1)]
    once_a, once_b = Counter(digests_a), Counter(digests_b)
    where_b = {d: b0 + j for j, d in enumerate(digests_b)}
    pairs = [(a0 + i, where_b[d]) for i, d in enumerate(digests_a) if once_a[d] == 1 and once_b.get(d) == 1]
    at_a, at_b = a0, b0
    for x, y in [*increasing(pairs), (a1, b1)]:
        if x < at_a or y < at_b:
            continue  # swallowed by growing an earlier anchor
        lo_a, lo_b = at_a, at_b
        while lo_a < x and lo_b < y and old[lo_a].digest == new[lo_b].digest:
            lo_a, lo_b = lo_a + 1, lo_b + 1
        hi_a, hi_b = x, y
        while hi_a > lo_a and hi_b > lo_b and old[hi_a - 1].digest == new[hi_b - 1].digest:
            hi_a, hi_b = hi_a - 1, hi_b - 1
        if lo_a < hi_a or lo_b < hi_b:
            yield lo_a, hi_a, lo_b, hi_b
        at_a, at_b = x + 1, y + 1
