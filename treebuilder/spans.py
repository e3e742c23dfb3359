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
        pairs, gone, new = _counterparts(hunk)
        for a, b in pairs:
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
    told = tuple(pair for pair in stayed if pair[0].chars)
    return tuple(sorted(evicted, key=_place)), tuple(sorted(inserted, key=_place)), tuple(moved), told


def _place(span: Span) -> tuple[int, int, int]:
    return span.message, span.block, span.start


def _counterparts(hunk: Hunk) -> tuple[list[tuple[_Piece, _Piece]], list[_Piece], list[_Piece]]:
    """Blocks of a hunk that are one block on both sides, equal or changed, in one order; and those left over."""
    gone = _pieces(hunk.removed, hunk.old_start)
    new = _pieces(hunk.inserted, hunk.new_start)
    if not gone or not new:
        return [], gone, new
    place_a, place_b = ({id(p): i for i, p in enumerate(side)} for side in (gone, new))
    at: dict[bytes, list[_Piece]] = {}
    for piece in reversed(new):
        at.setdefault(piece.hash, []).append(piece)
    pairs = _in_order([(p, at[p.hash].pop()) for p in gone if at.get(p.hash)], place_a, place_b)
    rest_a, rest_b = _left_over(gone, new, pairs)
    changed = sorted([*pairs, *_changed_in_place(rest_a, rest_b)], key=lambda pair: place_a[id(pair[0])])
    pairs = _in_order(changed, place_a, place_b)
    return pairs, *_left_over(gone, new, pairs)


def _in_order(
    pairs: list[tuple[_Piece, _Piece]], place_a: dict[int, int], place_b: dict[int, int]
) -> list[tuple[_Piece, _Piece]]:
    """The most of these pairs that keep one order; their first members do already."""
    by_places = {(place_a[id(a)], place_b[id(b)]): (a, b) for a, b in pairs}
    return [by_places[places] for places in increasing(list(by_places))]


def _left_over(
    gone: list[_Piece], new: list[_Piece], pairs: list[tuple[_Piece, _Piece]]
) -> tuple[list[_Piece], list[_Piece]]:
    taken = {id(p) for pair in pairs for p in pair}
    return [p for p in gone if id(p) not in taken], [p for p in new if id(p) not in taken]


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
