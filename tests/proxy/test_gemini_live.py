"""The real Gemini CLI, recorded on both routes; the model is a script, since the gateway does not speak its format."""

import json
import os
from pathlib import Path

import pytest
from loopback import Peer, Upstream, recorded

from proxy.harnesses import Route
from proxy.launch import run
from proxy.recording import Options
from recorder import wire
from recorder.call import Outcome
from recorder.message import Exchange

AGENTS = Path(os.environ.get("MEMORYWALKER_AGENTS", Path(__file__).parents[2] / ".agents"))
PROGRAM = AGENTS / "node_modules" / ".bin" / "gemini"
KEY = "test-key-canary"
SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}
LOOKS = [
    {"text": "Looking."},
    {"functionCall": {"name": "run_shell_command", "args": {"command": "echo seen", "description": "look"}}},
]

pytestmark = [pytest.mark.live, pytest.mark.slow]


def play(peer: Peer) -> None:
    parts = [{"text": "All done."}] if b"functionResponse" in peer.body else LOOKS
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 3, "totalTokenCount": 13}
    reply = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-pro"}
    peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    peer.chunk(b"data: " + json.dumps(reply).encode() + b"\r\n\r\n")
    peer.send(b"0\r\n\r\n")


@pytest.mark.parametrize("route", ["proxy", "base-url"])
def test_the_real_gemini_cli_works_and_every_call_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], route: Route
) -> None:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed: `make .agents/.tests` does it where npm is")
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "settings.json").write_text(json.dumps(SETTINGS))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    environ = {
        "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PWD": str(project),
        "GEMINI_API_KEY": KEY,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }
    with Upstream(play) as upstream, open(os.devnull) as nothing:
        kept = os.dup(0)
        os.dup2(nothing.fileno(), 0)
        try:
            finished = run(
                ["gemini", "-p", "say hi", "-y", "-m", "gemini-2.5-pro"],
                Options(tmp_path / "traces.db", route=route, upstream=upstream.url),
                environ=environ,
            )
        finally:
            os.dup2(kept, 0)
            os.close(kept)

    assert "All done." in capfd.readouterr().out
    assert upstream.failures == []
    calls = recorded(tmp_path)
    assert (finished.exit_code, finished.harness, finished.lost, finished.notes) == (0, "gemini-cli", 0, ())
    assert [c.request_body for c in calls] == upstream.bodies
    assert {(c.status, c.outcome) for c in calls} == {(200, Outcome.COMPLETE)}
    asked, answered = (wire.read(c) for c in calls)
    assert isinstance(asked, Exchange)
    assert isinstance(answered, Exchange)
    assert (asked.wire, asked.hints.harness, asked.head.model) == ("gemini", "gemini-cli", "gemini-2.5-pro")
    assert answered.messages[: len(asked.messages)] == asked.messages
    assert [b.kind for m in answered.messages[len(asked.messages) :] for b in m.blocks] == [
        "text",
        "tool_call",
        "tool_result",
    ]
    assert "seen" in answered.messages[-1].plain
    assert KEY.encode() not in (tmp_path / "traces.db").read_bytes()
