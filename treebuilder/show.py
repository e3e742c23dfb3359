"""A trajectory in the terminal: one line a call, going right where the context was edited and down where it grew.

    ● root               call 3    2 msgs   9.1k
    │ +3 appends
    ├╴summary_request    call 7    8 msgs  16.9k            a leg: nothing follows it
    ╰● summarized        call 8    5 msgs   9.2k  -10.7k +9.0k
     │ +6 appends

Each step to the right is a branch that training sees as a row of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from recorder.call import Call
from recorder.encoding import decode
from recorder.message import Exchange, Message
from recorder.wire import read
from treebuilder.diff import Span, diff
from treebuilder.tree import Kind, Row, Thread, Trajectory, Turn

WIDE = 100
"""Columns from which sizes get bars and evidence is shown."""
DEEPEST = 12
"""Steps to the right that are drawn; later branches stay below each other."""
BAR = 10
COLOURS = {
    Kind.ROOT: "bold",
    Kind.APPEND: "green",
    Kind.RETRY: "bright_black",
    Kind.SUMMARY_REQUEST: "yellow",
    Kind.SUMMARIZED: "bold magenta",
    Kind.CLEARED: "bold red",
    Kind.TRUNCATED: "red",
    Kind.THINKING_DROPPED: "red",
    Kind.WINDOW_DROPPED: "bold red",
    Kind.REWOUND: "bold cyan",
    Kind.DELETED: "bold red",
    Kind.REMINDER_MOVED: "blue",
    Kind.FORKED: "bold blue",
    Kind.UNKNOWN: "bold white on red",
}
"""Kinds not named here change the head or stand aside: see `_colour`."""


def amount(chars: int) -> str:
    """`941`, `9.1k`, `1.2M` characters."""
    if chars < 1000:
        return str(chars)
    return f"{chars / 1000:.1f}k" if chars < 999_500 else f"{chars / 1e6:.1f}M"


def line(row: Row) -> str:
    """A call as one line of plain text."""
    changes = f"-{amount(row.evicted.chars)} +{amount(row.inserted.chars)}"
    sure = f"{row.confidence:.2f}"
    what = row.source or f"call {row.seq}"
    opaque = f"  opaque: {row.opaque}" if row.opaque else ""
    return f"{row.seq:>5} {row.thread:<26} {row.kind:<16} {row.prefix:>4} {changes:>14} {sure}  {what}{opaque}"


def render(trajectory: Trajectory, *, fold: bool = True) -> "Picture":
    """The whole trajectory, session by session. `fold`: runs of appends, and of alike asides, become one line."""
    return Picture(trajectory, fold)


@dataclass(frozen=True, slots=True)
class _Line:
    gutter: str
    turns: tuple[Turn, ...]
    """More than one: a folded run."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Draws itself to the width that it is given."""

    trajectory: Trajectory
    fold: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        threads = self.trajectory.threads
        for session in self.trajectory.sessions:
            mine = [t for t in threads if t.session == session]
            yield self._title(session, mine)
            yield self._table(sorted(mine, key=lambda t: (_rank(t), t.turns[0])), options.max_width)
            yield Text()

    def _title(self, session: str, threads: Sequence[Thread]) -> Text:
        turns = [self.trajectory.turns[i] for t in threads for i in t.turns]
        harness = next((t.hints.harness for t in turns if t.hints.harness), "")
        models = ", ".join(dict.fromkeys(t.head.model for t in turns if t.head.model and not t.kind.aside))
        inside = {t.index for t in turns}
        branches = sum(1 for b in self.trajectory.branches if b.turns[0] in inside)
        text = Text(session, style="bold", no_wrap=True, overflow="ellipsis")
        counts = (_count(len(turns), "call", "calls"), _count(branches, "branch", "branches"))
        said = " · ".join(x for x in (*counts, harness, models) if x)
        return text.append(f"  {said}", style="dim")

    def _table(self, threads: Sequence[Thread], width: int) -> Table:
        wide = width >= WIDE
        drawn = [(thread, list(self._lines([self.trajectory.turns[i] for i in thread.turns]))) for thread in threads]
        most = max((self.trajectory.turns[i].chars for thread in threads for i in thread.turns), default=0)
        table = Table.grid(padding=(0, 1))
        stem = max(len(one.gutter) + len(_said(one)) for _, lines in drawn for one in lines)
        table.add_column(no_wrap=True, min_width=max(stem, 19))
        table.add_column(justify="right", no_wrap=True, min_width=7)
        table.add_column(justify="right", no_wrap=True, min_width=8)
        table.add_column(justify="left", no_wrap=True, min_width=BAR + 7 if wide else 6)
        table.add_column(justify="right", no_wrap=True, min_width=7)
        table.add_column(justify="right", no_wrap=True, min_width=7)
        if wide:
            table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(16, width - max(stem, 19) - 58))
        for thread, lines in drawn:
            head = self._heading(thread)
            if head:
                table.add_row(Text(head, style="italic dim"))
            for one in lines:
                table.add_row(*_cells(one, most, wide=wide))
        return table

    def _heading(self, thread: Thread) -> str:
        """Of a thread that is no session's main one from nothing."""
        first = self.trajectory.turns[thread.turns[0]]
        source = first.origin if first.origin is not None else thread.parent
        came = f" < {_number(self.trajectory.turns[source])}" if source is not None else ""
        if thread.lane == "main":
            return f"from {self.trajectory.turns[source].thread}{came}" if source is not None else ""
        name = thread.lane if len(thread.lane) <= 16 else f"{thread.lane[:15]}…"
        return f"  {name}{came}"

    def _lines(self, turns: Sequence[Turn]) -> Iterator[_Line]:
        level = 0
        run: list[Turn] = []
        for at, turn in enumerate(turns):
            pad = " " * min(level, DEEPEST)
            if run and (turn.kind is not run[0].kind or turn.opaque):
                yield _folded(pad, run)
                run = []
            if self.fold and not turn.opaque and (turn.kind is Kind.APPEND or turn.kind.aside):
                run.append(turn)
            elif turn.kind.aside:
                yield _Line(pad + "○ ", (turn,))
            elif at == 0:
                yield _Line(pad + "● ", (turn,))
            elif turn.kind in (Kind.SUMMARY_REQUEST, Kind.RETRY):
                yield _Line(pad + "├╴", (turn,))
            elif turn.kind is Kind.APPEND:
                yield _Line(pad + "│ ", (turn,))
            else:
                level += 1
                deep = level <= DEEPEST
                yield _Line(" " * min(level - 1, DEEPEST) + ("╰● " if deep else "● "), (turn,))
        if run:
            yield _folded(" " * min(level, DEEPEST), run)


