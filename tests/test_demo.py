"""The demo does the whole way: on the real agents, and where there are none on recorded sessions over real HTTP."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
AGENTS = Path(os.environ.get("MEMORYWALKER_AGENTS", ROOT / ".agents"))


@dataclass(frozen=True)
class Played:
    out: Path
    printed: str

    def lines(self, *words: str) -> list[dict[str, object]]:
        """What a command prints with --json on the demo's database."""
        command = [sys.executable, "-m", "memorywalker", *words, "--json", "--db", str(self.out / "traces.db")]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def drift(self) -> dict[str, dict[str, object]]:
        """Scheme -> its row over all causes."""
        rows = map(json.loads, (self.out / "drift.jsonl").read_text().splitlines())
        return {row["scheme"]: row for row in rows if not row["cause"]}


def play(out: Path, *options: str, path: str) -> Played:
    command = [sys.executable, "-m", "memorywalker", "demo", "--out", str(out), *options]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    printed = done.stdout.decode()
    assert done.returncode == 0, printed
    return Played(out, printed)


@pytest.mark.live
@pytest.mark.slow
def test_real_agents_are_recorded_through_a_compaction_and_trained_on(tmp_path: Path) -> None:
    for name in ("claude", "opencode"):
        if not (AGENTS / "node_modules" / ".bin" / name).exists():
            pytest.skip(f"{name} is not installed in {AGENTS}: no npm?")
    played = play(tmp_path / "demo", "--agents", str(AGENTS), path=os.environ["PATH"])
    assert "replayed" not in played.printed
    sessions = played.lines("sessions")
    assert [(s["harness"], s["calls"]) for s in sessions] == [("claude-code", 9), ("opencode", 10)]
    kinds = [str(row["kind"]) for row in played.lines("tree")]
    grown = ["append"] * 3
    claude = ["root", *grown, "summary_request", "summarized", *grown]
    opencode = ["root", *grown, "summary_request", "summarized", *grown]
    assert kinds[:9] == claude
    assert sorted(kinds[9:]) == sorted(["side_call", *opencode])
    for agent in ("claude-code", "opencode"):  # the agents' own work, done with their own tools
        project = played.out / agent / "project"
        run = subprocess.run([sys.executable, "report.py", "orders.csv"], cwd=project, capture_output=True, check=True)
        assert run.stdout == b"total: 640\n"
    held = json.loads((played.out / "rows" / "manifest.json").read_text())["conservation"]
    assert held["sampled_tokens"] == held["trained_tokens"] + held["excused_tokens"]
    assert held["trained_calls"] == 18
    drift = played.drift()
    assert drift["logittree"]["mean"] < 1e-4  # type: ignore[operator]
    assert drift["naive-compressed"]["mean"] > 1e-2  # type: ignore[operator]
    assert drift["naive-full"]["mean"] > 1e-2  # type: ignore[operator]
    assert drift["logittree"]["lost"] == 0
    assert drift["naive-compressed"]["lost"] != 0
    assert (played.out / "checkpoint" / "model.safetensors").exists()


@pytest.mark.slow
def test_without_agents_recorded_sessions_are_replayed_over_http_and_it_is_said(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    options = ("--agents", str(tmp_path / "none"), "--model", "tiny-smollm2", "--steps", "1")
    played = play(tmp_path / "demo", *options, path=str(tools))
    assert played.printed.count("is not installed: a recorded session is replayed over HTTP instead") == 2
    assert [s["calls"] for s in played.lines("sessions")] == [10, 10]
    rows = played.lines("tree")
    labels = json.loads((ROOT / "tests/captures/labels.json").read_text())
    expected = [one["kind"] for one in (*labels["claude-code/autocompact"], *labels["opencode/compact_auto_anthropic"])]
    assert [row["kind"] for row in rows] == expected
    assert played.drift()["logittree"]["mean"] < 1e-4  # type: ignore[operator]


def test_a_folder_with_files_of_the_users_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    done = subprocess.run(
        [sys.executable, "-m", "memorywalker", "demo", "--out", str(tmp_path)], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert (tmp_path / "thesis.tex").read_text() == "precious"
