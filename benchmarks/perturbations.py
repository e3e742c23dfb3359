"""Labelled sessions as another harness, another recorder or another day would have shown them; the labels stay true.

Rules that were made looking at some recordings may know these by heart. Each function here takes away or changes
something that a rule could lean on, and leaves alone what makes a call the kind it is.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from recorder import canonical
from recorder.call import Call
from recorder.message import Block, Exchange, Head, Hints, Message, Tool
from recorder.scrub import Scrubber
from treebuilder import wording
from treebuilder.lineage import delegated


@dataclass(frozen=True, slots=True)
class Item:
    """A call with its meaning and the truth about it."""

    call: Call
    exchange: Exchange
    lane: str
    kind: str
    thread: str
    """Session and lane, as the labels name them."""
    counted: bool = True
    """False = the change made its truth unknowable."""


Perturb = Callable[[Sequence[Item], random.Random], list[Item]]


def as_recorded(items: Sequence[Item], rng: random.Random) -> list[Item]:
    return list(items)


def _texts(item: Item, change: Callable[[Block], Block]) -> Item:
    """Every block of prefix, reply and system text changed by one function."""

    def block(b: Block) -> Block:
        made = change(b)
        return replace(made, parts=tuple(map(block, b.parts))) if b.parts else made

    def message(m: Message) -> Message:
        return Message(m.role, tuple(map(block, m.blocks)))

    e = item.exchange
    head = Head(e.head.model, tuple(map(block, e.head.system)), e.head.tools)
    reply = replace(e.reply, message=message(e.reply.message)) if e.reply else None
    return replace(item, exchange=replace(e, head=head, messages=tuple(map(message, e.messages)), reply=reply))


def other_words(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """Every line of every text another one, no harness's phrase kept."""
    scrubber = Scrubber(salt=rng.randbytes(8))

    def leaves(value: object) -> object:
        if isinstance(value, dict):
            return {key: leaves(item) for key, item in value.items()}
        return [leaves(item) for item in value] if isinstance(value, list) else _scrubbed(value)

    def _scrubbed(value: object) -> object:
        return scrubber.text(value) if isinstance(value, str) else value

    def change(b: Block) -> Block:
        if b.kind == "tool_call":
            try:
                return replace(b, text=canonical.dumps(leaves(canonical.loads(b.text))))
            except ValueError:
                pass
        return b if b.kind == "image" else replace(b, text=scrubber.text(b.text))

    return [_texts(i, change) for i in items]