def _folded(pad: str, run: Sequence[Turn]) -> _Line:
    return _Line(pad + ("○ " if run[0].kind.aside else "│ "), tuple(run))


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _rank(thread: Thread) -> int:
    return 0 if thread.lane == "main" else 1 if thread.lane.startswith("agent:") else 2


def _number(turn: Turn) -> str:
    return str(turn.call.seq) if turn.call.seq else turn.call.source.partition("#")[2] or str(turn.index)


def _colour(kind: Kind) -> str:
    return "dim" if kind.aside else COLOURS.get(kind, "bold yellow")


def _said(one: _Line) -> str:
    kind = one.turns[0].kind
    if len(one.turns) == 1:
        return str(kind)
    return f"{len(one.turns)} times {kind}" if kind.aside else f"+{len(one.turns)} appends"


def _cells(one: _Line, most: int, *, wide: bool) -> list[Text]:
    last = one.turns[-1]
    style = _colour(last.kind)
    if last.kind is Kind.APPEND:
        style = "green"
    first, end = _number(one.turns[0]), _number(last)
    evicted = sum(t.edit.evicted_chars for t in one.turns if t.edit)
    inserted = sum(t.edit.inserted_chars for t in one.turns if t.edit)
    cells = [
        Text(one.gutter, style="dim").append(_said(one), style=style),
        Text(f"{first}-{end}" if len(one.turns) > 1 else end, style="dim"),
        Text(f"{last.depth} msgs", style="dim"),
        _bar(last.chars, most) if wide else Text(amount(last.chars)),
        Text(f"-{amount(evicted)}" if evicted else "", style="red"),
        Text(f"+{amount(inserted)}" if inserted else "", style="green"),
    ]
    return [*cells, _remark(last)] if wide else cells


