"""The README keeps its word: its picture is what the command draws, its program runs, its commands exist.

`python tests/test_readme.py` draws the picture anew.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PICTURE = re.compile(r"(<!-- picture: import (.*?); show -->\n```\n)(.*?)(```\n)", re.DOTALL)
WIDTH = 100


def draw(files: list[str], folder: Path) -> str:
    """What `memorywalker show` prints at the README's width after importing the files."""
    db = str(folder / "readme.db")
    environ = {"COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    words = [sys.executable, "-m", "memorywalker"]
    subprocess.run([*words, "import", *files, "--db", db], cwd=ROOT, env=environ, check=True, stdout=subprocess.DEVNULL)
    shown = subprocess.run([*words, "show", "--db", db], cwd=ROOT, env=environ, check=True, capture_output=True)
    return "\n".join(line.rstrip() for line in shown.stdout.decode().strip("\n").split("\n")) + "\n"


def test_the_picture_is_what_the_command_draws(tmp_path: Path) -> None:
    found = PICTURE.search(README.read_text())
    assert found
    assert draw(found[2].split(), tmp_path) == found[3]


def test_the_program_runs_as_written(tmp_path: Path) -> None:
    """Only what a reader would put in is put in: a database, a session, a model."""
    torch = pytest.importorskip("torch", reason="the train extra is not installed")
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    db = tmp_path / "traces.db"
    har = ROOT / "tests/captures/claude-code/autocompact.har"
    subprocess.run([sys.executable, "-m", "memorywalker", "import", har, "--db", db], cwd=ROOT, check=True)
    from trainer.tiny import tiny_model, tiny_tokenizer

    names: dict[str, object] = {"model": tiny_model(tiny_tokenizer())}
    program = program.replace('"traces.db"', repr(str(db))).replace(
        'session="..."', 'session="8f42102a-33ff-4414-b9b6-92a70b4f493f"'
    )
    exec(compile(program, "README.md", "exec"), names)
    step = names["step"]
    assert step.loss.item() > 0  # type: ignore[attr-defined]
    assert [tuple(logprobs.shape) for logprobs in step.logprobs] == [(2,)]  # type: ignore[attr-defined]
    gradients = [p.grad for p in names["model"].parameters()]  # type: ignore[attr-defined]
    assert any(g is not None and torch.count_nonzero(g) for g in gradients)
    assert len(names["trajectory"].turns) == 10  # type: ignore[attr-defined]


def test_every_command_in_it_exists() -> None:
    text = README.read_text()
    used = set(re.findall(r"memorywalker ([a-z]+)", text)) - {"runs"}
    helped = subprocess.run([sys.executable, "-m", "memorywalker", "--help"], cwd=ROOT, check=True, capture_output=True)
    known = set(re.findall(r"^│ ([a-z]+) ", helped.stdout.decode(), re.MULTILINE))
    assert used
    assert used <= known
    targets = set(re.findall(r"^make ([a-z]+)", text, re.MULTILINE))
    assert targets == {"demo", "test"}
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)


def test_every_option_in_it_exists() -> None:
    """Of the commands shown in blocks."""
    for line in re.findall(r"^memorywalker .*$", README.read_text(), re.MULTILINE):
        words = shlex.split(line.split("#")[0])
        options = [w for w in words[2 : words.index("--") if "--" in words else None] if w.startswith("--")]
        helped = subprocess.run(
            [sys.executable, "-m", "memorywalker", words[1], "--help"], cwd=ROOT, check=True, capture_output=True
        ).stdout.decode()
        assert all(option in helped for option in options), line


if __name__ == "__main__":
    import tempfile

    before = README.read_text()
    with tempfile.TemporaryDirectory() as folder:
        after = PICTURE.sub(lambda m: m[1] + draw(m[2].split(), Path(folder)) + m[4], before)
    README.write_text(after)
