"""Which sessions of a tree share a trunk: forked one from the other, started one by the other, or begun alike.

    a  [m1 m2] ...                 a's first prefix is b's first too, and starts c's: all three are a's family
    b  [m1 m2] ...
    c  [m1 m2 r2 m3] ...

`recorder.families` finds the same on stored ids; here sessions are told apart that no id tells apart there.
"""

from collections.abc import Mapping

from trainer.rollouts import Rollout
from treebuilder.tree import Trajectory, Turn


def families(trajectory: Trajectory, rollouts: Mapping[str, Rollout] | None = None) -> dict[str, str]:
    """Session -> the first session of its family. Those of one group of `rollouts` are one family too."""
    head = {session: session for session in trajectory.sessions}
    begun: dict[bytes, str] = {}
    groups: dict[str, str] = {}
    firsts = _firsts(trajectory)
    order = {session: number for number, session in enumerate(head)}

    def of(session: str) -> str:
        while head[session] != session:
            session = head[session]
        return session

    def join(a: str, b: str) -> None:
        first, last = sorted((of(a), of(b)), key=order.__getitem__)
        head[last] = first

    for turn in trajectory.turns:
        for other in (turn.parent, turn.origin):
            if other is not None:
                join(turn.session, trajectory.turns[other].session)
        if turn.hints.parent_session in head:
            join(turn.session, turn.hints.parent_session)
    for session, first in firsts.items():
        if first.node is not None:
            begun.setdefault(first.node.id, session)
        if rollouts is not None and session in rollouts:
            join(session, groups.setdefault(rollouts[session].group, session))
    for session, first in firsts.items():
        node = first.node
        while node is not None:
            if node.id in begun:
                join(session, begun[node.id])
            node = node.parent
    return {session: of(session) for session in head}


def _firsts(trajectory: Trajectory) -> dict[str, Turn]:
    """Each session's first call that is no aside; where there are only asides, none."""
    found: dict[str, Turn] = {}
    for turn in trajectory.turns:
        if not turn.kind.aside:
            found.setdefault(turn.session, turn)
    return found