def _remark(turn: Turn) -> Text:
    if turn.opaque:
        return Text(f"opaque: {turn.opaque}", style="bold yellow")
    if turn.kind is Kind.APPEND or not turn.evidence:
        return Text()
    said = [e for e in turn.evidence if not e.startswith("header:session=")] or list(turn.evidence)
    return Text(f"{turn.confidence:.2f} {said[-1].partition(':')[2]}", style="dim")


def _bar(chars: int, most: int) -> Text:
    eighths = round(chars / most * BAR * 8) if most else 0
    bar = "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
    return Text(f"{amount(chars):>6} ").append(f"{bar:<{BAR}}", style="cyan")


def render_diff(first: Call, second: Call) -> Text:
    """What changed between two calls: on the wire, key by key, then in what the model sees, span by span."""
    text = Text()
    text.append("on the wire\n", style="bold")
    for remark in _raw(first, second):
        text.append(f"  {remark}\n")
    old, new = read(first), read(second)
    text.append("what the model sees\n", style="bold")
    for one in (old, new):
        if not isinstance(one, Exchange):
            return text.append(f"  cannot be read: {one.reason}\n", style="yellow")
    assert isinstance(old, Exchange)
    assert isinstance(new, Exchange)
    if old.head.digest != new.head.digest:
        text.append("  system text or tools differ\n", style="yellow")
    edit = diff(old.messages, new.messages)
    text.append(f"  {edit.kept} of {len(old.messages)} leading messages kept\n")
    for mark, spans, messages, style in (
        ("-", edit.evicted, old.messages, "red"),
        ("+", edit.inserted, new.messages, "green"),
    ):
        for span in spans:
            text.append(f"  {mark} {_quote(span, messages)}\n", style=style)
    for a, b in edit.moved:
        text.append(f"  > message {a.message} -> {b.message}: {a.chars} characters moved\n", style="blue")
    return text


def _quote(span: Span, messages: Sequence[Message]) -> str:
    message = messages[span.message]
    block = message.blocks[span.block]
    said = " ".join(block.plain[span.start : min(span.stop, span.start + 200)].split())
    shown = said if len(said) <= 80 else said[:79] + "…"
    part = f"[{span.start}:{span.stop}]" if span.start or span.stop < len(block.plain) else ""
    return f"message {span.message} {message.role} {block.kind}{part} {amount(span.chars)}: {shown}"


def _raw(first: Call, second: Call) -> Iterator[str]:
    yield f"{len(first.request_body)} and {len(second.request_body)} bytes"
    if first.request_body == second.request_body:
        yield "equal byte for byte"
        return
    bodies = []
    for call in (first, second):
        try:
            body = orjson.loads(decode(call.request_body, call.request_header("content-encoding")))
        except (orjson.JSONDecodeError, ValueError):
            yield "a body is no JSON"
            return
        bodies.append(body if isinstance(body, dict) else {})
    old, new = bodies
    for key in dict.fromkeys((*old, *new)):
        if key not in new:
            yield f"- {key}"
        elif key not in old:
            yield f"+ {key}"
        elif old[key] != new[key]:
            yield f"~ {key}"
