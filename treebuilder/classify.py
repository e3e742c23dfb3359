"""From an edit to its kind, by structure alone: which messages left, which changed in place, what stands behind them.

kept front │ removed or changed │ kept behind │ grown
nothing removed or changed                          append
removed up to the end of the old view               rewound
removed, with a kept tail behind                    deleted, or window_dropped when the oldest turns went
changed in place                                    cleared, truncated, thinking_dropped, reminder_moved, system_changed
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from recorder.message import Block, Head, Message
from treebuilder.diff import Edit, Hunk
from treebuilder.quotes import MIN_CHARS
from treebuilder.spans import common_front
from treebuilder.tree import Kind

WINDOW_SHARE = 0.5
"""Of the old messages; a window that slides drops more at once than a person deletes. Ours."""


NOTICE_CHARS = 200
"""A result that makes room for no more than this, and says something else, made room for a notice. Ours."""


class Change(StrEnum):
    """What happened to a message that stayed in its place."""

    RESULT_CLEARED = "tool result replaced by something short"
    RESULT_TRUNCATED = "tool result cut short"
    RESULT_CHANGED = "tool result changed"
    THINKING_GONE = "thinking gone"
    TEXT = "text came or went"
    CALL = "tool call changed"
    CALL_CAME = "tool calls put in"
    SYSTEM = "system message changed"
    GREW = "blocks added behind"
    BLANKS = "blanks at a text's end"


@dataclass(frozen=True, slots=True)
class Shape:
    """An edit told by messages."""

    removed: tuple[int, ...]
    """Indices of old messages without counterpart."""
    changes: Counter[Change]
    """Over messages that have a counterpart; one message may count for several."""
    put_in: int
    """New messages that stand before something kept."""
    kept_behind: int
    """Old messages that stand unchanged behind the first removed one, or changed by more than text."""
    added: int
    """New messages behind everything kept."""
    last_changed: bool
    """The last old message changed in place."""
    put_in_chars: int = 0


def shape(edit: Edit, old: Sequence[Message], *, echo: int | None = None) -> Shape:
    """`echo`: where the new prefix holds the old call's reply; what stands before it is the old view, changed."""
    removed: list[int] = []
    changes: Counter[Change] = Counter()
    put_in = added = put_in_chars = 0
    rewritten: list[int] = []
    last_changed = False
    for hunk in edit.hunks:
        gone = old[hunk.old_start : hunk.old_stop]
        at_end = hunk.old_stop == len(old)
        same_length = at_end and echo is not None and echo - hunk.new_start == len(gone)
        pairs = _pairs(gone, hunk, at_end=at_end, same_length=same_length)
        paired_new = [j for _, j in pairs]
        lost = [hunk.old_start + i for i in range(len(gone)) if i not in {i for i, _ in pairs}]
        removed.extend(lost)
        behind = max(paired_new, default=-1)
        for j, message in enumerate(hunk.inserted):
            if at_end and j > behind:
                added += 1
            elif j not in paired_new:
                put_in += 1
                put_in_chars += message.size_chars
        for i, j in pairs:
            last = at_end and i == len(gone) - 1
            how = _changes(gone[i], hunk.inserted[j], last=last)
            changes.update(how)
            if how <= {Change.TEXT, Change.GREW}:
                rewritten.append(hunk.old_start + i)
            last_changed |= last
    lost_set = {*removed, *rewritten}
    kept_behind = sum(1 for i in range(removed[0], len(old)) if i not in lost_set) if removed else 0
    return Shape(tuple(removed), changes, put_in, kept_behind, added, last_changed, put_in_chars)


def _keys(message: Message) -> set[object]:
    ids: set[object] = {(b.kind, b.id) for b in message.blocks if b.id}
    return ids | set(message.block_hashes)


def _pairs(gone: Sequence[Message], hunk: Hunk, *, at_end: bool, same_length: bool) -> list[tuple[int, int]]:
    """Old and new messages of a hunk that are one message changed, in order."""
    new = hunk.inserted
    found: list[tuple[int, int]] = []
    at = 0
    keys_new = [_keys(m) for m in new]
    for i, message in enumerate(gone):
        keys = _keys(message)
        for j in range(at, len(new)):
            if new[j].role == message.role and keys & keys_new[j]:
                found.append((i, j))
                at = j + 1
                break
    same_length |= not at_end and len(gone) == len(new)
    if not found and same_length and [m.role for m in gone] == [m.role for m in new[: len(gone)]]:
        return [(i, i) for i in range(len(gone))]
    if not found and gone and new and gone[0].role == new[0].role == "system":
        return [(0, 0)]
    return found


