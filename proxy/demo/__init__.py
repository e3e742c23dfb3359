"""The whole way on real agents: each step is the command that a user would type, run and shown.

A scripted model (proxy.gateway) answers on loopback, so no account is needed and nothing leaves the machine. All else
is real: the agents and their tools, the proxy, the database, the tree, the rows, the small language model.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from proxy.gateway.server import Gateway
from recorder.errors import LaunchError

HERE = Path(__file__).parent
CAPTURES = HERE.parent.parent / "tests" / "captures"
"""Recorded sessions of a clone, replayed where no agent can be had."""

TASK = "report.py prints a wrong total. Find out why, repair it and add a test."
SYSTEM = "You are a careful engineer. Work in small steps."
"""Short, and few tools with it: a small model on two cores can then score the session in seconds."""

HEAD_TOKENS = 200
"""System text and tool schemas are cut to this for training and drift, for every scheme alike; the record is whole."""

OPENCODE_CONFIG = {
    "model": "anthropic/claude-sonnet-4-5",
    "small_model": "anthropic/claude-sonnet-4-5",
    "autoupdate": False,
    "share": "disabled",
    "provider": {"anthropic": {"models": {"claude-sonnet-4-5": {"limit": {"context": 20_000, "output": 4_000}}}}},
    "permission": {"*": "allow", **dict.fromkeys(("glob", "grep", "task", "todowrite", "webfetch", "skill"), "deny")},
    "compaction": {"auto": True, "prune": True},
    "agent": {"build": {"prompt": SYSTEM}},
}


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    command: str
    arguments: tuple[str, ...]
    environment: Callable[[Path], Mapping[str, str]]
    """From the home folder made for it; the user's own settings are not read."""
    replay: str
    """Capture to replay instead."""


def _claude(home: Path) -> dict[str, str]:
    return {
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "IS_SANDBOX": "1",  # lets it run as root, in a container say
        "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "5",
    }


def _opencode(home: Path) -> dict[str, str]:
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(OPENCODE_CONFIG)}


AGENTS = (
    Agent(
        "claude-code",
        "claude",
        (
            "-p",
            TASK,
            "--allowedTools",
            "Bash Read Write Edit",
            "--tools",
            "Bash,Read,Edit,Write",
            "--system-prompt",
            SYSTEM,
        ),
        _claude,
        "claude-code/autocompact.har",
    ),
    Agent("opencode", "opencode", ("run", TASK), _opencode, "opencode/compact_auto_anthropic.har"),
)


def play(*, agents: Path, out: Path, model: str, steps: int) -> int:
    """Play it all into `out`, in place of an earlier demo. Stops at the first exit code that is not 0; returns it."""
    began = time.monotonic()
    out = out.resolve()
    _fresh(out)
    db = str(out / "traces.db")
    for agent in AGENTS:
        if code := _record(agent, agents.resolve(), out, db):
            return code
    short = ("--max-head-tokens", str(HEAD_TOKENS))
    checkpoint = ("--steps", str(steps), "--out", str(out / "checkpoint"), *short)
    files = ("--plot", str(out / "drift.png"), "--report", str(out / "drift.jsonl"), *short)
    for title, *words in (
        ("What their contexts went through", "sessions"),
        ("", "show"),
        ("", "verify"),
        (
            "Training rows: each branch once, each sampled token trained once",
            *("export", "--tokenizer", model, "--out", str(out / "rows")),
        ),
        (
            f"{steps} training steps of {model} on them; system prompts are shortened to suit a small machine",
            *("train", "--model", model, "--scheme", "logittree", *checkpoint),
        ),
        (
            "Drift: how far each scheme's contexts are from those the model really had",
            *("drift", "--model", model, *files),
        ),
    ):
        if title:
            _title(title)
        if code := _memorywalker(*words, "--db", db):
            return code
    _say(f"\n== done in {time.monotonic() - began:.0f} s; everything is in {out}")
    return 0


def _fresh(out: Path) -> None:
    marker = out / ".memorywalker-demo"
    if out.exists() and any(out.iterdir()) and not marker.exists():
        raise LaunchError(f"expected an empty folder or one of an earlier demo, got files of yours, at {out}")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    marker.touch()


def _record(agent: Agent, agents: Path, out: Path, db: str) -> int:
    """One recorded session: the agent itself, or where it is not installed a recorded one over real HTTP."""
    folder = out / agent.name
    home, project = folder / "home", folder / "project"
    home.mkdir(parents=True)
    path = os.pathsep.join(
        (str(agents / "node_modules" / ".bin"), os.environ["PATH"], str(Path(sys.executable).parent))
    )
    environ = {
        **{name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TERM", "TMPDIR")},
        **agent.environment(home),
        "PATH": path,
        "HOME": str(home),
        "ANTHROPIC_API_KEY": "sk-ant-demo",
        "MEMORYWALKER_HOME": str(out / "memorywalker"),
    }
    if shutil.which(agent.command, path=path) is None:
        _title(f"{agent.name} is not installed: a recorded session is replayed over HTTP instead")
        return _replay(agent, environ, db)
    shutil.copytree(HERE / "project", project)
    _title(f"{agent.name}, the real one, repairs a small project; its model is a script on loopback")
    terminal = folder / "terminal.txt"
    with (
        Gateway(HERE / f"{agent.name}.json", variables={"cwd": str(project)}) as gateway,
        terminal.open("wb") as output,
    ):
        words = ("run", "--db", db, "--upstream", gateway.url, "--", agent.command, *agent.arguments)
        code = _memorywalker(*words, environ=environ, cwd=project, output=output.fileno())
    for line in terminal.read_text(errors="replace").splitlines():
        if line.startswith("memorywalker:"):
            _say(line)
    _say(f"what the agent printed: {terminal}")
    return code


def _replay(agent: Agent, environ: Mapping[str, str], db: str) -> int:
    from proxy.demo.replay import Recorded

    file = CAPTURES / agent.replay
    if not file.exists():
        raise LaunchError(f"expected {agent.command} on PATH or a clone with recorded sessions, got neither, at {file}")
    with Recorded(file) as upstream:
        words = (sys.executable, "-m", "proxy.demo.replay", str(file))
        return _memorywalker("run", "--db", db, "--upstream", upstream.url, "--", *words, environ=environ)


def _memorywalker(
    *words: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None, output: int | None = None
) -> int:
    _say(f"\n$ memorywalker {shlex.join(words)}")
    command = [sys.executable, "-c", "import sys, memorywalker; sys.exit(memorywalker.main())", *words]
    return subprocess.run(
        command, env=environ, cwd=cwd, stdout=output, stderr=output, stdin=subprocess.DEVNULL
    ).returncode


def _title(text: str) -> None:
    _say(f"\n== {text}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
