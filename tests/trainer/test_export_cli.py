"""`memorywalker export` as a user meets it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from chats import renderer

import memorywalker
from recorder.importing import read_har
from trainer.export import FORMATS, export
from treebuilder.build import build
from treebuilder.forest import Trees
from treebuilder.tree import Trajectory

CAPTURES = Path(__file__).parents[1] / "captures"
HAR = CAPTURES / "opencode/tools_responses.har"


@pytest.fixture
def db(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Two sessions, one of which was compacted."""
    name = str(tmp_path / "traces.db")
    hars = [str(HAR), str(CAPTURES / "claude-code/manualcompact.har")]
    assert memorywalker.main(["import", *hars, "--db", name]) == 0
    capsys.readouterr()
    return name


def test_the_command_knows_every_format() -> None:
    assert set(get_args(memorywalker.Format)) == set(FORMATS)


@pytest.mark.parametrize("format", FORMATS)
def test_every_sampled_token_of_a_real_session_is_in_every_format(format: str, tmp_path: Path) -> None:
    counts = export([build(read_har(HAR))], renderer("qwen3"), out=tmp_path / "d", format=format).counts
    assert counts.owned_tokens == counts.trained_tokens > 0
    assert set(counts.excused_calls) <= {"side_call"}


def test_a_row_is_shown_with_its_trained_tokens_in_brackets(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert memorywalker.main(["export", "--tokenizer", "tiny", "--db", db, "--inspect", "0"]) == 0
    narrow = capsys.readouterr().out
    assert narrow.splitlines()[0].endswith("% trained")
    assert "  call " in narrow
    assert narrow.count("⟦") == narrow.count("⟧") > 1
    assert " tokens ⋯ " in narrow
    assert memorywalker.main(["export", "--tokenizer", "tiny", "--db", db, "--inspect", "0", "--wide"]) == 0
    wide = capsys.readouterr().out
    assert "⋯" not in wide
    assert wide.count("⟦") == narrow.count("⟦")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "expected --out DIR to write to, or --inspect ROW to look at one row"),
        (("--inspect", "999"), 1, "row 999: expected one of "),
        (("--out", "d", "--format", "csv"), 2, "'csv' is not one of 'logittree', 'tree', 'trl-sft'"),
        (("--out", "d", "--shard-rows", "0"), 2, "--shard-rows"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: tuple[str, ...], code: int, said: str, db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memorywalker.main(["export", "--tokenizer", "tiny", "--db", db, *words]) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


def test_an_export_that_is_interrupted_says_how_it_goes_on_and_does(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "d")
    words = ["export", "--tokenizer", "tiny", "--db", db, "--shard-rows", "1", "--format", "axolotl"]
    whole = Trees.__getitem__

    def cut(self: Trees, at: int) -> Trajectory:
        if at == 1:
            raise KeyboardInterrupt
        got = whole(self, at)
        assert isinstance(got, Trajectory)
        return got

    with monkeypatch.context() as patch:
        patch.setattr(Trees, "__getitem__", cut)
        assert memorywalker.main([*words, "--out", out]) == 130
    assert "cut short; the same command with --resume goes on" in capsys.readouterr().err
    assert not Path(out).exists()
    assert memorywalker.main([*words, "--out", out, "--resume"]) == 0
    assert memorywalker.main([*words, "--out", out + "2"]) == 0
    for file in Path(out).iterdir():
        assert file.read_bytes() == (tmp_path / "d2" / file.name).read_bytes()


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(db: str, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        words = [sys.executable, "-m", "memorywalker", "export", "--tokenizer", "tiny", "--db", db]
        environ = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([*words, "--out", str(tmp_path / seed)], check=True, env=environ, stdout=subprocess.DEVNULL)
    for file in (tmp_path / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "2" / file.name).read_bytes()
