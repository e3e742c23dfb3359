"""A thread as time saw it: every piece of text once, in the order it appeared, with the span of time it was alive.

    call  its view (R_c: prefix and reply)       new in H            evicted before it
    0     1 2 3 4 5 6 7                          1 2 3 4 5 6 7
    1     1 2 3 4 6 7 8 9 10                     8 9 10              5
    2     1 2 3 4 6 7 9 10 11 12                 11 12               8
    3     1 2 3 4 6 7 9 10 12 ans                ans                 11

    H     = 1 2 3 4 5 6 7 8 9 10 11 12 ans       the physical stream (METHOD.md section 3, H_T)
    R_N   = 1 2 3 4 6 7 9 10 12 ans              the final walk: the last view
    5 lives [4, 7), 8 lives [7, 10), 11 lives [10, 12), all others to the end

Time is counted in characters of the stream. What comes back after it left, or moved elsewhere, is born again: a cache
of keys and values could not have kept it. `trainer.physical` does the same on tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from recorder.message import Block, Message
from treebuilder.diff import Edit, Span, diff
from treebuilder.lineage import as_messages
from treebuilder.node import shared
from treebuilder.tree import Thread, Trajectory, Turn

Range = tuple[int, int]
"""Characters of the stream: from, up to."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one block that appeared at once and left at once."""

    tau: int
    """Length of the stream when it appeared: its place there."""
    omega: int | None
    """Length of the stream when it left; None = it never did."""
    left: int | None
    """Index of the turn that had it no more."""
    moved: bool
    """It left, and stands elsewhere from then on."""
    turn: int
    """Index of the turn in whose view it appeared."""
    message: int
    """Index in that view: the prefix, then the reply as a client sends it back."""
    block: Block
    start: int
    """Characters into the block's plain text."""
    stop: int
    sampled: bool
    """It is the turn's reply."""

    @property
    def chars(self) -> int:
        return self.stop - self.start

    @property
    def text(self) -> str:
        return self.block.plain[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class Stream:
    """The physical stream of one thread."""

    turns: tuple[int, ...]
    """Turns of the thread that had a readable view, in order of time."""
    pieces: tuple[Piece, ...]
    """In order of the stream, without gaps."""
    views: tuple[tuple[Range, ...], ...]
    """For each turn: where in the stream its view is, in the order in which the model saw it."""
    born: tuple[int, ...]
    """For each turn: length of the stream before what is new in its view."""

    @property
    def length(self) -> int:
        """Characters that ever stood in the thread's context or were sampled in it."""
        return self.pieces[-1].tau + self.pieces[-1].chars if self.pieces else 0

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def final(self) -> tuple[Range, ...]:
        """The final walk: what a trainer sees that is given the last transcript."""
        return self.views[-1] if self.views else ()


def lifetimes(trajectory: Trajectory, thread: Thread) -> Stream:
    """The physical stream of a thread. Its first turn brings its whole prefix, also where that is another's."""
    stream = _Stream()
    turns: list[int] = []
    views: list[tuple[Range, ...]] = []
    born: list[int] = []
    before: Turn | None = None
    for index in thread.turns:
        turn = trajectory.turns[index]
        if turn.node is None and turn.reply is None:
            continue
        turns.append(index)
        born.append(stream.length)
        stream.send(before, turn)
        views.append(tuple(stream.merged))
        before = turn
    return Stream(tuple(turns), tuple(stream.cut()), tuple(views), tuple(born))


@dataclass(frozen=True, slots=True)
class _Here:
    """A message of the current view."""

    blocks: tuple[tuple[Range, ...], ...]
    """For each block, where its text is in the stream."""
    before: int
    """Ranges of the view in front of it."""
    last: Range | None
    """The last of these, not yet joined with what is its own."""


@dataclass(slots=True)
class _Stream:
    length: int = 0
    view: list[_Here] = field(default_factory=list)
    merged: list[Range] = field(default_factory=list)
    """The view as ranges, neighbours joined."""
    births: list[Piece] = field(default_factory=list)
    deaths: list[tuple[Range, int, int, bool]] = field(default_factory=list)
    """What left, when, in which turn, and whether it stands elsewhere."""

    def send(self, before: Turn | None, turn: Turn) -> None:
        front = shared(before.node, turn.node) if before is not None else 0
        old = _view(before, front) if before is not None else ()
        new = turn.node.walk(front) if turn.node is not None else ()
        edit = diff(old, new)
        was = [here.blocks for here in self.view[front:]]
        self._leave(edit, was, turn)
        if front < len(self.view):
            first = self.view[front]
            del self.merged[first.before :]
            if first.last is not None:
                self.merged[-1] = first.last
            del self.view[front:]
        kept = _kept(edit, was)
        at_old = at = 0
        for hunk in (*edit.hunks, None):
            stop = hunk.old_start if hunk is not None else len(old)
            for blocks in was[at_old:stop]:
                self._push(blocks)
            at += stop - at_old
            if hunk is not None:
                for message in hunk.inserted:
                    self._push(self._arrive(message, at, kept, turn=turn, view=front + at, sampled=False))
                    at += 1
                at_old = hunk.old_stop
        for message in _echo(turn):
            self._push(self._arrive(message, at, {}, turn=turn, view=front + at, sampled=True))
            at += 1

    def _push(self, blocks: tuple[tuple[Range, ...], ...]) -> None:
        self.view.append(_Here(blocks, len(self.merged), self.merged[-1] if self.merged else None))
        for start, stop in (piece for ranges in blocks for piece in ranges):
            if self.merged and self.merged[-1][1] == start:
                self.merged[-1] = self.merged[-1][0], stop
            else:
                self.merged.append((start, stop))

    def _arrive(
        self,
        message: Message,
        at: int,
        kept: dict[tuple[int, int], list[tuple[Span, tuple[Range, ...]]]],
        *,
        turn: Turn,
        view: int,
        sampled: bool,
    ) -> tuple[tuple[Range, ...], ...]:
        """Where the blocks of a message stand: what stayed where it was, the rest at the end of the stream."""
        found: list[tuple[Range, ...]] = []
        for number, block in enumerate(message.blocks):
            ranges: list[Range] = []
            done = 0
            size = len(block.plain)
            end = Span(at, number, size, size)
            for span, where in (*kept.get((at, number), ()), (end, ())):
                if done < span.start:
                    fresh = span.start - done
                    self.births.append(
                        Piece(self.length, None, None, False, turn.index, view, block, done, span.start, sampled)
                    )
                    ranges.append((self.length, self.length + fresh))
                    self.length += fresh
                ranges.extend(where)
                done = span.stop
            found.append(tuple(ranges))
        return tuple(found)

    def _leave(self, edit: Edit, was: Sequence[tuple[tuple[Range, ...], ...]], turn: Turn) -> None:
        moved = {(a.message, a.block) for a, _ in edit.moved}
        stayed: dict[tuple[int, int], list[Span]] = {}
        for a, _ in edit.stayed:
            stayed.setdefault((a.message, a.block), []).append(a)
        for hunk in edit.hunks:
            for i in range(hunk.old_start, hunk.old_stop):
                for j, ranges in enumerate(was[i]):
                    done, size = 0, sum(stop - start for start, stop in ranges)
                    for span in (*stayed.get((i, j), ()), Span(i, j, size, size)):
                        for gone in _part(ranges, done, span.start):
                            self.deaths.append((gone, self.length, turn.index, (i, j) in moved))
                        done = span.stop

    def cut(self) -> Iterator[Piece]:
        """The births, cut where part of one left."""
        deaths = sorted(self.deaths)  # none of them overlap, and each lies in one birth
        next_death = 0
        for piece in self.births:
            at, end = piece.tau, piece.tau + piece.chars
            while at < end:
                part, stop = piece, end
                if next_death < len(deaths):
                    (gone, back), omega, left, moved = deaths[next_death]
                    if gone <= at:
                        part, stop = replace(piece, omega=omega, left=left, moved=moved), back
                        next_death += 1
                    else:
                        stop = min(gone, end)
                start = piece.start + at - piece.tau
                yield replace(part, tau=at, start=start, stop=start + stop - at)
                at = stop


def _echo(turn: Turn) -> tuple[Message, ...]:
    return as_messages(turn.reply, turn.wire) if turn.reply is not None else ()


def _view(turn: Turn, start: int) -> tuple[Message, ...]:
    return (*(turn.node.walk(start) if turn.node is not None else ()), *_echo(turn))


def _kept(
    edit: Edit, was: Sequence[tuple[tuple[Range, ...], ...]]
) -> dict[tuple[int, int], list[tuple[Span, tuple[Range, ...]]]]:
    """By new message and block: spans whose text stayed, and where it is in the stream."""
    found: dict[tuple[int, int], list[tuple[Span, tuple[Range, ...]]]] = {}
    for a, b in edit.stayed:
        where = tuple(_part(was[a.message][a.block], a.start, a.stop))
        found.setdefault((b.message, b.block), []).append((b, where))
    return found


def _part(ranges: Sequence[Range], start: int, stop: int) -> Iterator[Range]:
    """Characters [start, stop) of a block whose text is in these ranges."""
    at = 0
    for a, b in ranges:
        lo, hi = max(start - at, 0), min(stop - at, b - a)
        if lo < hi:
            yield a + lo, a + hi
        at += b - a
