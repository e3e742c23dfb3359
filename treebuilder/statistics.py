"""How much of a session's context was taken away again, and what training on the final transcript would make of it.

An episode is one thread. Its rendered context is every text that stood in one of its prompts, each once; c is the share
of that which was evicted later. Compression depth = mean of c over threads with c > 0, frequency = their share
(METHOD.md section 1). A trainer that is given the last view loses what was sampled and is not in it, and conditions
wrongly what stands there behind another prefix than it was sampled with.

    sampled  1 2 3 4 5 6 7 | 8 9 10 | 11 12 | ans      5, 8 and 11 are evicted
    the end  1 2 3 4   6 7     9 10      12   ans      lost 5 8 11, behind another prefix 6 7 9 10 12, right 1-4 ans
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from recorder.message import Head
from treebuilder.lifetimes import Piece, Range, Stream, lifetimes
from treebuilder.state import replied
from treebuilder.tree import Kind, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Statistics:
    calls: int
    """Asides included."""
    threads: int
    """Without lanes of asides."""
    branches: int
    rendered_chars: int
    """Characters that stood in prompts, each once a thread; system text and tools are not counted."""
    evicted_chars: dict[Kind, int]
    """By the kind of edit that took them; kinds that took none are left out. What only moved is not among them."""
    compression_depth: float
    """Mean evicted share of the threads that lost anything; 0.0 = none did."""
    compression_frequency: float
    """Share of threads that lost anything."""
    replies: int
    """Calls of these threads that sampled something, to its end."""
    replies_lost: int
    """Of these: nothing of it is in the last view of its thread, so that training on the final transcript never sees
    it."""
    replies_shifted: int
    """Of these: still there, in part at least behind another prefix than it was sampled with."""
    sampled_chars: int
    """In these replies."""
    lost_chars: int
    """Of what was sampled: not in the last view of its thread."""
    shifted_chars: int
    """Of what was sampled: there, but behind another prefix or head than it was sampled with."""
    chars_per_token: float | None
    """Of prompts, by the server's own count, system text and tools included; None = it reported none."""

    @property
    def evicted_tokens(self) -> dict[Kind, int] | None:
        """`evicted_chars` at the session's characters per token; None = not known."""
        ratio = self.chars_per_token
        return None if ratio is None else {kind: round(n / ratio) for kind, n in self.evicted_chars.items()}

    @property
    def lost_share(self) -> float:
        """Of what was sampled; 0.0 also where nothing was."""
        return self.lost_chars / self.sampled_chars if self.sampled_chars else 0.0

    @property
    def shifted_share(self) -> float:
        return self.shifted_chars / self.sampled_chars if self.sampled_chars else 0.0


def row(session: str, found: Statistics) -> dict[str, object]:
    """As `memorywalker sessions --stats --json` prints it; the names are a promise."""
    told = dict[str, object]({name: getattr(found, name) for name in found.__slots__})
    tokens = found.evicted_tokens
    told["evicted_chars"] = {kind.value: n for kind, n in found.evicted_chars.items()}
    told["evicted_tokens"] = None if tokens is None else {kind.value: n for kind, n in tokens.items()}
    return {"session": session, **told, "lost_share": found.lost_share, "shifted_share": found.shifted_share}


