"""A trajectory in the terminal: one line a call, going right where the context was edited and down where it grew.

                        call  messages  characters           left   came  sure, why
    ● root                 1         2        9.1k █████▌
    │ +3 appends         2-4         8       10.7k ██████▋          +1.7k
    ├╴summary_request      5         8       16.3k ██████████       +5.6k  1.00 x-claude-code-compaction=auto
    ╰● summarized          6         5       10.1k ██████▏  -10.4k  +9.7k  0.99 This session is being continued ...
     │ +4 appends       7-10        14       10.7k ██████▌           +630

Each step to the right is a branch that training sees as a row of its own; nothing follows a leg (`├╴`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from treebuilder.rows import Row
from treebuilder.show_lines import Line, lines
from treebuilder.tree import Kind, Trajectory, Turn

WIDE = 100
"""Columns from which sizes get bars and reasons are shown."""
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
TITLES = ("", "call", "messages", "characters", "left", "came", "sure, why")
SHORT = ("", "call", "msgs", "chars", "left", "came", "")
STYLES = ("", "dim", "dim", "", "red", "green", "dim")
NAME, MESSAGES, SIZE, WHY = 0, 2, 3, 6
"""Columns."""
PLACES = ("header:session=", "header:agent=", "link:previous ", "structure:nothing kept")
"""Evidence of where a call belongs, not of what it did."""


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
class Picture:
    """Draws itself to the width that it is given."""

    trajectory: Trajectory
    fold: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = list(lines(self.trajectory, fold=self.fold))
        if not drawn:
            return
        columns = _Columns.fit(drawn, options.max_width)
        yield columns.titles()
        most: dict[str, int] = {}
        for one in drawn:
            most[one.session] = max(most.get(one.session, 0), one.characters)
        titles = self._titles()
        before = ""
        for one in drawn:
            if one.session != before:
                if before:
                    yield Text()
                yield titles[one.session]
                before = one.session
            heading = _heading(one) if one.opens else ""
            if heading:
                yield Text(heading, style="italic dim", no_wrap=True, overflow="ellipsis")
            yield columns.row(one, most[one.session])

    def _titles(self) -> dict[str, Text]:
        """By session."""
        turns: dict[str, list[Turn]] = {}
        for turn in self.trajectory:
            turns.setdefault(turn.session, []).append(turn)
        branches = Counter(self.trajectory.turns[branch.turns[0]].session for branch in self.trajectory.branches)
        return {session: _title(session, mine, branches[session]) for session, mine in turns.items()}


def _title(session: str, turns: Sequence[Turn], branches: int) -> Text:
    harness = next((t.hints.harness for t in turns if t.hints.harness), "")
    models = ", ".join(dict.fromkeys(t.head.model for t in turns if t.head.model and not t.kind.aside))
    counts = (_count(len(turns), "call", "calls"), _count(branches, "branch", "branches"))
    said = " · ".join(x for x in (*counts, harness, models) if x)
    text = Text(session, style="bold", no_wrap=True, overflow="ellipsis")
    return text.append(f"  {said}", style="dim")


def _heading(first: Line) -> str:
    """Of a thread that is no session's main one from nothing."""
    how = "forked from" if first.kind is Kind.FORKED or first.lane == "main" else "started by"
    whence = f"{how} call {first.source}" if first.source is not None else ""
    if first.lane == "main":
        return f"  {whence}" if whence else ""
    what, _, id_ = first.lane.partition(":")
    name = f"{what} {id_ if len(id_) <= 16 else id_[:15] + '…'}" if id_ else what
    return f"  {name}, {whence}" if whence else f"  {name}"


