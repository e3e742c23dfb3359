"""Calls in, trajectory out; call by call or all at once, the same tree."""

from collections.abc import Iterable

from recorder.call import Call
from treebuilder.tree import Trajectory


def build(calls: Iterable[Call], *, structural: bool = False) -> Trajectory:
    raise NotImplementedError
