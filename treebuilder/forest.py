"""The trees of a database, family by family: of the sessions asked for, and of no others that share nothing with them.

A tree is built over a whole family, for a session may have been forked from another; one family is in memory at a time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, overload

from recorder.call import Call
from recorder.errors import MemorywalkerError
from treebuilder.build import build
from treebuilder.tree import Trajectory, Turn


class _Named(Protocol):
    @property
    def run(self) -> str: ...


class Calls(Protocol):
    """What is used of `recorder.store.Store`."""

    where: str

    def calls(self, *, sessions: Collection[str] | None = None) -> Iterator[Call]: ...

    def families(self, *, together: Iterable[Collection[str]] = ()) -> list[tuple[str, ...]]: ...

    def runs(self) -> Sequence[_Named]: ...


@dataclass(frozen=True, slots=True)
class Forest:
    """The families that hold the sessions asked for."""

    store: Calls
    families: tuple[tuple[str, ...], ...]
    """Ids under which calls are stored: of a session, or of a run whose calls say no session."""
    wanted: frozenset[str] | None
    """Names of sessions, as trees have them; None = all."""

    @classmethod
    def of(cls, store: Calls, words: Sequence[str] = (), *, together: Iterable[Collection[str]] = ()) -> "Forest":
        """`words`: ids of sessions or their beginnings; none = all. `together`: as in `Store.families`.
        MemorywalkerError where a word fits no session, or several."""
        families = store.families(together=together)
        if not words:
            return cls(store, tuple(families), None)
        names = Names(store, families)
        found = [names.find(word) for word in words]
        needed = dict.fromkeys(one.family for one in found)
        wanted = frozenset(name for one in found for name in one.sessions)
        return cls(store, tuple(families[number] for number in needed), wanted)

    def trees(self) -> "Trees":
        """One tree a family, whole: `wanted` says which of its sessions were asked for."""
        return Trees(self.store, self.families)

    def tree(self, *, structural: bool = False, each: Callable[[Call], None] = lambda call: None) -> Trajectory:
        """The sessions asked for as one tree; `each` sees every call that it is built of."""
        keys = None if self.wanted is None else [key for family in self.families for key in family]

        def seen() -> Iterator[Call]:
            for call in self.store.calls(sessions=keys):
                each(call)
                yield call

        trajectory = build(seen(), structural=structural)
        if self.wanted is None:
            return trajectory
        if structural:  # which session a call names is not asked there
            mine = {call.seq for call in self.store.calls(sessions=self.wanted)}
            return trajectory.only({turn.session for turn in trajectory if turn.call.seq in mine})
        return trajectory.only(self.wanted)


@dataclass(frozen=True, slots=True)
class Trees(Sequence[Trajectory]):
    """Trees of families, each built when it is asked for and not kept."""

    store: Calls
    families: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.families)

    @overload
    def __getitem__(self, at: int) -> Trajectory: ...
    @overload
    def __getitem__(self, at: slice) -> "Trees": ...
    def __getitem__(self, at: int | slice) -> "Trajectory | Trees":
        if isinstance(at, slice):
            return Trees(self.store, self.families[at])
        return build(self.store.calls(sessions=self.families[at]))


@dataclass(frozen=True, slots=True)
class Named:
    """What an id, or the start of one, stands for."""

    sessions: tuple[str, ...]
    """As trees name them; several where it is the id of a run whose calls say no session."""
    family: int
    first: Turn | None = None
    """The only session's first call, where only the tree tells that it is one."""


class Names:
    """Finds sessions by id. Those that only trees tell apart are looked for last: that takes building them."""

    def __init__(self, store: Calls, families: Sequence[tuple[str, ...]]) -> None:
        self._store = store
        self._families = families
        self._places = {key: number for number, family in enumerate(families) for key in family}
        self._pooled = {run.run for run in store.runs()}

    def find(self, word: str) -> Named:
        """MemorywalkerError where it fits no session, or several."""
        hits = _fitting(word, self._places)
        if len(hits) == 1 and hits[0] in self._pooled:
            mine = [name for name, (_, first) in self._inside.items() if first.call.run == hits[0]]
            first = self._inside[mine[0]][1] if len(mine) == 1 else None
            return Named(tuple(mine) or (hits[0],), self._places[hits[0]], first)
        if len(hits) == 1:
            return Named((hits[0],), self._places[hits[0]])
        inside = [] if hits else _fitting(word, self._inside)
        if len(inside) == 1:
            number, first = self._inside[inside[0]]
            return Named((inside[0],), number, first)
        got = f"{word!r}, which fits {len(hits or inside)} of {len(self._places)}"
        raise MemorywalkerError(f"expected the id of one session, or its start, got {got}, at {self._store.where}")

    @cached_property
    def _inside(self) -> dict[str, tuple[int, Turn]]:
        """Name -> its family's number and its first call."""
        found: dict[str, tuple[int, Turn]] = {}
        for number, family in enumerate(self._families):
            if not self._pooled.isdisjoint(family):
                for turn in build(self._store.calls(sessions=family)):
                    if not turn.hints.session:
                        found.setdefault(turn.session, (number, turn))
        return found


def _fitting(word: str, known: Collection[str]) -> list[str]:
    return [word] if word in known else [one for one in known if one.startswith(word)]
