"""What a made-up harness writes: numbered blocks, and the truth that can be counted by their numbers."""

from dataclasses import dataclass

from recorder.call import Call
from recorder.message import Block, Exchange, Message


@dataclass(frozen=True, slots=True)
class Part:
    """A block with its number."""

    block: Block
    number: int
    instead_of: int = 0
    """Number of the block in whose place this one was put; 0 = none."""


@dataclass(frozen=True, slots=True)
class Line:
    role: str
    parts: tuple[Part, ...]

    @property
    def message(self) -> Message:
        return Message(self.role, tuple(p.block for p in self.parts))  # type: ignore[arg-type]


View = tuple[Line, ...]


@dataclass(slots=True)
class Made:
    """One call and the truth about it."""

    call: Call
    exchange: Exchange
    thread: int
    session: int
    lane: str
    kind: str
    view: tuple[Message, ...]
    """The whole prefix, though only a part of it may have been sent."""
    compared: int | None
    """The call whose view was edited into this one."""
    kept: int
    evicted: dict[tuple[int, int], int]
    """(message, block) of the compared view -> characters that left."""
    inserted: dict[tuple[int, int], int]
    sampled: bool


def edit(old: View, new: View) -> tuple[int, dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Leading lines kept, characters that left the old view and that came into the new one, by block numbers."""
    was = {p.number: (i, j, p) for i, line in enumerate(old) for j, p in enumerate(line.parts)}
    now = {p.number for line in new for p in line.parts}
    kept = 0
    for a, b in zip(old, new, strict=False):
        if [p.number for p in a.parts] != [p.number for p in b.parts]:
            break
        kept += 1
    evicted: dict[tuple[int, int], int] = {}
    inserted: dict[tuple[int, int], int] = {}
    replaced = set()
    for i, line in enumerate(new):
        for j, p in enumerate(line.parts):
            before = was.get(p.instead_of)
            if p.number in was:
                continue
            if before is None:
                inserted[i, j] = len(p.block.plain)
                continue
            replaced.add(p.instead_of)
            was_said, said = before[2].block.plain, p.block.plain
            front = len(_front([was_said, said]))
            back = min(len(_front([was_said[::-1], said[::-1]])), min(len(was_said), len(said)) - front)
            evicted[before[0], before[1]] = len(was_said) - front - back
            inserted[i, j] = len(said) - front - back
    for number, (i, j, p) in was.items():
        if number not in now and number not in replaced:
            evicted[i, j] = len(p.block.plain)
    return kept, {k: v for k, v in evicted.items() if v}, {k: v for k, v in inserted.items() if v}


def _front(texts: list[str]) -> str:
    """What both texts begin with."""
    a, b = texts
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return a[:count]
