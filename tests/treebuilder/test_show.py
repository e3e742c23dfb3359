"""The picture: one line a call, folded appends, amounts that are never cut, at any width."""

from dataclasses import replace

import orjson
import pytest
from recording import Recording, said
from rich.console import Console
from simulate import CAPTURES, text

from recorder.importing import read_har
from treebuilder.build import build
from treebuilder.rows import rows
from treebuilder.show import amount, line, render
from treebuilder.show_lines import lines
from treebuilder.tree import Trajectory


def tree(name: str) -> Trajectory:
    return build(replace(call, seq=i + 1) for i, call in enumerate(read_har(CAPTURES / f"{name}.har")))


def drawn(name: str, width: int, *, fold: bool = True) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render(tree(name), fold=fold))
    return [one.rstrip() for one in capture.get().splitlines()]


def test_a_compacted_session_steps_to_the_right_where_it_was_summarised() -> None:
    assert drawn("claude-code/autocompact", 80) == [
        "                    call  msgs  chars    left   came",
        "8f42102a-33ff-4414-b9b6-92a70b4f493f  10 calls · 3 branches · claude-code · cla…",
        "● root                 1     2   9.1k",
        "│ +3 appends         2-4     8  10.7k          +1.7k",
        "├╴summary_request      5     8  16.3k          +5.6k",
        "╰● summarized          6     5  10.1k  -10.4k  +9.7k",
        " │ +4 appends       7-10    14  10.7k           +630",
    ]


def test_wide_terminals_get_bars_and_reasons() -> None:
    cleared, append = drawn("opencode/prune_anthropic", 120)[4:6]
    assert cleared.startswith("╰● cleared             8        13       96.0k ██▌         -286.1k     +220  0.95 ")
    assert append == " │ append              9        15       96.0k ██▌                      +21"


def test_alike_asides_are_one_line() -> None:
    counts = [one for one in drawn("claude-code/manualcompact", 80) if "count_tokens" in one]
    assert [" ".join(one.split()) for one in counts] == ["○ 24 times count_tokens 11-34 1 3"]


def test_unfolded_every_call_has_its_line() -> None:
    assert sum("append" in one for one in drawn("claude-code/autocompact", 80, fold=False)) == 7


@pytest.mark.parametrize("name", ["claude-code/subagent", "opencode/serve_revert_anthropic", "claude-code/errors_429"])
@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    assert max(map(len, drawn(name, width))) <= width


@pytest.mark.parametrize("width", [48, 60, 80, 100, 160])
def test_amounts_are_whole_at_any_width(width: int) -> None:
    (cleared,) = [one for one in drawn("opencode/prune_anthropic", width) if "cleared" in one]
    assert "96.0k" in cleared
    assert "-286.1k" in cleared
    assert "+220" in cleared


def test_agents_name_the_call_that_started_them() -> None:
    said = drawn("claude-code/subagent", 100)
    assert "  agent a5556614661ad39…, started by call 1" in said
    assert "  agent a070609a9133a11…, forked from call 14" in said
    assert any("prompt given i" in one for one in said)


def test_evidence_names_calls_as_people_know_them() -> None:
    (summarized,) = [one for one in lines(tree("claude-code/autocompact")) if one.kind == "summarized"]
    assert "structure:quotes 0.71 of the reply of call 5" in summarized.evidence


def test_a_call_that_failed_says_how() -> None:
    said = [" ".join(one.split()) for one in drawn("claude-code/errors_429", 100)]
    assert any(one.startswith("● root 1 2") and one.endswith("http error 429") for one in said)


def test_edits_far_to_the_right_stay_in_the_window() -> None:
    made = Recording()
    made.send(text("user", "start"), reply=said("answer"))
    for i in range(30):  # each goes on from the start in other words
        made.send(text("user", "start"), said("answer"), text("user", f"try number {i} of many"), reply=said(f"no {i}"))
    console = Console(width=60, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render(made.tree))
    assert max(map(len, capture.get().splitlines())) <= 60


def test_nothing_to_show_is_nothing() -> None:
    console = Console(width=60)
    with console.capture() as capture:
        console.print(render(build([])))
    assert capture.get().strip() == ""


def test_lines_as_data_are_the_lines_of_the_picture() -> None:
    told = [orjson.loads(orjson.dumps(one)) for one in lines(tree("claude-code/autocompact"))]
    assert [(one["kind"], one["calls"], one["branch"], one["evicted"]) for one in told] == [
        ("root", ["1"], 0, 0),
        ("append", ["2", "3", "4"], 0, 0),
        ("summary_request", ["5"], 0, 0),
        ("summarized", ["6"], 1, 10410),
        ("append", ["7", "8", "9", "10"], 1, 0),
    ]
    assert len(list(lines(tree("claude-code/autocompact"), fold=False))) == 10


def test_amounts_are_short() -> None:
    assert [amount(n) for n in (0, 999, 1000, 9_140, 999_400, 1_250_000)] == [
        "0", "999", "1.0k", "9.1k", "999.4k", "1.2M",
    ]  # fmt: skip


def test_a_row_as_plain_text_names_thread_kind_and_amounts() -> None:
    made = [line(row) for row in rows(build(read_har(CAPTURES / "opencode" / "prune_anthropic.har")))]
    assert "cleared" in made[7]
    assert "-286.1k +220" in made[7]
