"""What hunks of an edit say block by block, down to the characters inside a changed block, for people and statistics.

A block that stands unchanged in its hunk stayed; one changed in place stayed at its front and back; one that stands
elsewhere has moved; all else was evicted or inserted.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

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


def increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
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


Pairs = tuple[tuple[Span, Span], ...]
Told = tuple[tuple[Span, ...], tuple[Span, ...], Pairs, Pairs]
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


def spans(hunks: Sequence[Hunk]) -> Told:
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


def _in_order(pairs: list[tuple[Span, Span]]) -> Pairs:
    places = {place: i for i, place in enumerate(sorted(_place(b) for _, b in pairs))}
    kept = increasing([(i, places[_place(b)]) for i, (_, b) in enumerate(pairs)])
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
    kept = increasing(pairs)
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
