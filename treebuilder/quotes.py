"""Is this text a quotation of that one? Line by line, so that a summary is found inside whatever a harness wraps it in.

A harness that puts a summary (or a subagent's prompt or report) somewhere else copies its lines verbatim: it trims
tags, adds a preamble, indents. So a quotation is measured as the share of the source's characters whose lines occur in
the target; where lines were re-wrapped, runs of 48 characters are looked for instead.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from recorder.message import Message

MIN_LINE = 8
"""Characters; shorter lines (`</summary>`, `done`) occur by chance. Ours, from the captures."""
MIN_CHARS = 16
"""Characters that must match in all before two texts are called related. Ours, from the captures."""
RUN = 48


@dataclass(frozen=True, slots=True)
class Quote:
    chars: int
    """Characters of the source that occur in the target, in whole lines or runs."""
    share: float
    """Of the source's characters in lines of at least `MIN_LINE`."""

    @property
    def found(self) -> bool:
        return self.chars >= MIN_CHARS and self.share >= 0.25


NOTHING = Quote(0, 0.0)


def lines(text: str) -> tuple[str, ...]:
    """The lines that can identify a text: stripped, at least `MIN_LINE` long."""
    return tuple(line for line in (raw.strip() for raw in text.split("\n")) if len(line) >= MIN_LINE)


def quote(source: str, target: str) -> Quote:
    """How much of the source the target repeats."""
    wanted = lines(source)
    total = sum(map(len, wanted))
    if not total:
        whole = source.strip()
        return Quote(len(whole), 1.0) if whole and whole in target else NOTHING
    found = sum(len(line) for line in wanted if line in target)
    if found * 4 < total:
        runs = [source[i : i + RUN] for i in range(0, len(source) - RUN + 1, RUN)]
        hits = sum(1 for run in runs if run in target)
        found = max(found, hits * RUN) if hits > 1 else found
    return Quote(found, min(1.0, found / total))


def visible(messages: Iterable[Message]) -> str:
    """The text of messages, tool calls' arguments left out: where a quotation can stand."""
    return "\n".join(b.plain for m in messages for b in m.blocks if b.kind in ("text", "tool_result", "other"))
