"""The agent runs as it would alone: its terminal, its signals, its exit code."""

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from loopback import PATIENCE_S, Peer, Upstream, recorded, until

from proxy.launch import run, serve_proxy
from proxy.recording import Finished, Options
from recorder.errors import LaunchError, StoreError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"

ASK = """
import os, httpx
base = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
print(httpx.post(base + "/v1/messages", content=b"{}").text, flush=True)
"""

OURS = """
import os, sys
from proxy.launch import run
from proxy.recording import Options
finished = run(sys.argv[1:], Options(os.environ["DB"], upstream="http://127.0.0.1:1"))
sys.exit(finished.exit_code)
"""
"""A front door in miniature, for tests that need our program as a process of its own."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def environ(home: Path, tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "MEMORYWALKER_HOME": str(home),
        "DB": str(tmp_path / "traces.db"),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


def answer(peer: Peer) -> None:
    peer.send(OK)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def launch(code: str, *, folder: Path, environ: dict[str, str], **options: str) -> Finished:
    said = Options(
        folder / "traces.db",
        upstream=options.get("upstream", "http://127.0.0.1:1"),
        route="base-url" if options.get("route") == "base-url" else "proxy",
    )
    return run(python(code), said, environ=environ)


@pytest.mark.parametrize("route", ["proxy", "base-url"])
def test_an_agent_is_recorded_and_its_output_is_its_own(
    tmp_path: Path, environ: dict[str, str], route: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Upstream(answer) as upstream:
        finished = launch(ASK, folder=tmp_path, environ=environ, upstream=upstream.url, route=route)

    assert capfd.readouterr() == ("{}\n", "")
    assert (finished.exit_code, finished.calls, finished.lost, finished.notes) == (0, 1, 0, ())
    (call,) = recorded(tmp_path)
    assert call.run == finished.run
    assert call.response_body == b"{}"


def test_the_exit_code_is_the_agents(tmp_path: Path, environ: dict[str, str]) -> None:
    assert launch("raise SystemExit(42)", folder=tmp_path, environ=environ).exit_code == 42


def test_an_agent_ended_by_a_signal_exits_as_in_a_shell(tmp_path: Path, environ: dict[str, str]) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    assert launch(code, folder=tmp_path, environ=environ).exit_code == 137


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sent_to_us_alone_reaches_the_agent(environ: dict[str, str], number: signal.Signals) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [*python(OURS), *python(code)], env=environ, stdout=subprocess.PIPE, start_new_session=True
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"ready\n"
        ours.send_signal(number)
        assert ours.wait(PATIENCE_S) == 7


def test_the_agent_has_the_terminal_and_ctrl_c_reaches_it_once(environ: dict[str, str]) -> None:
    code = (
        "import os, signal, sys, time\n"
        "told, tell = os.pipe()\n"
        "os.set_blocking(tell, False)\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "signal.set_wakeup_fd(tell)\n"
        "print('tty', os.isatty(0), os.isatty(1), os.isatty(2), flush=True)\n"
        "first = os.read(told, 1)\n"
        "time.sleep(0.3)\n"
        "os.write(tell, b'.')\n"
        "sys.exit(len(first + os.read(told, 99)) - 1)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*python(OURS), *python(code)], environ)
    try:
        assert read_until(terminal, b"\n") == b"tty True True True\r\n"
        os.write(terminal, b"\x03")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    finally:
        os.close(terminal)


def read_until(terminal: int, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        assert select.select([terminal], [], [], PATIENCE_S)[0], data
        data += os.read(terminal, 1)
    return data


def test_a_command_that_is_not_there_is_told_before_anything_is_made(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match=r"^expected a command that can be run, got 'no-such-agent'"):
        run(["no-such-agent"], Options(tmp_path / "traces.db"), environ=environ)

    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path, environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError) as caught:
            run(python("pass"), Options(tmp_path / "traces.db", port=port), environ=environ)

    assert str(caught.value).startswith("expected a free port, got ")
    assert str(caught.value).endswith(f"at 127.0.0.1:{port}")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:notaport"])
def test_an_upstream_that_is_no_address_is_told(tmp_path: Path, environ: dict[str, str], url: str) -> None:
    with pytest.raises(LaunchError, match="expected http://HOST"):
        run(python("pass"), Options(tmp_path / "traces.db", upstream=url), environ=environ)


def test_a_database_that_is_none_is_told_and_left_alone(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "traces.db"
    path.write_bytes(b"not a database, " * 64)

    with pytest.raises(StoreError):
        run(python("raise SystemExit(3)"), Options(path), environ=environ)

    assert path.read_bytes() == b"not a database, " * 64


def test_a_strict_run_with_a_loss_fails_where_the_agent_did_not(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words: Sequence[str] = python("pass")
    monkeypatch.setattr("proxy.writer.Writer.close", lambda self: setattr(self, "lost", 1))

    assert run(words, Options(tmp_path / "traces.db"), environ=environ).exit_code == 0
    assert run(words, Options(tmp_path / "traces.db", strict=True), environ=environ).exit_code == 1


def test_a_proxy_that_stays_up_announces_what_to_export(tmp_path: Path, environ: dict[str, str]) -> None:
    lines: list[str] = []
    stop = threading.Event()
    done: list[Finished] = []

    def serve() -> None:
        done.append(
            serve_proxy(
                Options(tmp_path / "traces.db", upstream="http://127.0.0.1:1"),
                announce=lines.append,
                environ=environ,
                until=stop,
            )
        )

    thread = threading.Thread(target=serve)
    thread.start()
    until(lambda: len(lines) >= 8)
    stop.set()
    thread.join(PATIENCE_S)

    assert lines[0].startswith("export HTTPS_PROXY='http://127.0.0.1:")
    assert done[0].exit_code == 0
