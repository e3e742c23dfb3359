"""What sessions earned: a number by name, given from outside, with the group it is to be compared in.

    {"session": "8f42102a-33ff-4414-b9b6-92a70b4f493f", "value": 1.0, "name": "tests", "group": "task-7"}

`name` is `reward` unless given, `group` is left to whoever compares.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from sqlalchemy import Connection, delete, insert, select

from recorder import rows, schema
from recorder.errors import MemorywalkerError, RewardError

NAME = "reward"
"""The name of a reward that is given none."""
_FIELDS = ("session", "value", "name", "group")


@dataclass(frozen=True, slots=True)
class Reward:
    session: str
    """The session's id, as `sessions` or `tree` print it."""
    value: float
    name: str = NAME
    group: str | None = None
    """Sessions of one group are compared with each other; None = not said: those with the same first prompt."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise RewardError(f"reward of {self.session}: expected a finite number, got {self.value}")


def read(file: Path, *, known: Callable[[Reward], Reward] = lambda one: one) -> Iterator[Reward]:
    """The rewards of a JSONL file, empty lines left out. RewardError names file and line, also for what `known` says,
    which may give a session's whole name."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as e:
        raise RewardError(f"{file}: expected a file of rewards, got {e.strerror}") from e
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                one = known(_reward(line))
            except (ValueError, MemorywalkerError) as e:
                raise RewardError(f"{file}:{number}: {e}") from e
            yield one


def _reward(line: bytes) -> Reward:
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError as e:
        raise ValueError(f"expected a JSON object, got {e}") from e
    if not isinstance(said, dict):
        raise ValueError(f"expected a JSON object, got {type(said).__name__}")
    if unknown := [name for name in said if name not in _FIELDS]:
        raise ValueError(f"expected the fields {', '.join(_FIELDS)}, got {unknown[0]!r}")
    session, value = said.get("session"), said.get("value")
    name, group = said.get("name", NAME), said.get("group")
    if not isinstance(session, str) or not session:
        raise ValueError(f"expected `session` to be a session's id, got {session!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected `value` to be a number, got {value!r}")
    if not isinstance(name, str) or not name:
        raise ValueError(f"expected `name` to be text, got {name!r}")
    if group is not None and not isinstance(group, str):
        raise ValueError(f"expected `group` to be text, got {group!r}")
    return Reward(session, float(value), name, group)


def put(connection: Connection, rewards: Iterable[Reward]) -> None:
    """Store them; one of the same session and name is replaced."""
    r = schema.reward.c
    for one in rewards:
        session, name = rows.key(one.session), rows.key(one.name)
        connection.execute(delete(schema.reward).where((r.session == session) & (r.name == name)))
        group = None if one.group is None else rows.key(one.group)
        values = {"session": session, "name": name, "value": one.value, "group": group}
        connection.execute(insert(schema.reward), values)


def remove(connection: Connection, sessions: Sequence[str], name: str) -> int:
    """Forget the rewards of some sessions by that name; how many there were."""
    r = schema.reward.c
    done = connection.execute(
        delete(schema.reward).where(r.session.in_([rows.key(s) for s in sessions]) & (r.name == rows.key(name)))
    )
    return int(done.rowcount)


def get(connection: Connection, name: str | None) -> list[Reward]:
    """All, or those of one name, ordered by session and name."""
    r = schema.reward.c
    query = select(r.session, r.value, r.name, r.group).order_by(r.session, r.name)
    if name is not None:
        query = query.where(r.name == rows.key(name))
    return [Reward(*row) for row in connection.execute(query)]
