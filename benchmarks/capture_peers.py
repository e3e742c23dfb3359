"""What benchmarks/capture.py compares: our proxy, a streaming mitmdump, recorders of others, each in its own venv."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capture_load import Target

ROOT = Path(__file__).parent.parent
PEERS = Path(os.environ.get("MEMORYWALKER_PEERS", ROOT / ".cache" / "peers"))
PEER_VERSIONS = {"claude-tap": "0.1.146", "llm-interceptor": "2.10.0", "cctape": "0.3.5"}
ROUTES = ("tls", "base-url")
TICKS = os.sysconf("SC_CLK_TCK")

STREAMING = "def responseheaders(flow):\n    flow.response.stream = True\n"

OURS = """
import sys
from proxy.launch import serve_proxy
from proxy.recording import Options
route, db, upstream, port, host = sys.argv[1:]
options = Options(db, route=route, upstream=upstream or None, hosts=[host], port=int(port))
finished = serve_proxy(options, announce=lambda _: None)
print(finished.calls, finished.lost, flush=True)
"""

CCTAPE = """
import sys, uvicorn, cctape.proxy
cctape.proxy.ANTHROPIC_BASE_URL = sys.argv[1] + "/"
uvicorn.run("cctape:create_app", host="127.0.0.1", port=int(sys.argv[2]), factory=True)
"""

LLI = "import os, sys, time; open(sys.argv[1], 'w').write(os.environ['HTTPS_PROXY']); time.sleep(3600)"


@dataclass(frozen=True, slots=True)
class Place:
    """What a contender is given."""

    folder: Path
    route: str
    plain: int
    tls: int
    port: int
    authority: Path

    @property
    def upstream(self) -> str:
        return f"http://127.0.0.1:{self.plain}"

    @property
    def host(self) -> str:
        return f"localhost:{self.tls}"


Start = Callable[[Place], tuple[list[str], dict[str, str]]]
"""Command and environment."""


def ours(p: Place) -> tuple[list[str], dict[str, str]]:
    route, upstream = ("proxy", "") if p.route == "tls" else ("base-url", p.upstream)
    words = [sys.executable, "-c", OURS, route, str(p.folder / "data" / "traces.db"), upstream, str(p.port), p.host]
    return words, {"MEMORYWALKER_HOME": str(p.folder), "PYTHONPATH": str(ROOT)}


def mitmdump(p: Place) -> tuple[list[str], dict[str, str]]:
    script = p.folder / "stream.py"
    script.write_text(STREAMING)
    mode = "regular" if p.route == "tls" else f"reverse:{p.upstream}"
    options = [f"confdir={p.folder}", f"ssl_verify_upstream_trusted_ca={p.authority}", "connection_strategy=lazy"]
    words = [str(Path(sys.executable).parent / "mitmdump"), "-q", "-s", str(script), "--mode", mode]
    words += ["--listen-host", "127.0.0.1", "--listen-port", str(p.port)]
    return [*words, *(w for o in options for w in ("--set", o))], {}


def claude_tap(p: Place) -> tuple[list[str], dict[str, str]]:
    words = [str(PEERS / "claude-tap" / "bin" / "claude-tap"), "--tap-no-launch", "--tap-no-live", "--tap-no-open"]
    words += ["--tap-host", "127.0.0.1", "--tap-port", str(p.port), "--tap-client", "claude"]
    words += ["--tap-proxy-mode", "forward" if p.route == "tls" else "reverse"]
    words += ["--tap-target", f"https://{p.host}" if p.route == "tls" else p.upstream]
    return words, {"CLOUDTAP_DB": str(p.folder / "data" / "traces.sqlite3")}


def llm_interceptor(p: Place) -> tuple[list[str], dict[str, str]]:
    words = [str(PEERS / "llm-interceptor" / "bin" / "lli"), "run", "--output-dir", str(p.folder / "data")]
    words += ["--include", "*localhost*", "--upstream-ca-cert", str(p.authority)]
    return [*words, "--", sys.executable, "-c", LLI, str(p.folder / "port")], {}


def cctape(p: Place) -> tuple[list[str], dict[str, str]]:
    words = [str(PEERS / "cctape" / "bin" / "python"), "-c", CCTAPE, p.upstream, str(p.port)]
    return words, {"CCTAPE_DB": str(p.folder / "data" / "cctape.db")}


CONTENDERS: dict[str, tuple[Start, tuple[str, ...]]] = {
    "ours": (ours, ROUTES),
    "mitmdump": (mitmdump, ROUTES),
    "claude-tap": (claude_tap, ROUTES),
    "llm-interceptor": (llm_interceptor, ("tls",)),
    "cctape": (cctape, ("base-url",)),
}
AUTHORITIES = {
    "ours": "ca/mitmproxy-ca-cert.pem",
    "mitmdump": "mitmproxy-ca-cert.pem",
    "claude-tap": ".claude-tap/ca.pem",
    "llm-interceptor": ".mitmproxy/mitmproxy-ca-cert.pem",
}


class Contender:
    """A proxy that runs, and what it has cost so far."""

    def __init__(self, name: str, place: Place) -> None:
        self.name = name
        self._place = place
        start, _ = CONTENDERS[name]
        (place.folder / "data").mkdir(parents=True)
        words, environ = start(place)
        self._log = place.folder / "log"
        kept = {n: os.environ[n] for n in ("PATH", "LANG") if n in os.environ}
        self._process = subprocess.Popen(
            words,
            env={
                **kept,
                "HOME": str(place.folder),
                "SSL_CERT_FILE": str(place.authority),
                "NO_PROXY": "127.0.0.1,localhost",
                **environ,
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        port = place.port
        if name == "llm-interceptor":
            _until((place.folder / "port").exists, self._log)
            time.sleep(0.2)
            port = int((place.folder / "port").read_text().rpartition(":")[2].strip("/"))
        _until(lambda: _listens(port), self._log)
        if place.route == "tls":
            authority = place.folder / AUTHORITIES[name]
            _until(authority.exists, self._log)
            self.target = Target(port, connect=place.host, authority=str(authority))
        else:
            self.target = Target(port, path="/proxy/v1/messages" if name == "cctape" else "/v1/messages")

    def cpu_s(self) -> tuple[float, float]:
        """User and system time of the process, and of all that it started."""
        own = others = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(entry.name) == self._process.pid:
                        own = sum(map(int, fields[11:13]))
                    elif int(fields[3]) == self._process.pid:
                        others += sum(map(int, fields[11:15]))
        return own / TICKS, others / TICKS

    def settle(self) -> None:
        """Wait until what was queued is worked off: no CPU for half a second."""
        before = -1.0
        end = time.monotonic() + 60
        while time.monotonic() < end and (now := sum(self.cpu_s())) - before > 0.015:
            before = now
            time.sleep(0.5)

    def stop(self) -> int:
        """Bytes that it left behind."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return sum(p.stat().st_size for p in (self._place.folder / "data").rglob("*") if p.is_file())

    def said(self) -> str:
        return self._log.read_text(errors="replace").strip().rpartition("\n")[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _until(happened: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + 60
    while not happened():
        if time.monotonic() > end:
            raise SystemExit(f"a contender did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def install(name: str) -> bool:
    """Have a peer in its venv; False where it cannot be had."""
    folder = PEERS / name
    if (folder / "bin" / "pip").exists():
        return True
    python = next((p for p in _pythons() if name != "cctape" or p.name >= "python3.13"), None)
    if python is None:
        print(f"{name} needs Python 3.13, which was not found: left out", file=sys.stderr)
        return False
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", f"{name}=={PEER_VERSIONS[name]}"], check=True)
    return True


def _pythons() -> list[Path]:
    roots = [*os.environ["PATH"].split(os.pathsep), *map(str, Path.home().glob(".pyenv/versions/3.1*/bin"))]
    found = {p.name: p for root in roots for p in Path(root).glob("python3.1[1-9]") if "shims" not in root}
    return [found[name] for name in sorted(found, reverse=True)]
