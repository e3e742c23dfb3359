"""What recording costs the agent: our proxy beside no proxy, a streaming mitmdump, and three other recorders.

    python benchmarks/capture.py [--rounds 5] [--clients 1 16 64] [--only ours mitmdump] [--out benchmarks/capture.md]

Each contender is a process of its own, the upstream (benchmarks/capture_load.py) another, the clients this one. Both
routes: TLS opened between client and upstream, and plain HTTP with a base URL. Requests are Claude Code's, 60 to 600 kB
as a session grows; a reply is 200 events, 5 ms apart. In every round each contender gets the same load in turn, so
that whatever else the machine does hits all alike. What is printed is the median over the rounds of each round's p50
and p99, less the same of no proxy. Other recorders are installed from PyPI into .cache/peers, each in its own venv.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from capture_load import EVENTS, PACE_S, Seen, Target, load
from storage import session

ROOT = Path(__file__).parent.parent
PEERS = Path(os.environ.get("MEMORYWALKER_PEERS", ROOT / ".cache" / "peers"))
PEER_VERSIONS = {"claude-tap": "0.1.146", "llm-interceptor": "2.10.0", "cctape": "0.3.5"}
ROUTES = ("tls", "base-url")
CALLS = {1: 3, 16: 3, 64: 2}
"""Calls a client makes, by how many clients there are."""
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

    def cpu_s(self) -> float:
        """User and system time of the process and of all that it started."""
        ticks = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self._process.pid:
                        ticks += sum(map(int, fields[11:15]))
        return ticks / TICKS

    def settle(self) -> None:
        """Wait until what was queued is worked off: no CPU for half a second."""
        before = -1.0
        end = time.monotonic() + 60
        while time.monotonic() < end and (now := self.cpu_s()) - before > 0.015:
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


@dataclass(slots=True)
class Figures:
    """One contender, one route, one number of clients: a value a round."""

    first_ms: list[tuple[float, float]] = field(default_factory=list)
    delay_ms: list[tuple[float, float]] = field(default_factory=list)
    gap_ms: list[tuple[float, float]] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    """Events a second."""
    failed: int = 0

    def add(self, seen: Seen, cpu_s: float) -> None:
        self.first_ms.append(_quantiles(seen.first_s))
        self.delay_ms.append(_quantiles(seen.delay_s))
        self.gap_ms.append(_quantiles(seen.gap_s))
        self.cpu_ms.append(1000 * cpu_s / max(1, seen.calls))
        self.rate.append(seen.calls * EVENTS / seen.wall_s)
        self.failed += seen.failed


def _quantiles(values_s: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values_s, n=100)
    return 1000 * cuts[49], 1000 * cuts[98]


def _median(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(p for p, _ in pairs), statistics.median(q for _, q in pairs)


def measure(
    *, rounds: int, clients: Sequence[int], names: Sequence[str], folder: Path, route: str, ports: tuple[int, int]
) -> tuple[dict[tuple[str, int], Figures], dict[str, tuple[float, str]]]:
    authority = folder / "authority.pem"
    bodies = _sessions(max(clients))
    running = [
        Contender(n, Place(folder / route / n, route, ports[0], ports[1], _free_port(), authority))
        for n in names
        if route in CONTENDERS[n][1]
    ]
    direct = Target(ports[1], authority=str(authority)) if route == "tls" else Target(ports[0])
    found: dict[tuple[str, int], Figures] = {}
    made = dict.fromkeys(names, 0)
    order: list[Contender | None] = [None, *running]
    try:
        for contender in running:  # a warm-up
            asyncio.run(load(contender.target, [[bodies[0][0]]]))
            made[contender.name] += 1
        for number in range(rounds):
            for count in clients:
                random.Random(number * 100 + count).shuffle(order)
                for one in order:
                    before = one.cpu_s() if one else 0.0
                    calls = [
                        b[-CALLS.get(count, 2) :] if count > 16 else b[: CALLS.get(count, 3)] for b in bodies[:count]
                    ]
                    seen = asyncio.run(load(one.target if one else direct, calls))
                    if one:
                        one.settle()
                        made[one.name] += seen.calls
                    name = one.name if one else "no proxy"
                    found.setdefault((name, count), Figures()).add(seen, one.cpu_s() - before if one else 0.0)
                    print(f"  {route} round {number + 1} {count} clients {name}: {seen.wall_s:.1f} s", file=sys.stderr)
    finally:
        stored = {c.name: (c.stop() / max(1, made[c.name]), c) for c in running}
    kept = {name: (size, _kept(c, made[name])) for name, (size, c) in stored.items()}
    return found, kept


def _kept(one: Contender, made: int) -> str:
    """Of the calls made, how many the recorder says it has."""
    if one.name == "ours":
        calls, lost = one.said().split()[-2:]
        return f"{calls} of {made}, {lost} lost"
    return f"of {made}, what it kept was not counted"


def _sessions(count: int) -> list[list[bytes]]:
    calls = 4
    return [
        [c.request_body for c in session(calls, seed=n, name=f"5f0c2a52-0000-4000-8000-{n:012}")] for n in range(count)
    ]


def _free_port() -> int:
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


@contextlib.contextmanager
def upstream(folder: Path) -> Iterator[tuple[int, int]]:
    sys.path.insert(0, str(ROOT / "tests" / "proxy"))
    from loopback import make_identity  # type: ignore[import-not-found,unused-ignore]

    identity = make_identity(folder)
    words = [sys.executable, str(Path(__file__).parent / "capture_load.py"), str(identity.chain)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        plain, tls = process.stdout.readline().split()
        try:
            yield int(plain), int(tls)
        finally:
            process.kill()


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


def report(
    route: str, found: dict[tuple[str, int], Figures], kept: dict[str, tuple[float, str]], clients: Sequence[int]
) -> list[str]:
    lines = [
        f"## {'TLS opened' if route == 'tls' else 'base URL, plain HTTP'}",
        "",
        "| clients | contender | first byte p50 / p99 | event delay p50 / p99 | between events p50 / p99 | "
        "CPU ms a call | events a second | broken |",
        "| ---: | :--- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for count in clients:
        base = found["no proxy", count]
        for (name, n), f in found.items():
            if n != count:
                continue
            cells = []
            for attribute in ("first_ms", "delay_ms", "gap_ms"):
                p50, p99 = _median(getattr(f, attribute))
                q50, q99 = _median(getattr(base, attribute)) if name != "no proxy" else (0.0, 0.0)
                sign = "" if name == "no proxy" else "+"
                cells.append(f"{sign}{p50 - q50:.2f} / {sign}{p99 - q99:.2f}")
            cpu = f"{statistics.median(f.cpu_ms):.1f}" if name != "no proxy" else ""
            lines.append(
                f"| {count} | {name} | {' | '.join(cells)} | {cpu} | {statistics.median(f.rate):.0f} | {f.failed} |"
            )
    lines += ["", "| contender | bytes stored a call | calls |", "| :--- | ---: | :--- |"]
    lines += [f"| {name} | {size:.0f} | {said} |" for name, (size, said) in kept.items()]
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--routes", nargs="+", choices=ROUTES, default=list(ROUTES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [n for n in options.only if n not in PEER_VERSIONS or install(n)]
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, mitmproxy {version('mitmproxy')}"
        + "".join(f", {n} {v}" for n, v in PEER_VERSIONS.items() if n in names)
        + f". Load average at the start {os.getloadavg()[0]:.1f}. {options.rounds} rounds; {EVENTS} events a reply, "
        f"one each {1000 * PACE_S:g} ms. Times in ms, those of a contender less those of no proxy.",
        "",
    ]
    with tempfile.TemporaryDirectory(prefix="capture-") as name:
        folder = Path(name)
        with upstream(folder) as ports:
            for route in options.routes:
                found, kept = measure(
                    rounds=options.rounds,
                    clients=options.clients,
                    names=names,
                    folder=folder,
                    route=route,
                    ports=ports,
                )
                lines += report(route, found, kept, options.clients)
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
