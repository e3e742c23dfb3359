"""Where the ids that an engine served differ from those that the chat template gives, and why.

    template        the messages are all there, in other wording around them
    retokenisation  the same text in other tokens
    edit            text of the messages is not there: the engine was given, or had sampled, something else

Served ids are what trains; a difference is told, never mended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np

from recorder.message import Block, Message
from trainer.sample import Ids

SHOWN = 16
WINDOW = 256  # ours: tokens behind the first difference that must read the same to be the same text
_CUT = 8  # ours: characters at a window's end that a token cut in two may have garbled


class Cause(StrEnum):
    TEMPLATE = "template"
    RETOKENISATION = "retokenisation"
    EDIT = "edit"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first one of a call."""

    where: Literal["prompt", "completion"]
    at: int
    """Index of the first token that differs, within the prompt or the completion."""
    cause: Cause
    detail: str
    """Served text and rendered text from there on, or what is missing."""


@dataclass(slots=True)
class Comparison:
    """Compares call after call; a difference seen before is judged by what was found then."""

    decode: Callable[[Sequence[int]], str]
    _judged: dict[tuple[int, bytes, bytes], tuple[Cause, str]] = field(default_factory=dict)

    def forget(self) -> None:
        self._judged.clear()

    def prompt(self, served: Ids, rendered: Ids, messages: Sequence[Message]) -> Difference | None:
        return self._difference("prompt", served, rendered, [b for m in messages for b in m.blocks])

    def completion(self, served: Ids, rendered: Ids, reply: Message) -> Difference | None:
        return self._difference("completion", served, rendered, reply.blocks)

    def _difference(
        self, where: Literal["prompt", "completion"], served: Ids, rendered: Ids, blocks: Sequence[Block]
    ) -> Difference | None:
        if np.array_equal(served, rendered):
            return None
        at = first_difference(served, rendered)
        ends = served[at : at + WINDOW], rendered[at : at + WINDOW]
        key = (at, ends[0].tobytes(), ends[1].tobytes())
        if where == "completion" or key not in self._judged:
            self._judged[key] = self._judge(served, ends, blocks)
        return Difference(where, at, *self._judged[key])

    def _judge(self, served: Ids, ends: tuple[Ids, Ids], blocks: Sequence[Block]) -> tuple[Cause, str]:
        ours, theirs = (self.decode(ids.tolist()) for ids in ends)
        size = min(len(ours), len(theirs)) - (_CUT if max(map(len, ends)) == WINDOW else 0)
        told = f"{_shown(ours)} where the template has {_shown(theirs)}"
        if ours[:size] == theirs[:size] and (size == len(ours) == len(theirs) or max(map(len, ends)) == WINDOW):
            return Cause.RETOKENISATION, told
        whole, last = self.decode(served.tolist()), 0
        for text in _texts(blocks):
            found = whole.find(text, last)
            if found < 0:
                return Cause.EDIT, f"expected {_shown(text)}, got none of it; {told}"
            last = found + len(text)
        return Cause.TEMPLATE, told


def first_difference(a: Ids, b: Ids) -> int:
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size


def _texts(blocks: Sequence[Block]) -> list[str]:
    """What every template shows as it is: texts and results of tools; thinking may be dropped."""
    found = []
    for block in blocks:
        if block.kind in ("text", "tool_result"):
            found += [t for t in (block.text.strip(), *_texts(block.parts)) if t]
    return found


def _shown(text: str) -> str:
    return repr(text[:SHOWN] + ("..." if len(text) > SHOWN else ""))
