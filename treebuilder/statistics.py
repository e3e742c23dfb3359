"""How much of a session's context was taken away again: the numbers of METHOD.md section 1, in characters.

An episode is one thread. c = evicted characters over all characters that ever stood in its prefixes (each counted
once: the first prefix and what was inserted later). Depth = mean of c over threads with c > 0, frequency = their share.
"""

from collections import Counter
from dataclasses import dataclass

from treebuilder.tree import Kind, Thread, Trajectory


@dataclass(frozen=True, slots=True)
class Statistics:
    calls: int
    """Asides included."""
    threads: int
    """Without lanes of asides."""
    branches: int
    rendered_chars: int
    """Characters of prefixes, each once a thread; system text and tools are not counted."""
    evicted_chars: dict[Kind, int]
    """By the kind of edit that took them; kinds that took none are left out."""
    compression_depth: float
    """Mean evicted share of the threads that lost anything; 0.0 = none did."""
    compression_frequency: float
    """Share of threads that lost anything."""
    replies: int
    """Calls on branches that sampled something."""
    replies_lost: int
    """Of these: not in the last view of their thread, so that training on the final transcript never sees them."""
    replies_shifted: int
    """Of these: still there, but behind another prefix than they were sampled with."""


def statistics(trajectory: Trajectory, *, session: str | None = None) -> Statistics:
    """Of one session, or of all together."""
    turns = [t for t in trajectory if session is None or t.session == session]
    threads = [
        t
        for t in trajectory.threads
        if (session is None or t.session == session) and (t.lane == "main" or t.lane.startswith("agent:"))
    ]
    evicted: Counter[Kind] = Counter()
    shares: list[float] = []
    rendered = replies = lost = shifted = 0
    for thread in threads:
        chars, gone = _chars(trajectory, thread, evicted)
        rendered += chars
        shares.append(gone / chars if chars else 0.0)
        a, b, c = _replies(trajectory, thread)
        replies, lost, shifted = replies + a, lost + b, shifted + c
    some = [share for share in shares if share > 0]
    inside = {t.index for t in turns}
    return Statistics(
        calls=len(turns),
        threads=len(threads),
        branches=sum(1 for b in trajectory.branches if b.turns[0] in inside),
        rendered_chars=rendered,
        evicted_chars={k: n for k, n in evicted.items() if n},
        compression_depth=sum(some) / len(some) if some else 0.0,
        compression_frequency=len(some) / len(shares) if shares else 0.0,
        replies=replies,
        replies_lost=lost,
        replies_shifted=shifted,
    )


def _chars(trajectory: Trajectory, thread: Thread, evicted: Counter[Kind]) -> tuple[int, int]:
    rendered = gone = 0
    for at, index in enumerate(thread.turns):
        turn = trajectory.turns[index]
        if turn.kind is Kind.SUMMARY_REQUEST:
            continue  # a leg: the spine goes on from the turn before
        if at == 0 or turn.edit is None:
            rendered += turn.chars if at == 0 else 0
            continue
        rendered += turn.edit.inserted_chars
        gone += turn.edit.evicted_chars
        evicted[turn.kind] += turn.edit.evicted_chars
    return rendered, gone


def _replies(trajectory: Trajectory, thread: Thread) -> tuple[int, int, int]:
    sampled = [i for i in thread.turns if (reply := trajectory.turns[i].reply) is not None and reply.message.blocks]
    if not sampled:
        return 0, 0, 0
    spine = [i for i in sampled if trajectory.turns[i].kind is not Kind.SUMMARY_REQUEST]
    last = trajectory.turns[spine[-1] if spine else sampled[-1]]
    final = {echo.turn: echo for echo in trajectory.echoes(last)}
    lost = shifted = 0
    for index in sampled:
        if index == last.index:
            continue
        echo = final.get(index)
        if echo is None:
            lost += 1
        elif not _same_front(trajectory, index, last.index, echo.message):
            shifted += 1
    return len(sampled), lost, shifted


def _same_front(trajectory: Trajectory, index: int, last: int, at: int) -> bool:
    """The echo in the last view stands behind the very prefix that the reply was sampled with."""
    node, want = trajectory.turns[last].node, trajectory.turns[index].node
    while node is not None and node.depth > at:
        node = node.parent
    return node is want
