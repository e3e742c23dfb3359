"""The real Claude Code and the real OpenCode repair the demo project with its scripts, over loopback alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.gateway.completion import Answer, Refusal
from proxy.gateway.engines.scripted import ScriptedEngine
from proxy.gateway.request import Request
from proxy.gateway.script import load
from proxy.gateway.server import Gateway
from proxy.harnesses import profile

ROOT = Path(__file__).parent.parent.parent
AGENTS = Path(os.environ.get("MEMORYWALKER_AGENTS", ROOT / ".agents")) / "node_modules" / ".bin"
PROMPT = "report.py prints a wrong total. Find out why, repair it and add a test."
SYSTEM = "You are a careful engineer. Work in small steps."
NOWHERE = "http://127.0.0.1:9"  # the discard port: what does not go to the gateway goes nowhere

pytestmark = [pytest.mark.live, pytest.mark.slow]


class Listening(ScriptedEngine):
    """The scripted engine, keeping what it was asked."""

    def __init__(self, script: Path, *, cwd: Path) -> None:
        super().__init__(load(script), variables={"cwd": str(cwd)})
        self.asked: list[Request] = []

    async def answer(self, request: Request) -> Answer | Refusal:
        self.asked.append(request)
        return await super().answer(request)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return Path(shutil.copytree(ROOT / "proxy" / "demo" / "project", tmp_path / "project"))


def work(command: str, *words: str, cwd: Path, environ: dict[str, str]) -> None:
    program = AGENTS / command
    if not program.exists():
        pytest.skip(f"{program} is not installed: `make .agents/.ready` does it where npm is")
    home = {"HOME": str(cwd.parent / "home"), "NO_PROXY": "127.0.0.1,localhost"}
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    ended = subprocess.run(
        [program, *words],
        cwd=cwd,
        env={
            **kept,
            **dict(profile_of(command)),
            **home,
            **dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), NOWHERE),
            **environ,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the total is 640 instead of 335" in ended.stdout


def profile_of(command: str) -> tuple[tuple[str, str], ...]:
    return profile({"claude": "claude-code"}.get(command, command)).quiet


def printed(project: Path) -> str:
    return subprocess.run(
        [sys.executable, "report.py", "orders.csv"], cwd=project, capture_output=True, text=True, check=True
    ).stdout


def test_claude_code_works_on_after_its_context_was_compacted(project: Path) -> None:
    engine = Listening(ROOT / "proxy" / "demo" / "claude-code.json", cwd=project)
    with Gateway(engine) as gateway:
        work(
            "claude",
            *("-p", PROMPT, "--allowedTools", "Bash Read Write Edit", "--tools", "Bash,Read,Edit,Write"),
            *("--system-prompt", SYSTEM),
            cwd=project,
            environ={
                "ANTHROPIC_BASE_URL": gateway.url,
                "ANTHROPIC_API_KEY": "sk-ant-test",
                "CLAUDE_CONFIG_DIR": str(project.parent / "config"),
                "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "5",
                "IS_SANDBOX": "1",
            },
        )
    assert printed(project) == "total: 640\n"
    summary, after = engine.asked[4], engine.asked[5]
    assert "Respond with TEXT ONLY" in summary.user_text(last=True)
    assert "This session is being continued from a previous conversation" in after.user_text(last=False)
    assert len(engine.asked) == 9


@pytest.mark.parametrize("npm", ["@ai-sdk/anthropic", "@ai-sdk/openai-compatible", "@ai-sdk/openai"])
def test_opencode_works_on_after_its_context_was_compacted(project: Path, npm: str) -> None:
    engine = Listening(ROOT / "proxy" / "demo" / "opencode.json", cwd=project)
    with Gateway(engine) as gateway:
        provider = {
            "npm": npm,
            "options": {"baseURL": f"{gateway.url}/v1", "apiKey": "sk-test"},
            "models": {"scripted": {"limit": {"context": 20000, "output": 4000}}},
        }
        config = {
            "model": "memorywalker/scripted",
            "small_model": "memorywalker/scripted",
            "provider": {"memorywalker": provider},
            "permission": {
                "*": "allow",
                **dict.fromkeys(("glob", "grep", "task", "todowrite", "webfetch", "skill"), "deny"),
            },
            "compaction": {"auto": True, "prune": True},
            "agent": {"build": {"prompt": SYSTEM}},
        }
        (project / "opencode.json").write_text(json.dumps(config))
        work("opencode", "run", PROMPT, cwd=project, environ={})
    assert printed(project) == "total: 640\n"
    main = [r for r in engine.asked if r.head.tools]
    assert len(main) == 8
    assert len(engine.asked) == 10  # and a title, and a summary
    assert PROMPT in main[3].user_text(last=False)
    assert main[4].user_text(last=False) == "What did we do so far?"
    assert len({r.wire for r in engine.asked}) == 1
