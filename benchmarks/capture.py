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
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from capture_load import EVENTS, PACE_S, Seen, Target, load
from capture_peers import CONTENDERS, PEER_VERSIONS, ROUTES, Contender, Place, free_port, install
from storage import session

ROOT = Path(__file__).parent.parent
CALLS = {1: 3, 16: 3, 64: 2}
"""Calls a client makes, by how many clients there are."""


@dataclass(slots=True)
class Figures:
    """One contender, one route, one number of clients: a value a round."""

    first_ms: list[tuple[float, float]] = field(default_factory=list)
    delay_ms: list[tuple[float, float]] = field(default_factory=list)
    gap_ms: list[tuple[float, float]] = field(default_factory=list)
    cpu_ms: list[tuple[float, float]] = field(default_factory=list)
    """Of the proxy's process, and of those that it started."""
    rate: list[float] = field(default_factory=list)
    """Events a second."""
    failed: int = 0

    def add(self, seen: Seen, cpu_s: tuple[float, float]) -> None:
        self.first_ms.append(_quantiles(seen.first_s))
        self.delay_ms.append(_quantiles(seen.delay_s))
        self.gap_ms.append(_quantiles(seen.gap_s))
        own, others = (1000 * s / max(1, seen.calls) for s in cpu_s)
        self.cpu_ms.append((own, others))
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
        Contender(n, Place(folder / route / n, route, ports[0], ports[1], free_port(), authority))
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
                    before = one.cpu_s() if one else (0.0, 0.0)
                    calls = [
                        b[-CALLS.get(count, 2) :] if count > 16 else b[: CALLS.get(count, 3)] for b in bodies[:count]
                    ]
                    seen = asyncio.run(load(one.target if one else direct, calls))
                    if one:
                        one.settle()
                        made[one.name] += seen.calls
                    name = one.name if one else "no proxy"
                    after = one.cpu_s() if one else before
                    spent = after[0] - before[0], after[1] - before[1]
                    found.setdefault((name, count), Figures()).add(seen, spent)
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


def report(
    route: str, found: dict[tuple[str, int], Figures], kept: dict[str, tuple[float, str]], clients: Sequence[int]
) -> list[str]:
    lines = [
        f"## {'TLS opened' if route == 'tls' else 'base URL, plain HTTP'}",
        "",
        "| clients | contender | first byte p50 / p99 | event delay p50 / p99 | between events p50 / p99 | "
        "CPU ms a call, proxy + its children | events a second | broken |",
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
            own, others = _median(f.cpu_ms)
            cpu = f"{own:.1f} + {others:.1f}" if name != "no proxy" else ""
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
