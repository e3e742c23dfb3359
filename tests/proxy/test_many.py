"""Many at once: 64 streams through one proxy, and several recordings into one file. Nothing is lost, nothing mixes."""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from loopback import HEAD, PATIENCE_S, Peer, Upstream, capture, event, recorded

from proxy.harnesses import Route
from recorder.call import Outcome

STREAMS = 64
EVENTS = 12
PROGRAMS = 4
CALLS = 6

AGENT = """
import os, httpx
base = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
with httpx.Client() as client:
    for number in range(int(os.environ["CALLS"])):
        body = f"{os.environ['NAME']} asks {number} ".encode() * 2000
        reply = client.post(base + "/v1/messages", content=body).content
        assert reply == b"data: " + body[:40] + b"\\n\\n", reply
"""

OURS = """
import os, sys
from proxy.launch import run
from proxy.recording import Options
environ = os.environ
options = Options(environ["DB"], upstream=environ["UPSTREAM"], route=environ["ROUTE"])
finished = run(sys.argv[1:], options)
print(finished.calls, finished.lost, *finished.notes)
sys.exit(finished.exit_code)
"""


class PreferH2(ssl.SSLContext):
    """Offers what it is told the other way round: httpx says http/1.1 first, and mitmproxy takes the first."""

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        super().set_alpn_protocols(list(alpn_protocols)[::-1])


def trusting(authority: str) -> ssl.SSLContext:
    context = PreferH2(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    return context


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize("http2", [False, True], ids=["http/1.1", "h2"])
@pytest.mark.parametrize("route", ["proxy", "base-url"])
def test_sixty_four_streams_at_once_arrive_and_are_kept(tmp_path: Path, home: Path, route: Route, http2: bool) -> None:
    """All are open at the same time: no upstream goes on before the last has begun."""
    if route == "base-url" and http2:
        pytest.skip("h2 is agreed on in the TLS handshake, and a base URL has none")
    together = threading.Barrier(STREAMS)

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        for number in range(EVENTS):
            if number == 1:
                together.wait(3 * PATIENCE_S)
            peer.chunk(event(f"{peer.body[:9].decode()} {number}"))
        peer.send(b"0\r\n\r\n")

    bodies = [b"stream %02d " % n * 3000 for n in range(STREAMS)]
    replies: dict[bytes, bytes] = {}
    versions: set[str] = set()
    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, route=route, home=home) as it:
        proxy = it.recording.url if route == "proxy" else None
        verify = trusting(it.recording.variables["SSL_CERT_FILE"]) if proxy else True

        def ask(body: bytes) -> None:
            with httpx.Client(
                proxy=proxy, verify=verify, http2=http2, timeout=3 * PATIENCE_S, trust_env=False
            ) as client:
                response = client.post(it.base + "/v1/messages", content=body)
            versions.add(response.http_version)
            replies[body] = response.content

        threads = [threading.Thread(target=ask, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE_S)

    assert versions == {"HTTP/2" if http2 else "HTTP/1.1"}
    expected = {b: b"".join(event(f"{b[:9].decode()} {n}") for n in range(EVENTS)) for b in bodies}
    assert replies == expected
    calls = recorded(tmp_path)
    assert {c.request_body: c.response_body for c in calls} == expected
    assert (len(calls), {c.outcome for c in calls}) == (STREAMS, {Outcome.COMPLETE})


def test_several_programs_record_into_one_file(tmp_path: Path, home: Path) -> None:
    def play(peer: Peer) -> None:
        peer.send(HEAD)
        peer.chunk(b"data: " + peer.body[:40] + b"\n\n")
        peer.send(b"0\r\n\r\n")

    with Upstream(play) as upstream:
        environ = {
            "PATH": os.environ["PATH"],
            "MEMORYWALKER_HOME": str(home),
            "DB": str(tmp_path / "traces.db"),
            "UPSTREAM": upstream.url,
            "CALLS": str(CALLS),
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        running = [
            subprocess.Popen(
                [sys.executable, "-c", OURS, sys.executable, "-c", AGENT],
                env={**environ, "NAME": f"program {n}", "ROUTE": ("proxy", "base-url")[n % 2]},
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(PROGRAMS)
        ]
        said = [(p.communicate(timeout=60)[0], p.returncode) for p in running]

    assert said == [(f"{CALLS} 0\n", 0)] * PROGRAMS
    calls = recorded(tmp_path)
    expected = {f"program {n} asks {i} ".encode() * 2000 for n in range(PROGRAMS) for i in range(CALLS)}
    assert len(calls) == PROGRAMS * CALLS
    assert {c.request_body for c in calls} == expected
    assert all(c.response_body == b"data: " + c.request_body[:40] + b"\n\n" for c in calls)
    by_run: dict[str, set[bytes]] = {}
    for call in calls:
        by_run.setdefault(call.run, set()).add(call.request_body[:9])
    assert sorted(by_run.values(), key=sorted) == [{f"program {n}".encode()} for n in range(PROGRAMS)]


def test_a_taken_socket_is_not_left_behind(tmp_path: Path, home: Path) -> None:
    """What listened is closed at the end: the same port can be had again at once."""
    with capture(tmp_path, upstream="http://127.0.0.1:1", home=home) as it:
        port = int(it.recording.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        pass
