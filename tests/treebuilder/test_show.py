"""The picture: one line a call, folded appends, amounts, at any width."""

from rich.console import Console
from simulate import CAPTURES

from recorder.importing import read_har
from treebuilder.build import build
from treebuilder.show import amount, line, render, render_diff
from treebuilder.tree import rows


def drawn(name: str, width: int, *, fold: bool = True) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render(build(read_har(CAPTURES / f"{name}.har")), fold=fold))
    return [one.rstrip() for one in capture.get().splitlines()]


def test_a_compacted_session_steps_to_the_right_where_it_was_summarised() -> None:
    assert drawn("claude-code/autocompact", 80) == [
        "8f42102a-33ff-4414-b9b6-92a70b4f493f  10 calls · 3 branches · claude-code · cla…",
        "● root                  003   2 msgs 9.1k",
        "│ +3 appends        004-006   8 msgs 10.7k            +1.7k",
        "├╴summary_request       007   8 msgs 16.3k            +5.6k",
        "╰● summarized           008   5 msgs 10.1k   -10.4k   +9.7k",
        " │ +4 appends       009-014  14 msgs 10.7k             +630",
        "",
    ]


def test_alike_asides_are_one_line() -> None:
    counts = [one for one in drawn("claude-code/manualcompact", 80) if "count_tokens" in one]
    assert counts == ["○ 24 times count_tokens 029-052   1 msgs 3"]


def test_unfolded_every_call_has_its_line() -> None:
    assert sum("append" in one for one in drawn("claude-code/autocompact", 80, fold=False)) == 7


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (60, 80, 100, 140):
        assert max(map(len, drawn("claude-code/subagent", width))) <= width


def test_wide_terminals_get_bars_and_evidence() -> None:
    last = next(one for one in drawn("claude-code/autocompact", 140) if "summarized" in one)
    assert "█" in last
    assert "0.99" in last


def test_amounts_are_short() -> None:
    assert [amount(n) for n in (0, 999, 1000, 9_140, 999_400, 1_250_000)] == [
        "0", "999", "1.0k", "9.1k", "999.4k", "1.2M",
    ]  # fmt: skip


def test_a_row_as_plain_text_names_thread_kind_and_amounts() -> None:
    made = [line(row) for row in rows(build(read_har(CAPTURES / "opencode" / "prune_anthropic.har")))]
    assert "cleared" in made[7]
    assert "-286.1k +220" in made[7]


def test_a_diff_of_two_calls_tells_the_wire_from_what_the_model_sees() -> None:
    calls = list(read_har(CAPTURES / "opencode" / "prune_anthropic.har"))
    told = render_diff(calls[6], calls[7]).plain
    assert "~ messages" in told
    assert "2 of 11 leading messages kept" in told
    assert "- message 2 user tool_result" in told
