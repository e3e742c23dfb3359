"""The real agents, recorded on both routes, and none the wiser: Claude Code, OpenCode, Codex, Qwen Code, qwen-agent."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from loopback import PATIENCE_S, Peer, Upstream, recorded, unchunk

from proxy.gateway.server import Gateway
from proxy.harnesses import Route
from proxy.launch import run
from proxy.recording import Options
from recorder.call import Outcome
from recorder.wire import hints

ROOT = Path(__file__).parent.parent.parent
AGENTS = Path(os.environ.get("MEMORYWALKER_AGENTS", ROOT / ".agents"))

KEY = "sk-ant-test-canary"

QWEN_AGENT = """
import os
from qwen_agent.agents import Assistant
from qwen_agent.tools.base import BaseTool, register_tool

@register_tool("look")
class Look(BaseTool):
    description = "Look."
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}

    def call(self, params, **kwargs):
        return "seen"

llm = {
    "model": "qwen3",
    "model_type": "oai",
    "model_server": os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "api_key": os.environ["OPENAI_API_KEY"],
    "generate_cfg": {"use_raw_api": True},
}
*_, last = Assistant(llm=llm, function_list=["look"]).run([{"role": "user", "content": "say hi"}])
print(last[-1]["content"])
"""


@dataclass(frozen=True, slots=True)
class Agent:
    harness: str
    program: str
    """Below AGENTS."""
    words: tuple[str, ...]
    tool: str
    arguments: Mapping[str, str | bool]
    said: str
    """The harness that the requests name by themselves."""
    environ: Mapping[str, str] = field(default_factory=dict)


CODEX = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "gpt-5.1-codex", "say hi")

AGENTS_BY_NAME = {
    "claude": Agent(
        "claude-code",
        "node_modules/.bin/claude",
        ("-p", "say hi", "--allowedTools", "Bash"),
        "Bash",
        {"command": "echo seen", "description": "look"},
        "claude-code",
    ),
    "opencode": Agent(
        "opencode",
        "node_modules/.bin/opencode",
        ("run", "say hi", "-m", "anthropic/claude-sonnet-4-5"),
        "bash",
        {"command": "echo seen", "description": "look"},
        "opencode",
    ),
    "codex": Agent("codex", "node_modules/.bin/codex", CODEX, "exec_command", {"cmd": "echo seen"}, "codex"),
    "qwen": Agent(
        "qwen-code",
        "node_modules/.bin/qwen",
        ("--auth-type", "openai", "-p", "say hi", "-y"),
        "run_shell_command",
        {"command": "echo seen", "description": "look", "is_background": False},
        "qwen-code",
        {"OPENAI_MODEL": "qwen3-coder", "OPENAI_BASE_URL": "https://api.openai.com/v1"},
    ),
    "qwen-agent": Agent(
        "qwen-agent", "qwen-agent/bin/python", ("-c", QWEN_AGENT), "look", {"command": "echo seen"}, ""
    ),
}

pytestmark = [pytest.mark.live, pytest.mark.slow]


class Relay(Upstream):
    """Stands before the gateway and keeps what it was sent, byte for byte, and what it sent."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(self._forward)
        self._gateway = gateway
        self.exchanges: list[tuple[bytes, bytes, bytes]] = []
        """Request line, request body, response body with its framing undone."""

    def _forward(self, peer: Peer) -> None:
        host, port = self._gateway.url.removeprefix("http://").split(":")
        line, _, fields = peer.head.partition(b"\r\n")
        framing = (b"transfer-encoding:", b"content-length:", b"connection:")
        kept = [f for f in fields.split(b"\r\n") if not f.lower().startswith(framing)]
        kept += [b"content-length: %d" % len(peer.body), b"connection: close"]
        reply = b""
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as onward:
            onward.sendall(b"\r\n".join([line, *kept, b"", peer.body]))
            while data := onward.recv(65536):
                reply += data
                peer.send(data)
        head, _, body = reply.partition(b"\r\n\r\n")
        chunked = b"transfer-encoding: chunked" in head.lower()
        self.exchanges.append((line, peer.body, unchunk(body) if chunked else body))
        peer.close()


def script(agent: Agent) -> str:
    looks = {"text": "Looking.", "tools": [{"name": agent.tool, "input": agent.arguments}]}
    title = {"when": {"has_tools": False}, "turns": [{"text": "A title"}]}
    return json.dumps({"turns": [looks, {"text": "All done."}], "rules": [title]})


@pytest.mark.parametrize("route", ["proxy", "base-url"])
@pytest.mark.parametrize("name", AGENTS_BY_NAME)
def test_a_real_agent_works_and_every_call_is_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    route: Route,
    name: str,
) -> None:
    agent = AGENTS_BY_NAME[name]
    program = AGENTS / agent.program
    if not program.exists():
        pytest.skip(f"{program} is not installed: `make .agents/.ready` does it where npm is")
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "script.json").write_text(script(agent))
    environ = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
        "ANTHROPIC_API_KEY": KEY,
        "OPENAI_API_KEY": KEY,
        "CODEX_API_KEY": KEY,
        "IS_SANDBOX": "1",
        "PWD": str(project),
        **agent.environ,
    }
    monkeypatch.chdir(project)
    with Gateway(tmp_path / "script.json") as gateway, Relay(gateway) as relay, open(os.devnull) as nothing:
        kept = os.dup(0)
        os.dup2(nothing.fileno(), 0)
        try:
            finished = run(
                [program.name, *agent.words],
                Options(
                    tmp_path / "traces.db",
                    route=route,
                    upstream=relay.url,
                    harness=agent.harness if program.name == "python" else None,
                ),
                environ=environ,
            )
        finally:
            os.dup2(kept, 0)
            os.close(kept)

    assert "All done." in capfd.readouterr().out
    assert relay.failures == []
    calls = recorded(tmp_path)
    assert (finished.exit_code, finished.harness, finished.lost, finished.notes) == (0, agent.harness, 0, ())
    assert finished.calls == len(calls) == gateway.requests
    assert {(c.status, c.outcome) for c in calls} == {(200, Outcome.COMPLETE)}
    assert {hints(c).harness for c in calls} == {agent.said}
    assert any(b"seen" in c.request_body.replace(b"echo seen", b"") for c in calls)
    asked = [(request, response) for line, request, response in relay.exchanges if is_reply(line)]
    assert sorted((c.request_body, c.response_body) for c in calls) == sorted(asked)
    assert KEY not in repr(calls)
    if name == "codex" and route == "proxy":  # a websocket first; refused with 426 it falls back to POST over h2
        assert any(line.startswith(b"GET /v1/responses") for line, _, _ in relay.exchanges)


def is_reply(line: bytes) -> bool:
    path = line.split(b" ")[1].split(b"?")[0]
    return line.startswith(b"POST") and path.endswith((b"/messages", b"/chat/completions", b"/responses"))
