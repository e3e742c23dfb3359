"""What people call a call: its number in the database, not its place among the calls that were read."""

import re

from treebuilder.tree import Trajectory, Turn

_TURN = re.compile(r"\bturn \d+\b")


def number(turn: Turn) -> str:
    """Its place in the database, or in the file that it was read from."""
    return str(turn.call.seq) if turn.call.seq else turn.call.source.partition("#")[2] or str(turn.index)


def evidence(trajectory: Trajectory, turn: Turn) -> tuple[str, ...]:
    """A turn's evidence, the call that it points at named as people know it."""
    at = turn.quotes if turn.quotes is not None else turn.origin
    name = "another call" if at is None else f"call {number(trajectory.turns[at])}"
    return tuple(_TURN.sub(name, one) for one in turn.evidence)
