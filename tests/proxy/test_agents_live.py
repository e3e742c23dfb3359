"""The real Claude Code and the real OpenCode, recorded on both routes, and none the wiser."""

import json
import os
from pathlib import Path

import pytest
from loopback import recorded

from proxy.gateway.server import Gateway
from proxy.harnesses import Route
from proxy.launch import run
from recorder.call import Outcome
from recorder.wire import hints

ROOT = Path(__file__).parent.parent.parent
AGENTS = Path(os.environ.get("MEMORYWALKER_AGENTS", ROOT / ".agents")) / "node_modules" / ".bin"

SCRIPT = {
    "turns": [
        {"text": "Looking.", "tools": [{"name": "TOOL", "input": {"command": "echo seen", "description": "look"}}]},
        {"text": "All done."},
    ],
    "rules": [{"when": {"has_tools": False}, "turns": [{"text": "A title"}]}],
}

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.mark.parametrize("route", ["proxy", "base-url"])
@pytest.mark.parametrize(
    ("name", "words", "tool", "harness"),
    [
        ("claude", ["-p", "say hi", "--allowedTools", "Bash"], "Bash", "claude-code"),
        ("opencode", ["run", "say hi", "-m", "anthropic/claude-sonnet-4-5"], "bash", "opencode"),
    ],
)
def test_a_real_agent_works_and_every_call_is_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    route: Route,
    name: str,
    words: list[str],
    tool: str,
    harness: str,
) -> None:
    if not (AGENTS / name).exists():
        pytest.skip(f"{AGENTS / name} is not installed: `make .agents/.ready` does it where npm is")
    project = tmp_path / "project"
    project.mkdir()
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT).replace("TOOL", tool))
    environ = {
        "PATH": f"{AGENTS}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
        "ANTHROPIC_API_KEY": "sk-ant-test",
        "IS_SANDBOX": "1",
        "PWD": str(project),
    }
    monkeypatch.chdir(project)
    with Gateway(script) as gateway, open(os.devnull) as nothing:
        kept = os.dup(0)
        os.dup2(nothing.fileno(), 0)
        try:
            finished = run(
                [name, *words], db=tmp_path / "traces.db", route=route, upstream=gateway.url, environ=environ
            )
        finally:
            os.dup2(kept, 0)
            os.close(kept)

    assert "All done." in capfd.readouterr().out
    calls = recorded(tmp_path)
    assert (finished.exit_code, finished.harness, finished.lost, finished.notes) == (0, harness, 0, ())
    assert finished.calls == len(calls) == gateway.requests
    assert {(c.status, c.outcome) for c in calls} == {(200, Outcome.COMPLETE)}
    assert {hints(c).harness for c in calls} == {harness}
    assert any(b"seen" in c.request_body for c in calls)
    assert b"sk-ant-test" not in repr(calls).encode()
