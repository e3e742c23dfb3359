"""Two prefixes, one edit: what was kept, what left, what came, down to the characters inside a changed block.

An edit is a list of hunks ("these messages became those") from which the new prefix is rebuilt exactly. Lists of spans
say the same block by block, for people and statistics; they are made when asked for. Equal messages are found by
digest: the shared front first, the shared back next, unique messages as anchors between; so the cost follows what
changed, not what stayed.

    old   u1  a1  t1  a2  t2            hunks   [2,3) -> (c1)   and   [5,5) -> (a3, t3)
    new   u1  a1  c1  a2  t2  a3  t3    evicted the text of t1     inserted the texts of c1, a3, t3
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from recorder.message import Block, Message


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
    """`removed`, which stood at `old_start` of the old prefix, became `inserted`, at `new_start` of the new one."""

    old_start: int
    removed: tuple[Message, ...]
    new_start: int
    inserted: tuple[Message, ...]

    @property
    def old_stop(self) -> int:
        return self.old_start + len(self.removed)

    @property
    def new_stop(self) -> int:
        return self.new_start + len(self.inserted)


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
    def _spans(self) -> "_Told":
        return _spans(self.hunks)

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
    for x, y in [*_increasing(pairs), (a1, b1)]:
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


def _increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs whose second members increase (patience sorting); first members already do."""
    tails: list[int] = []
    at: list[int] = []
    back: list[int] = []
    for i, (_, y) in enumerate(pairs):
        pile = bisect_left(tails, y)
        back.append(at[pile - 1] if pile else -1)
        if pile == len(tails):
            tails.append(y)
            at.append(i)
        else:
            tails[pile], at[pile] = y, i
    found: list[tuple[int, int]] = []
    i = at[-1] if at else -1
    while i >= 0:
        found.append(pairs[i])
        i = back[i]
    return found[::-1]


_Pairs = tuple[tuple[Span, Span], ...]
_Told = tuple[tuple[Span, ...], tuple[Span, ...], _Pairs, _Pairs]
"""Evicted, inserted, moved, stayed."""


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    message: int
    index: int
    block: Block
    hash: bytes

    def span(self, start: int = 0, stop: int | None = None) -> Span:
        return Span(self.message, self.index, start, len(self.block.plain) if stop is None else stop)


def _pieces(messages: Sequence[Message], first: int) -> list[_Piece]:
    return [
        _Piece(first + i, j, block, hash_)
        for i, message in enumerate(messages)
        for j, (block, hash_) in enumerate(zip(message.blocks, message.block_hashes, strict=True))
    ]


def _spans(hunks: Sequence[Hunk]) -> _Told:
    left: list[_Piece] = []
    came: list[_Piece] = []
    evicted: list[Span] = []
    inserted: list[Span] = []
    stayed: list[tuple[Span, Span]] = []
    for hunk in hunks:
        gone, new, equal = _unmatched(hunk)
        stayed.extend((a.span(), b.span()) for a, b in equal)
        for a, b in _changed_in_place(gone, new):
            start, stop_a, stop_b = _inner(a.block.plain, b.block.plain)
            stayed.append((a.span(0, start), b.span(0, start)))
            stayed.append((a.span(stop_a), b.span(stop_b)))
            if start < stop_a:
                evicted.append(a.span(start, stop_a))
            if start < stop_b:
                inserted.append(b.span(start, stop_b))
        left.extend(gone)
        came.extend(new)
    moved: list[tuple[Span, Span]] = []
    waiting: dict[bytes, list[_Piece]] = {}
    for piece in reversed(came):
        waiting.setdefault(piece.hash, []).append(piece)
    for piece in left:
        same = waiting.get(piece.hash)
        if same:
            target = same.pop()
            came.remove(target)
            moved.append((piece.span(), target.span()))
        else:
            evicted.append(piece.span())
    inserted.extend(piece.span() for piece in came)
    told = sorted(((a, b) for a, b in stayed if a.chars), key=lambda pair: _place(pair[0]))
    return tuple(sorted(evicted, key=_place)), tuple(sorted(inserted, key=_place)), tuple(moved), _in_order(told)


def _in_order(pairs: list[tuple[Span, Span]]) -> _Pairs:
    places = {place: i for i, place in enumerate(sorted(_place(b) for _, b in pairs))}
    kept = _increasing([(i, places[_place(b)]) for i, (_, b) in enumerate(pairs)])
    return tuple(pairs[i] for i, _ in kept)


def _place(span: Span) -> tuple[int, int, int]:
    return span.message, span.block, span.start


def _unmatched(hunk: Hunk) -> tuple[list[_Piece], list[_Piece], list[tuple[_Piece, _Piece]]]:
    """Blocks of a hunk that have no equal on the other side, in order; and equal blocks in equal order."""
    gone = _pieces(hunk.removed, hunk.old_start)
    new = _pieces(hunk.inserted, hunk.new_start)
    if not gone or not new:
        return gone, new, []
    at: dict[bytes, list[int]] = {}
    for j in range(len(new) - 1, -1, -1):
        at.setdefault(new[j].hash, []).append(j)
    pairs = [(i, at[p.hash].pop()) for i, p in enumerate(gone) if at.get(p.hash)]
    kept = _increasing(pairs)
    kept_a, kept_b = {i for i, _ in kept}, {j for _, j in kept}
    return (
        [p for i, p in enumerate(gone) if i not in kept_a],
        [p for j, p in enumerate(new) if j not in kept_b],
        [(gone[i], new[j]) for i, j in kept],
    )


def _changed_in_place(gone: list[_Piece], new: list[_Piece]) -> list[tuple[_Piece, _Piece]]:
    """Takes pairs out of both lists that are one block changed: same tool id, or alike at front or back."""
    pairs: list[tuple[_Piece, _Piece]] = []
    by_id = {(p.block.kind, p.block.id): p for p in reversed(new) if p.block.id}
    for piece in list(gone):
        other = by_id.pop((piece.block.kind, piece.block.id), None) if piece.block.id else None
        if other is None:
            other = next((p for p in new[:4] if not p.block.id and p.block.kind == piece.block.kind), None)
            if other is None or piece.block.id or not _alike(piece.block.plain, other.block.plain):
                continue
        if other in new:
            pairs.append((piece, other))
            gone.remove(piece)
            new.remove(other)
    return pairs


def _alike(a: str, b: str) -> bool:
    start, stop_a, stop_b = _inner(a, b)
    same = len(a) - (stop_a - start)
    return same * 2 >= min(len(a), len(b)) > 0 and stop_b >= start


def _inner(a: str, b: str) -> tuple[int, int, int]:
    """Where two texts differ: (start in both, stop in a, stop in b)."""
    limit = min(len(a), len(b))
    start = common_front(a, b, limit)
    back = common_front(a[::-1], b[::-1], limit - start) if start < limit else 0
    return start, len(a) - back, len(b) - back


def common_front(a: str, b: str, limit: int) -> int:
    """Length of the common front, at most `limit`: by halving, so that equal text is compared at C speed."""
    lo, hi = 0, limit
    if a[:limit] == b[:limit]:
        return limit
    while lo < hi:
        middle = (lo + hi + 1) // 2
        if a[lo:middle] == b[lo:middle]:
            lo = middle
        else:
            hi = middle - 1
    return lo