def _changes(old: Message, new: Message, *, last: bool) -> set[Change]:
    if old.role == "system":
        return {Change.SYSTEM}
    if _bare(old) == _bare(new):
        return {Change.BLANKS}
    if last and new.block_hashes[: len(old.blocks)] == old.block_hashes:
        return {Change.GREW}
    found: set[Change] = set()
    same = Counter(old.block_hashes) & Counter(new.block_hashes)
    gone = _rest(old, same)
    came = _rest(new, same)
    results = {b.id: b for b in came if b.kind == "tool_result"}
    for block in gone:
        match block.kind:
            case "tool_result":
                other = results.pop(block.id, None)
                found.add(Change.RESULT_CLEARED if other is None else result_change(block.plain, other.plain))
            case "thinking":
                found.add(Change.THINKING_GONE)
            case "tool_call":
                found.add(Change.CALL)
            case _:
                found.add(Change.TEXT)
    known = {b.id for b in gone if b.kind == "tool_call"}
    if any(b.kind == "tool_call" and b.id and b.id not in known for b in came) and Change.CALL not in found:
        found.add(Change.CALL_CAME)
    if any(b.kind in ("text", "image", "other") for b in came):
        found.add(Change.TEXT)
    if Change.THINKING_GONE in found:
        found.discard(Change.TEXT)  # reasoning that became plain text, as on a switch of models
    return found or {Change.TEXT}


def _bare(message: Message) -> list[Block]:
    return [replace(b, text=b.text.strip()) if b.kind == "text" else b for b in message.blocks]


def _rest(message: Message, same: Counter[bytes]) -> list[Block]:
    left = same.copy()
    rest = []
    for block, hash_ in zip(message.blocks, message.block_hashes, strict=True):
        if left[hash_] > 0:
            left[hash_] -= 1
        else:
            rest.append(block)
    return rest


def result_change(old: str, new: str) -> Change:
    """Cut short: what is left repeats the old at its front or back. Cleared: something else, and short."""
    a, b = old.strip(), new.strip()
    limit = min(len(a), len(b))
    front = common_front(a, b, limit)
    back = common_front(a[::-1], b[::-1], limit)
    if len(b) >= len(a):
        notice = len(b) <= NOTICE_CHARS and max(front, back) * 4 < limit
        return Change.RESULT_CLEARED if notice else Change.RESULT_CHANGED
    return Change.RESULT_TRUNCATED if b and max(front, back, front + back) * 2 >= len(b) else Change.RESULT_CLEARED


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: Kind
    confidence: float
    evidence: tuple[str, ...]


def head_change(old: Head, new: Head) -> tuple[Kind, str] | None:
    """What changed before the messages. A model's name alone is no content: the view is the same."""
    system, tools = old.system != new.system, old.tools != new.tools
    if not system and not tools:
        return None
    if old.model != new.model:
        return Kind.MODEL_SWITCHED, f"structure:model {old.model} -> {new.model} with another head"
    if system:
        return Kind.SYSTEM_CHANGED, "structure:system text differs"
    names_old, names_new = {t.name for t in old.tools}, {t.name for t in new.tools}
    return Kind.TOOLS_CHANGED, f"structure:tools +{len(names_new - names_old)} -{len(names_old - names_new)}"


