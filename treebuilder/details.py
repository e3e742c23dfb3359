"""Finer than the kind: what exactly an edit did, and which sampled replies live on behind it.

A kind is one word for the whole call; several of these can hold at once, beside any kind.
"""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from recorder.call import Outcome
from recorder.message import Block, Message
from treebuilder.classify import Change, result_change
from treebuilder.diff import Span
from treebuilder.tree import Kind, Turn

_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:[\w.@+-]+[/\\])*[\w.@+-]*\w")
_LIMIT = ("max_tokens", "length", "max_output_tokens", "MAX_TOKENS")
_INTERRUPTED = "[Request interrupted by user"  # Claude Code 2.1; a recording whose wording was replaced keeps it


class Detail(StrEnum):
    SERVER_EVICTED = "evicted by the server"
    RESULT_NOTICE = "tool result replaced by a notice"
    RESULT_POINTER = "tool result replaced by a pointer to a file"
    RESULT_CUT = "tool result cut short"
    THINKING_DROPPED = "thinking dropped"
    INTERRUPTED = "interrupted"
    CONTINUED = "continued after a cut"
    REMINDER_ADDED = "reminder added"
    REMINDER_DROPPED = "reminder dropped"
    REMINDER_MOVED = "reminder moved"


def details(turn: Turn, before: Turn | None) -> tuple[Detail, ...]:
    """Everything that holds of this turn. `before`: the turn it was compared with."""
    found = {Detail.SERVER_EVICTED} if turn.reply is not None and turn.reply.server_edits else set()
    if before is not None and not turn.kind.aside:
        found |= _after(turn, before)
        if turn.edit is not None and turn.kind not in (Kind.APPEND, Kind.RETRY, Kind.SUMMARY_REQUEST):
            found |= _edited(turn, before)
    return tuple(d for d in Detail if d in found)


def survivors(turn: Turn, before: Turn | None) -> tuple[int, ...]:
    """Turns whose reply stands, word for word, behind the place of the edit; for a turn that edits."""
    if before is None or turn.kind.aside or turn.prefix == before.depth:
        return ()
    return tuple(dict.fromkeys(echo.turn for echo in turn.echoes if echo.exact))


def _after(turn: Turn, before: Turn) -> set[Detail]:
    """How the reply before ended, where this call goes on from it."""
    reply = before.reply
    added = turn.messages[before.depth :] if turn.prefix == before.depth else ()
    if any(_INTERRUPTED in b.text for m in added for b in m.blocks if b.kind == "text"):
        return {Detail.INTERRUPTED}
    if turn.kind is Kind.RETRY or reply is None or not reply.message.blocks:
        return set()
    if before.call.outcome is Outcome.ABORTED:
        return {Detail.INTERRUPTED}
    held = any(echo.turn == before.index for echo in turn.echoes)
    cut = before.call.outcome in (Outcome.TRUNCATED, Outcome.STREAM_ERROR) or reply.stop_reason in _LIMIT
    return {Detail.CONTINUED} if held and cut else set()


def _edited(turn: Turn, before: Turn) -> set[Detail]:
    old, new = before.messages, turn.messages
    found: set[Detail] = set()
    results = {b.id: b for m in new[turn.prefix :] for b in m.blocks if b.kind == "tool_result" and b.id}
    for block in (b for m in old[turn.prefix :] for b in m.blocks if b.kind == "tool_result"):
        other = results.get(block.id)
        if other is not None and other != block:
            match result_change(block.plain, other.plain):
                case Change.RESULT_TRUNCATED:
                    found.add(Detail.RESULT_CUT)
                case Change.RESULT_CLEARED:
                    found.add(Detail.RESULT_POINTER if _points(block, other) else Detail.RESULT_NOTICE)
                case _:
                    pass
    if turn.kind in (Kind.THINKING_DROPPED, Kind.MODEL_SWITCHED) and any(
        b.kind == "thinking" for b in _lost(turn, old)
    ):
        found.add(Detail.THINKING_DROPPED)
    return found | (_reminders(turn, old, new) if turn.kind is Kind.REMINDER_MOVED else set())


def _points(old: Block, new: Block) -> bool:
    """The new text names a place that the old one did not."""
    return any(path not in old.plain for path in _PATH.findall(new.plain))


def _lost(turn: Turn, old: Sequence[Message]) -> Iterator[Block]:
    for span in turn.edit.evicted if turn.edit else ():
        yield old[span.message].blocks[span.block]


def _reminders(turn: Turn, old: Sequence[Message], new: Sequence[Message]) -> set[Detail]:
    edit = turn.edit
    assert edit is not None
    tail = max((h.new_start + h.old_stop - h.old_start for h in edit.hunks if h.old_stop == len(old)), default=len(new))
    came = [_text(new, s) for s in edit.inserted]
    inside = [_text(new, s) for s in edit.inserted if s.message < tail]
    gone = [_text(old, s) for s in edit.evicted]
    moved = [g for g in gone if len(g) > 1 and any(g in c for c in came)]
    if edit.moved or moved:
        return {Detail.REMINDER_MOVED}
    found = {Detail.REMINDER_DROPPED} if any(gone) else set()
    return found | ({Detail.REMINDER_ADDED} if any(inside) else set())


def _text(messages: Sequence[Message], span: Span) -> str:
    return messages[span.message].blocks[span.block].plain[span.start : span.stop].strip()