@dataclass(slots=True)
class _Sum:
    rendered: int = 0
    evicted: Counter[Kind] = field(default_factory=Counter)
    shares: list[float] = field(default_factory=list)
    replies: Counter[str] = field(default_factory=Counter)
    chars: Counter[str] = field(default_factory=Counter)

    def add(self, trajectory: Trajectory, stream: Stream) -> None:
        self._context(trajectory, stream)
        self._replies(trajectory, stream)

    def _context(self, trajectory: Trajectory, stream: Stream) -> None:
        after = dict(zip(stream.turns, (*stream.turns[1:], None), strict=True))
        rendered = gone = 0
        for piece in stream.pieces:
            if piece.moved or (piece.sampled and after[piece.turn] in (None, piece.left)):
                continue  # it counts where it stands now; it never stood in a prompt
            rendered += piece.chars
            if piece.left is not None:
                gone += piece.chars
                self.evicted[trajectory.turns[piece.left].kind] += piece.chars
        self.rendered += rendered
        self.shares.append(gone / rendered if rendered else 0.0)

    def _replies(self, trajectory: Trajectory, stream: Stream) -> None:
        spine = [i for i, t in enumerate(stream.turns) if trajectory.turns[t].kind is not Kind.SUMMARY_REQUEST]
        if not stream.turns:
            return
        last = spine[-1] if spine else len(stream.turns) - 1
        end, final = trajectory.turns[stream.turns[last]], stream.views[last]
        sampled: dict[int, list[Piece]] = {}
        for piece in stream.pieces:
            if piece.sampled:
                sampled.setdefault(piece.turn, []).append(piece)
        for turn, view in zip(stream.turns, stream.views, strict=True):
            pieces = sampled.get(turn, ())
            if not pieces or not replied(trajectory.turns[turn]):
                continue
            same_head = trajectory.turns[turn].head.digest == end.head.digest
            fates = [_fate(piece, view, final, same_head=same_head) for piece in pieces]
            for piece, fate in zip(pieces, fates, strict=True):
                self.chars[fate] += piece.chars
            whole = "lost" if set(fates) == {"lost"} else "shifted" if "shifted" in fates else "right"
            self.replies[whole] += 1


def _fate(piece: Piece, view: Sequence[Range], final: Sequence[Range], *, same_head: bool) -> str:
    there = _front(final, piece.tau)
    if there is None:
        return "lost"
    return "right" if same_head and there == _front(view, piece.tau) else "shifted"


def _front(view: Sequence[Range], place: int) -> tuple[Range, ...] | None:
    """What stands in a view before that place of the stream; None = the place is not in it."""
    for i, (start, stop) in enumerate(view):
        if start <= place < stop:
            return (*view[:i], (start, place)) if start < place else tuple(view[:i])
    return None


def statistics(trajectory: Trajectory, *, session: str | None = None) -> Statistics:
    """Of one session, or of all together."""
    turns = [t for t in trajectory if session is None or t.session == session]
    threads = [
        t
        for t in trajectory.threads
        if (session is None or t.session == session) and (t.lane == "main" or t.lane.startswith("agent:"))
    ]
    found = _Sum()
    for thread in threads:
        found.add(trajectory, lifetimes(trajectory, thread))
    some = [share for share in found.shares if share > 0]
    inside = {t.index for t in turns}
    return Statistics(
        calls=len(turns),
        threads=len(threads),
        branches=sum(1 for b in trajectory.branches if b.turns[0] in inside),
        rendered_chars=found.rendered,
        evicted_chars={k: n for k, n in found.evicted.items() if n},
        compression_depth=sum(some) / len(some) if some else 0.0,
        compression_frequency=len(some) / len(found.shares) if found.shares else 0.0,
        replies=found.replies.total(),
        replies_lost=found.replies["lost"],
        replies_shifted=found.replies["shifted"],
        sampled_chars=found.chars.total(),
        lost_chars=found.chars["lost"],
        shifted_chars=found.chars["shifted"],
        chars_per_token=_chars_per_token(turns),
    )


def _chars_per_token(turns: Sequence[Turn]) -> float | None:
    chars = tokens = 0
    heads: dict[bytes, int] = {}
    for turn in turns:
        usage = turn.reply.usage if turn.reply is not None else None
        if usage is None or usage.input is None or turn.opaque:
            continue
        if turn.head.digest not in heads:
            heads[turn.head.digest] = _head_chars(turn.head)
        chars += turn.chars + heads[turn.head.digest]
        tokens += usage.input + (usage.cache_read or 0) + (usage.cache_write or 0)
    return chars / tokens if tokens else None


def _head_chars(head: Head) -> int:
    tools = sum(len(t.name) + len(t.description) + len(t.schema) for t in head.tools)
    return tools + sum(b.size_chars for b in head.system)