def judge(
    edit: Edit,
    old: Sequence[Message],
    new: Sequence[Message],
    *,
    echo: int | None,
    replied: bool,
    slid_before: bool,
    unsampled_chars: int = 0,
) -> Verdict:
    """The kind of an edit that is no pure growth. `echo`: where the new view holds the old call's reply;
    `replied`: there was a whole one; `slid_before`: an earlier edit of this thread removed from the same place;
    `unsampled_chars`: text that came in the model's name though the model was not seen to say it."""
    s = shape(edit, old, echo=echo)
    if s.removed and unsampled_chars >= MIN_CHARS:
        said = f"structure:{unsampled_chars} characters in the model's name that it did not sample"
        return Verdict(Kind.SUMMARIZED, 0.6, (f"structure:{len(s.removed)} of {len(old)} messages removed", said))
    if s.removed:
        return _removed(s, edit, old, new, slid_before=slid_before)
    for change, kind, sure in (
        (Change.RESULT_CLEARED, Kind.CLEARED, 0.95),
        (Change.RESULT_TRUNCATED, Kind.TRUNCATED, 0.9),
        (Change.THINKING_GONE, Kind.THINKING_DROPPED, 0.9),
    ):
        if s.changes[change]:
            return Verdict(kind, sure, (f"structure:{change} x{s.changes[change]}",))
    if s.last_changed and s.changes[Change.GREW]:
        if replied and echo is None:
            return Verdict(Kind.SUMMARY_REQUEST, 0.5, ("structure:same view asked again with more text behind",))
        return Verdict(Kind.APPEND, 0.8, ("structure:last message grew",))
    if s.last_changed and echo is None and s.changes[Change.TEXT]:
        return Verdict(Kind.REWOUND, 0.7, ("structure:last message rewritten",))
    if s.changes[Change.SYSTEM]:
        if edit.hunks[0].old_start == 0:
            return Verdict(Kind.SYSTEM_CHANGED, 0.9, ("structure:leading system message differs",))
        return Verdict(Kind.REMINDER_MOVED, 0.8, ("structure:system message changed in place",))
    if s.changes[Change.CALL_CAME]:
        return Verdict(Kind.UNKNOWN, 0.5, (f"structure:{Change.CALL_CAME} x{s.changes[Change.CALL_CAME]}",))
    if s.changes[Change.TEXT] or s.put_in:
        return Verdict(Kind.REMINDER_MOVED, 0.85, (f"structure:text changed in place, {s.put_in} messages put in",))
    if s.changes[Change.BLANKS]:
        return Verdict(Kind.APPEND, 0.9, ("structure:blanks at a text's end differ",))
    if s.changes[Change.RESULT_CHANGED] or s.changes[Change.CALL]:
        return Verdict(Kind.UNKNOWN, 0.5, ("structure:" + ", ".join(sorted(s.changes)),))
    return Verdict(Kind.UNKNOWN, 0.3, ("structure:no rule fits",))


def _removed(s: Shape, edit: Edit, old: Sequence[Message], new: Sequence[Message], *, slid_before: bool) -> Verdict:
    count, of = len(s.removed), len(old)
    said = f"structure:{count} of {of} messages removed"
    if s.changes[Change.RESULT_CLEARED] and s.kept_behind > count:
        return Verdict(Kind.CLEARED, 0.6, (said, f"structure:{Change.RESULT_CLEARED}"))
    if not s.kept_behind:
        if edit.kept == 0 and len(new) < of and any(m.role == "assistant" for m in new):
            return Verdict(Kind.SUMMARIZED, 0.4, (said, "structure:all replaced by something shorter"))
        return Verdict(Kind.REWOUND, 0.9 if edit.kept else 0.4, (said + " at the end",))
    if s.put_in and s.put_in_chars >= 200:
        return Verdict(Kind.SUMMARIZED, 0.5, (said, f"structure:{s.put_in_chars} characters stand in their place"))
    if all(old[i].role == "system" for i in s.removed):
        return Verdict(Kind.REMINDER_MOVED, 0.8, (said, "structure:system messages only"))
    if _oldest(s.removed, old) and (
        slid_before
        or count >= WINDOW_SHARE * of
        or any(old[i].role == "user" and not _carries_results(old[i]) for i in s.removed[:1])
        or (new and _carries_results(new[-1]))
    ):
        return Verdict(Kind.WINDOW_DROPPED, 0.8, (said, "structure:the oldest, head and tail kept"))
    return Verdict(Kind.DELETED, 0.8, (said, f"structure:{s.kept_behind} kept behind"))


def _carries_results(message: Message) -> bool:
    return message.role == "tool" or any(b.kind == "tool_result" for b in message.blocks)


def _oldest(removed: Sequence[int], old: Sequence[Message]) -> bool:
    """One run, behind nothing but system messages and at most one user message."""
    first = removed[0]
    if list(removed) != list(range(first, first + len(removed))):
        return False
    before = [m.role for m in old[:first] if m.role != "system"]
    return before in ([], ["user"])