def other_phrases(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """Only what harnesses are known to write is put otherwise; all else stays."""
    known = re.compile("|".join(map(re.escape, sorted(wording.KNOWN, key=len, reverse=True))))
    said = {phrase: f"phrase {rng.randrange(10**6)} of another house" for phrase in wording.KNOWN}
    return [_texts(i, lambda b: replace(b, text=known.sub(lambda m: said[m[0]], b.text))) for i in items]


def other_tools(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """Other names of tools, other ids of calls."""
    names: dict[str, str] = {}
    ids: dict[str, str] = {}

    def change(b: Block) -> Block:
        name = names.setdefault(b.name, f"tool_{len(names)}") if b.kind in ("tool_call", "tool_result") else b.name
        return replace(b, name=b.name and name, id=b.id and ids.setdefault(b.id, f"id_{len(ids)}"))

    found = []
    for item in items:
        made = _texts(item, change)
        head = made.exchange.head
        tools = tuple(Tool(names.setdefault(t.name, f"tool_{len(names)}"), t.description, t.schema) for t in head.tools)
        found.append(replace(made, exchange=replace(made.exchange, head=replace(head, tools=tools))))
    return found


def no_tool_ids(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """A wire format that ties results to calls by their order alone, and so always sends all."""
    return [replace(_texts(i, lambda b: replace(b, id="")), counted=".ws" not in i.call.source) for i in items]


def fewer_headers(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """A random half of what headers and ids say is not said, in the whole recording; but for what is left unsent."""
    gone = {f.name: "" for f in fields(Hints) if rng.random() < 0.5 and f.name != "previous_id"}
    return [_hints(i, replace(i.exchange.hints, **gone)) for i in items]


def no_headers(items: Sequence[Item], rng: random.Random) -> list[Item]:
    return [_hints(i, Hints(previous_id=i.exchange.hints.previous_id)) for i in items]


def _hints(item: Item, hints: Hints) -> Item:
    return replace(item, exchange=replace(item.exchange, hints=hints))


def no_side_calls(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """A recorder that was told to leave out helpers."""
    return [i for i in items if i.kind not in ("side_call", "count_tokens", "warmup")]


def no_summary_requests(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """The summary was made elsewhere: it is quoted from nothing that was recorded."""
    return [i for i in items if i.kind != "summary_request"]


def late_arrivals(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """Neighbours of two threads change places, where neither started the other."""
    made = list(items)
    for at in range(len(made) - 1):
        a, b = made[at], made[at + 1]
        if rng.random() < 0.5 and a.thread != b.thread and {a.kind, b.kind} <= {"append", "count_tokens", "retry"}:
            made[at], made[at + 1] = b, a
    return made


def ends_early(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """The recording stops at random. A request for a summary that nothing quotes any more is not counted."""
    made = list(items[: rng.randrange(1, len(items) + 1)])
    followed = set()
    for at in range(len(made) - 1, -1, -1):
        item = made[at]
        if item.kind in ("summary_request", "side_call", "forked") and item.thread.partition("|")[0] not in followed:
            made[at] = replace(item, counted=False)
        if item.lane == "main":
            followed.add(item.thread.partition("|")[0])
    return made


def begins_late(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """The recording starts at random: what comes first of a thread is its root now."""
    start = rng.randrange(len(items))
    made = list(items[start:])
    orphans = {i.thread for i in items[: start + 1] if i.lane.startswith("agent:")}
    orphans |= {i.thread for i in made if i.kind == "root" and i.lane != "main" and _started_by(i, items[:start])}
    deltas = any(".ws" in i.call.source for i in made)
    made = [replace(i, counted=False) if deltas or i.thread in orphans else i for i in made]  # what came first is lost
    seen: set[str] = set()
    for at, item in enumerate(made):
        if item.kind in ("count_tokens", "warmup"):
            continue
        if item.thread not in seen and item.kind not in ("root", "side_call", "summary_request"):
            made[at] = replace(item, kind="root", counted=item.counted and item.kind in ("append", "retry"))
        elif item.thread not in seen and item.kind in ("summary_request", "side_call"):
            made[at] = replace(item, counted=False)
        if item.kind != "summary_request" or item.lane != "main":
            seen.add(item.thread)
    return made


def _started_by(item: Item, before: Sequence[Item]) -> bool:
    """One of those calls' replies handed this one its prompt."""
    prompt = [b for m in item.exchange.messages[:4] if m.role == "user" for b in m.blocks]
    replies = [i.exchange.reply.message for i in before if i.exchange.reply]
    return any(b.kind == "tool_call" and delegated(b, prompt) for m in replies for b in m.blocks)


def lost_calls(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """A fifth of the calls between two appends was lost."""
    last: dict[str, int] = {}
    gone = set()
    if any(".ws" in i.call.source for i in items):
        return list(items)  # what was left unsent would be lost with it
    for at, item in enumerate(items):
        before = last.get(item.thread)
        if (
            before is not None
            and item.kind == items[before].kind == "append"
            and before - 1 not in gone
            and not any(i.kind == "root" for i in items[before : at + 1])
            and rng.random() < 0.2
        ):
            gone.add(before)
        if item.kind not in ("count_tokens", "warmup"):
            last[item.thread] = at
    return [i for at, i in enumerate(items) if at not in gone]


ALONE: dict[str, Perturb] = {
    "as recorded": as_recorded,
    "every line in other words": other_words,
    "harness's phrases put otherwise": other_phrases,
    "tools and calls named otherwise": other_tools,
    "no ids of tool calls": no_tool_ids,
    "half of the headers": fewer_headers,
    "no headers at all": no_headers,
    "no side calls": no_side_calls,
    "no summary requests": no_summary_requests,
    "neighbours swapped": late_arrivals,
    "ends early": ends_early,
    "begins late": begins_late,
    "calls lost": lost_calls,
}


def interleaved(recordings: Sequence[Sequence[Item]], rng: random.Random) -> list[Item]:
    """Two recordings in one, each in its own order."""
    queues = [list(r) for r in recordings]
    made = []
    while any(queues):
        queue = rng.choice([q for q in queues if q])
        made.append(queue.pop(0))
    return made


def pairs(count: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    order = list(range(count))
    rng.shuffle(order)
    yield from zip(order, order[1:] + order[:1], strict=True)


def share(rows: Sequence[bool]) -> str:
    right = Counter(rows)[True]
    return f"{right:,} of {len(rows):,} ({right / max(1, len(rows)):.1%})"
