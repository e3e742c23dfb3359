"""The command line as a user meets it: what it prints, its exit codes, and one line for whatever is wrong."""

import json
import socket
import sys
from pathlib import Path

import pytest

import memorywalker

CAPTURES = Path(__file__).parent / "captures"
LABELLED = (
    "claude-code/autocompact",
    "claude-code/manualcompact",
    "claude-code/multiturn",
    "claude-code/subagent",
    "opencode/compact_auto_anthropic",
    "opencode/prune_anthropic",
    "opencode/tools_anthropic",
    "opencode/tools_anthropic_thinking",
    "opencode/tools_chat",
    "opencode/tools_responses",
)


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "traces.db")


@pytest.fixture
def compacted(db: str, capsys: pytest.CaptureFixture[str]) -> str:
    """A database with one Claude Code session that was compacted."""
    assert memorywalker.main(["import", str(CAPTURES / "claude-code/autocompact.har"), "--db", db]) == 0
    capsys.readouterr()
    return db


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and the one line on stderr; nothing on stdout."""
    code = memorywalker.main(words)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("memorywalker: ")
    return code, err.removeprefix("memorywalker: ").rstrip("\n")


@pytest.mark.parametrize("name", LABELLED)
def test_the_tree_of_a_capture_has_the_lanes_and_kinds_of_its_labels(
    name: str, db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memorywalker.main(["import", str(CAPTURES / f"{name}.har"), "--db", db]) == 0
    assert memorywalker.main(["verify", "--db", db]) == 0
    capsys.readouterr()
    assert memorywalker.main(["tree", "--json", "--db", db]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    labels = json.loads((CAPTURES / "labels.json").read_text())[name]
    stem = name.split("/")[1]
    expected = [(f"{stem}.har#{one['entry']}", one["session"], one["lane"], one["kind"]) for one in labels]
    assert [(r["source"], r["session"], r["lane"], r["kind"]) for r in rows] == expected
    fields = "seq source session thread lane kind prefix evicted inserted confidence evidence opaque"
    assert all(list(row) == [*fields.split(), "details", "quotes", "survivors"] for row in rows)


def test_half_a_surrogate_pair_is_printed_as_json_escapes_it() -> None:
    from recorder.store import Fault

    assert memorywalker._dumps(Fault(3, "cut at \ud83d")) == '{"seq":3,"what":"cut at \\ud83d"}'
    assert memorywalker._dumps(Fault(3, "é")) == '{"seq":3,"what":"é"}'


def test_importing_a_file_again_adds_nothing(compacted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        memorywalker.main(["import", "--json", str(CAPTURES / "claude-code/autocompact.har"), "--db", compacted]) == 0
    )
    done = json.loads(capsys.readouterr().out)
    assert (done["added"], done["already"], done["others"]) == (0, 10, 4)


def test_sessions_are_told_by_their_own_id(compacted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert memorywalker.main(["sessions", "--json", "--db", compacted]) == 0
    (one,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert one["session"] == "8f42102a-33ff-4414-b9b6-92a70b4f493f"
    assert (one["harness"], one["calls"], one["models"]) == ("claude-code", 10, ["claude-opus-5-5"])


def test_calls_show_how_each_ended_and_what_it_used(compacted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert memorywalker.main(["calls", "8f42", "--json", "--db", compacted]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["messages"] for r in rows] == [2, 4, 6, 8, 8, 5, 8, 10, 12, 14]
    assert {r["outcome"] for r in rows} == {"complete"}
    assert rows[0]["usage"] == {"input": 19000, "output": 42, "cache_read": 1000, "cache_write": 0}


def test_the_drawn_tree_shows_the_fork_and_folds_appends(compacted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert memorywalker.main(["show", "--db", compacted]) == 0
    drawn = capsys.readouterr().out
    assert "summarized" in drawn
    assert "+3 appends" in drawn
    assert "2-4" in drawn


def test_the_lines_of_the_tree_and_a_difference_are_json_for_programs(
    compacted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memorywalker.main(["show", "8f42", "--json", "--db", compacted]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["kind"], one["calls"]) for one in lines][2:4] == [("summary_request", ["5"]), ("summarized", ["6"])]
    assert memorywalker.main(["diff", "4", "6", "--json", "--db", compacted]) == 0
    (told,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told["calls"] == [4, 6]
    assert told["canonical"]["evicted_chars"] == 10410
    assert {"change": "changed", "key": "diagnostics.previous_message_id"} in told["raw"]["keys"]


def test_calls_can_be_asked_for_by_what_is_known_of_them(compacted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert memorywalker.main(["calls", "--json", "--min-size", "50k", "--db", compacted]) == 0
    assert [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()] == [5]  # 51,925 B, the summary
    assert memorywalker.main(["calls", "--outcome", "aborted", "--db", compacted]) == 0
    assert capsys.readouterr().out == ""


def test_usage_is_summed_by_session(compacted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert memorywalker.main(["sessions", "--usage", "--json", "--db", compacted]) == 0
    (one,) = map(json.loads, capsys.readouterr().out.splitlines())
    # 19 + 39 + 59 + 90 + 92 + 8 + 8.5 + 9 + 10 + 10.5 thousand; nine calls read 1000 from the cache
    assert (one["usage"]["input"], one["usage"]["cache_read"], one["usage"]["output"]) == (345_000, 9_000, 420)


def test_stats_say_what_the_final_transcript_of_a_session_loses(
    compacted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memorywalker.main(["sessions", "--stats", "--json", "--db", compacted]) == 0
    (one,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one["session"][:8], one["calls"], one["branches"]) == ("8f42102a", 10, 3)
    assert list(one["evicted_chars"]) == ["summarized"]
    assert (one["replies"], one["replies_lost"], one["replies_shifted"]) == (10, 5, 0)  # four and the summary itself
    assert memorywalker.main(["sessions", "--stats", "--db", compacted]) == 0
    names, row = capsys.readouterr().out.splitlines()
    assert names.split()[:3] == ["session", "calls", "branches"]
    assert row.split()[:3] == [one["session"], "10", "3"]


def test_stats_and_usage_are_two_tables(compacted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert memorywalker.main(["sessions", "--stats", "--usage", "--db", compacted]) == 2
    assert capsys.readouterr().err == "memorywalker: expected --usage or --stats, got both\n"


def test_a_scrubbed_recording_has_the_same_tree_and_other_words(
    compacted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again = str(tmp_path / "scrubbed.har"), str(tmp_path / "again.db")
    assert memorywalker.main(["scrub", "--out", out, "--db", compacted]) == 0
    assert memorywalker.main(["import", out, "--db", again]) == 0
    capsys.readouterr()
    kinds = []
    for db in (compacted, again):
        assert memorywalker.main(["tree", "--json", "--db", db]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        kinds.append([(r["lane"], r["kind"], r["prefix"]) for r in rows])
    assert kinds[0] == kinds[1]
    assert "near the limit" in (CAPTURES / "claude-code/autocompact.har").read_text()
    assert "near the limit" not in Path(out).read_text()


@pytest.mark.parametrize("words", [["run"], ["run", "--"], ["run", "--db", "x.db", "--"]])
def test_run_without_a_command_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, said = failure(capsys, *words)
    assert code == 2
    assert said == "expected a command after --, got none; for example: memorywalker run -- claude"


def test_a_port_in_use_is_said_before_the_command_runs(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORYWALKER_HOME", str(tmp_path / "home"))
    ran = tmp_path / "ran"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        agent = [sys.executable, "-c", f"open({str(ran)!r}, 'w')"]
        code, said = failure(capsys, "run", "--db", db, "--port", port, "--", *agent)
    assert code == 1
    assert f"127.0.0.1:{port}" in said
    assert not ran.exists()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but longer than a header of one hundred bytes would be" * 3)
    code, said = failure(capsys, "sessions", "--db", str(file))
    assert code == 1
    assert "expected" in said
    assert str(file) in said
    assert file.read_text().startswith("not a database")


def test_looking_into_a_database_that_is_not_there_makes_none(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = failure(capsys, "calls", "--db", db)
    assert code == 1
    assert db in said
    assert not Path(db).exists()


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("{", "JSON"),
        ('{"log": {}}', "log.entries"),
        ('{"log": {"entries": [{"request": {"method": "POST"}}]}}', "entry 0"),
    ],
)
def test_a_malformed_har_is_refused_whole(
    text: str, got: str, tmp_path: Path, db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.har"
    file.write_text(text)
    code, said = failure(capsys, "import", str(file), "--db", db)
    assert code == 1
    assert got in said
    assert "bad.har" in said
    assert memorywalker.main(["sessions", "--json", "--db", db]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "got"),
    [
        (("train", "--model", "m", "--out", "o", "--scheme", "best"), "'best'"),
        (("train", "--model", "m", "--out", "o", "--engine", "warp"), "'warp'"),
        (("train", "--model", "m", "--out", "o", "--lr", "-1"), "-1"),
        (("train", "--model", "m", "--out", "o", "--objective", "ppo"), "'ppo'"),
        (("train", "--model", "m", "--out", "o", "--merge"), "--lora"),
        (("train", "--model", "m", "--out", "o", "--lora", "8", "--fsdp"), "got both"),
        (("train", "--model", "m", "--out", "o", "--eval-split", "1"), "got 1"),
        (("train", "--model", "m", "--out", "o", "--eval-split", "0.5", "--eval-rows", "r"), "got both"),
        (("drift", "--model", "m", "--schemes", "logittree,best"), "'best'"),
        (("export", "--tokenizer", "t", "--out", "o", "--format", "csv"), "'csv'"),
        (("run", "--route", "tunnel", "--", "true"), "'tunnel'"),
        (("run", "--harness", "emacs", "--", "true"), "'emacs'"),
        (("calls", "--since", "whenever"), "'whenever'"),
        (("calls", "--min-size", "big"), "'big'"),
        (("run", "--redact", "no-such-rule", "--", "true"), "no-such-rule"),
        (("serve", "--script", "s.json", "--var", "cwd"), "'cwd'"),
        (("nosuch",), "'nosuch'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: tuple[str, ...], got: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = failure(capsys, *words)
    assert code == 2
    assert got in said


def test_a_session_that_fits_none_is_told_with_where(compacted: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = failure(capsys, "tree", "zzz", "--db", compacted)
    assert code == 1
    assert said == f"expected the id of one session, or its start, got 'zzz', which fits 0 of 1, at {compacted}"


def test_the_choices_of_the_front_door_are_those_of_the_packages() -> None:
    from typing import get_args

    from proxy.harnesses import Route
    from trainer.engines import NAMES
    from trainer.export import FORMATS
    from trainer.schemes import SCHEMES
    from trainer.settings import ObjectiveName, Per, Schedule

    assert set(get_args(memorywalker.Scheme)) == set(SCHEMES)
    engines = {name.replace("-", "_") for name in get_args(memorywalker.EngineName)}
    assert engines == set(NAMES) - {"mask4d"}  # its own scheme, not another way to compute the same
    assert set(get_args(memorywalker.Format)) == set(FORMATS)
    assert set(get_args(memorywalker.RouteName)) == set(get_args(Route))
    assert get_args(memorywalker.ObjectiveName) == get_args(ObjectiveName)
    assert get_args(memorywalker.MeanPer) == get_args(Per)
    assert get_args(memorywalker.ScheduleName) == get_args(Schedule)


def test_looking_needs_no_torch() -> None:
    """Capture and inspection install without the train extra."""
    import subprocess

    program = (
        "import sys, memorywalker, proxy.launch, proxy.gateway.server, recorder.importing, treebuilder.show\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
