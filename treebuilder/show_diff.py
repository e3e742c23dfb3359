"""Two calls side by side: what changed on the wire, key by key, and what changed for the model, span by span."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from recorder import canonical
from recorder.call import Call
from recorder.encoding import decode
from recorder.message import Exchange, Head, Message
from recorder.wire import Opaque, read
from treebuilder.diff import Edit, Span, diff
from treebuilder.show import amount
from treebuilder.tree import Trajectory, Turn

SHOWN = 80
"""Characters of a span's text in the terminal; JSON has all of it."""
RESPONSES = "openai_responses"
UNKNOWN = "earlier items unknown"
"""How `Turn.opaque` begins where the items in front were not recorded."""
MOST_KEYS = 24
"""Keys shown in the terminal."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the request body that differs."""

    change: str
    """added | removed | changed"""
    key: str
    """`messages[4].content`: the way down to what differs; as far as both bodies have the same shape."""


@dataclass(frozen=True, slots=True)
class Raw:
    """The difference of the bytes that were sent."""

    bytes: tuple[int, int]
    """As on the wire."""
    equal: bool
    """Byte for byte."""
    keys: tuple[Key, ...]
    unreadable: str
    """Why the bodies cannot be compared key by key; empty = they can."""


@dataclass(frozen=True, slots=True)
class Part:
    """A span, and what it says."""

    message: int
    role: str
    block: int
    kind: str
    name: str
    start: int
    """Characters into the block's plain text."""
    stop: int
    chars: int
    whole: bool
    """All of the block."""
    text: str


@dataclass(frozen=True, slots=True)
class Canonical:
    """The difference of what the model sees."""

    rules: int
    """Version of the list of what it cannot see, `recorder.canonical`."""
    messages: tuple[int, int]
    kept: int
    """Leading messages that both have."""
    head: tuple[str, ...]
    """What differs in front of the messages: model, system, tools."""
    evicted: tuple[Part, ...]
    inserted: tuple[Part, ...]
    moved: tuple[tuple[Part, Part], ...]
    evicted_chars: int
    inserted_chars: int


@dataclass(frozen=True, slots=True)
class Difference:
    """As `memorywalker diff --json` prints it."""

    calls: tuple[int, int]
    raw: Raw
    canonical: Canonical | None
    """None = a call cannot be read, or names earlier items that nobody recorded."""
    unreadable: str


def difference(first: Call, second: Call, *, tree: Callable[[], Trajectory]) -> Difference:
    """`tree`: of all that is recorded; asked for where a call sends only what is new behind an earlier reply."""
    calls = first.seq, second.seq
    old, new = read(first), read(second)
    if any(isinstance(one, Exchange) and one.hints.previous_id and one.wire == RESPONSES for one in (old, new)):
        turns = {turn.call.seq: turn for turn in tree()}
        old, new = (_whole(one, turns.get(seq)) for one, seq in zip((old, new), calls, strict=True))
    for call, one in ((first, old), (second, new)):
        if not isinstance(one, Exchange):
            return Difference(calls, _raw(first, second), None, f"call {call.seq} cannot be read: {one.reason}")
    assert isinstance(old, Exchange)
    assert isinstance(new, Exchange)
    edit = diff(old.messages, new.messages)
    told = Canonical(
        rules=canonical.VERSION,
        messages=(len(old.messages), len(new.messages)),
        kept=edit.kept,
        head=tuple(_head(old.head, new.head)),
        evicted=_parts(edit.evicted, old.messages),
        inserted=_parts(edit.inserted, new.messages),
        moved=_moved(edit, old.messages, new.messages),
        evicted_chars=edit.evicted_chars,
        inserted_chars=edit.inserted_chars,
    )
    return Difference(calls, _raw(first, second), told, "")


def _whole(one: Exchange | Opaque, turn: Turn | None) -> Exchange | Opaque:
    """With the items in front that were not sent again."""
    if not isinstance(one, Exchange) or turn is None:
        return one
    return Opaque(one.wire, turn.opaque) if turn.opaque.startswith(UNKNOWN) else turn.exchange