@dataclass(frozen=True, slots=True)
class _Columns:
    """Widths that all sessions share, so that numbers stand below each other."""

    widths: tuple[int, ...]
    """Characters; 0 = left out."""
    wide: bool

    @classmethod
    def fit(cls, drawn: Sequence[Line], width: int) -> "_Columns":
        """Amounts are never cut: where it is tight, reasons are left out, then messages, then names get shorter."""
        wide = width >= WIDE
        titles = TITLES if wide else SHORT
        cells = [_texts(one) for one in drawn]
        widths = [max(len(titles[i]), *(len(texts[i]) for texts in cells)) for i in range(len(titles))]
        widths[NAME] = max(widths[NAME], 18)
        widths[SIZE] += BAR + 1 if wide else 0
        widths[WHY] = widths[WHY] if wide else 0
        if not wide and widths[NAME] + _taken(widths[1:]) > width:
            widths[MESSAGES] = 0
        fixed = _taken(widths[1:WHY])
        if wide:
            widths[NAME] = min(widths[NAME], max(18, width - fixed - 22))
            widths[WHY] = min(widths[WHY], width - fixed - widths[NAME] - 2)
        else:
            widths[NAME] = min(widths[NAME], max(8, width - fixed))
        return cls(tuple(widths), wide)

    def titles(self) -> Text:
        titles = list(TITLES if self.wide else SHORT)
        cells = [Text(_put(t, w, left=i in (NAME, WHY)), "dim") for i, (t, w) in enumerate(self._sized(titles))]
        if self.wide:
            cells[SIZE] = Text(titles[SIZE].ljust(self.widths[SIZE]), "dim")
        return self._join(cells)

    def row(self, one: Line, most: int) -> Text:
        cells = [
            Text(_put(text, width, left=i in (NAME, WHY)), STYLES[i])
            for i, (text, width) in enumerate(self._sized(_texts(one)))
        ]
        gutter = len(_gutter(one))
        cells[NAME].stylize("dim", 0, gutter)
        cells[NAME].stylize(_colour(one.kind), gutter)
        if self.wide:
            cells[SIZE] = _bar(one.characters, most, self.widths[SIZE])
        if one.failed or one.opaque:
            cells[WHY].stylize("not dim yellow")
        return self._join(cells)

    def _sized(self, texts: Sequence[str]) -> list[tuple[str, int]]:
        return list(zip(texts, self.widths, strict=True))

    def _join(self, cells: Sequence[Text]) -> Text:
        joined = Text("  ", no_wrap=True, overflow="crop").join(
            [c for c, w in zip(cells, self.widths, strict=True) if w]
        )
        joined.rstrip()
        return joined


def _texts(one: Line) -> tuple[str, ...]:
    """Column by column."""
    return (
        _gutter(one) + _said(one),
        one.calls[0] if len(one.calls) == 1 else f"{one.calls[0]}-{one.calls[-1]}",
        str(one.messages),
        amount(one.characters),
        f"-{amount(one.evicted)}" if one.evicted else "",
        f"+{amount(one.inserted)}" if one.inserted else "",
        _why(one),
    )


def _gutter(one: Line) -> str:
    pad = " " * min(one.branch, DEEPEST)
    if one.kind.aside:
        return pad + "○ "
    if one.opens:
        return pad + "● "
    if one.kind in (Kind.SUMMARY_REQUEST, Kind.RETRY):
        return pad + "├╴"
    if one.kind is Kind.APPEND:
        return pad + "│ "
    return " " * min(one.branch - 1, DEEPEST) + ("╰● " if one.branch <= DEEPEST else "● ")


def _said(one: Line) -> str:
    if len(one.calls) == 1:
        return str(one.kind)
    return f"{len(one.calls)} times {one.kind}" if one.kind.aside else f"+{len(one.calls)} appends"


def _why(one: Line) -> str:
    """How a call failed, what cannot be known, or the best reason for the kind; empty = nothing to explain."""
    if one.failed:
        return one.failed[0] if len(one.calls) == 1 else f"{len(one.failed)} failed: {one.failed[0]}"
    if one.opaque:
        return f"opaque: {one.opaque}"
    if one.kind is Kind.APPEND or (one.kind is Kind.ROOT and one.source is None):
        return ""
    said = [e for e in one.evidence if not e.startswith(PLACES)] or list(one.evidence)
    return f"{one.confidence:.2f} {said[0].partition(':')[2]}" if said else ""


def _taken(widths: Sequence[int]) -> int:
    """By columns and the two blanks in front of each."""
    return sum(w + 2 for w in widths if w)


def _put(text: str, width: int, *, left: bool) -> str:
    cut = text if len(text) <= width else text[: width - 1] + "…" if width > 0 else ""
    return cut.ljust(width) if left else cut.rjust(width)


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _colour(kind: Kind) -> str:
    return "dim" if kind.aside else COLOURS.get(kind, "bold yellow")


def _bar(chars: int, most: int, width: int) -> Text:
    eighths = round(chars / most * BAR * 8) if most else 0
    bar = "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
    return Text(f"{amount(chars):>{width - BAR - 1}} ").append(f"{bar:<{BAR}}", style="cyan")