def render_diff(told: Difference) -> Text:
    """For a terminal: the wire first, then what the model sees."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("on the wire", style="bold")
    text.append(f"  {told.raw.bytes[0]:,} and {told.raw.bytes[1]:,} bytes\n", style="dim")
    if told.raw.equal:
        text.append("  equal byte for byte\n")
    elif told.raw.unreadable:
        text.append(f"  {told.raw.unreadable}\n", style="yellow")
    elif not told.raw.keys:
        text.append("  other bytes, the same JSON\n")
    for one in told.raw.keys[:MOST_KEYS]:
        sign, style = _SIGNS[one.change]
        text.append(f"  {sign} {one.key}\n", style=style)
    if len(told.raw.keys) > MOST_KEYS:
        text.append(f"  and {len(told.raw.keys) - MOST_KEYS} more; --json has them all\n", style="dim")
    text.append("what the model sees", style="bold")
    if told.canonical is None:
        return text.append(f"\n  {told.unreadable}\n", style="yellow")
    _append(text, told.canonical)
    return text


_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


def _append(text: Text, told: Canonical) -> None:
    gone, came = amount(told.evicted_chars), amount(told.inserted_chars)
    text.append(
        f"  {told.kept} of {told.messages[0]} leading messages kept; {gone} characters left, {came} came\n", style="dim"
    )
    for name in told.head:
        text.append(f"  ~ {name}\n", style="yellow")
    if not told.head and not told.evicted and not told.inserted and not told.moved:
        text.append("  the same\n")
    for sign, parts, style in (("-", told.evicted, "red"), ("+", told.inserted, "green")):
        for part in parts:
            text.append(f"  {sign} {_quote(part)}\n", style=style)
    for a, b in told.moved:
        text.append(f"  > message {a.message} to {b.message}: {_quote(a)}\n", style="blue")


def _quote(part: Part) -> str:
    said = " ".join(part.text[: SHOWN * 3].split())
    shown = said if len(said) <= SHOWN else said[: SHOWN - 1] + "…"
    where = "" if part.whole else f" [{part.start}:{part.stop}]"
    what = " ".join(x for x in (part.kind, part.name) if x)
    return f"message {part.message} {part.role} {what}{where} {amount(part.chars)}: {shown}"


def _parts(spans: Sequence[Span], messages: Sequence[Message]) -> tuple[Part, ...]:
    return tuple(_part(span, messages) for span in spans)


def _part(span: Span, messages: Sequence[Message]) -> Part:
    message = messages[span.message]
    block = message.blocks[span.block]
    whole = span.start == 0 and span.stop == len(block.plain)
    return Part(
        message=span.message,
        role=message.role,
        block=span.block,
        kind=block.kind,
        name=block.name,
        start=span.start,
        stop=span.stop,
        chars=span.chars,
        whole=whole,
        text=block.plain[span.start : span.stop],
    )


def _moved(edit: Edit, old: Sequence[Message], new: Sequence[Message]) -> tuple[tuple[Part, Part], ...]:
    return tuple((_part(a, old), _part(b, new)) for a, b in edit.moved)


def _head(old: Head, new: Head) -> Iterator[str]:
    if old.model != new.model:
        yield f"model {old.model} -> {new.model}"
    if old.system != new.system:
        yield "system text"
    if old.tools != new.tools:
        lost = [t.name for t in old.tools if t not in new.tools]
        won = [t.name for t in new.tools if t not in old.tools]
        yield "tools: " + (", ".join([*(f"-{n}" for n in lost), *(f"+{n}" for n in won)]) or "other order")


def _raw(first: Call, second: Call) -> Raw:
    size = len(first.request_body), len(second.request_body)
    if first.request_body == second.request_body:
        return Raw(size, True, (), "")
    bodies = []
    for call in (first, second):
        try:
            bodies.append(canonical.loads(decode(call.request_body, call.request_header("content-encoding"))))
        except ValueError:
            return Raw(size, False, (), f"the body of call {call.seq} is no JSON")
    old, new = bodies
    return Raw(size, False, tuple(_keys(old, new, "")), "")


def _keys(old: object, new: object, at: str) -> Iterator[Key]:
    """Where two JSON values differ, as deep as objects and lists go."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            where = f"{at}.{key}" if at else str(key)
            if key not in new:
                yield Key("removed", where)
            elif key not in old:
                yield Key("added", where)
            else:
                yield from _keys(old[key], new[key], where)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _items(old, new, at)
    else:
        yield Key("changed", at or "the body")


def _items(old: list[object], new: list[object], at: str) -> Iterator[Key]:
    limit = min(len(old), len(new))
    front = next((i for i in range(limit) if old[i] != new[i]), limit)
    back = next((i for i in range(limit - front) if old[-1 - i] != new[-1 - i]), limit - front)
    both = limit - back
    for i in range(front, both):
        yield from _keys(old[i], new[i], f"{at}[{i}]")
    for some, change in ((old, "removed"), (new, "added")):
        if len(some) - back > both:
            yield Key(change, f"{at}[{both}:{len(some) - back}]")
