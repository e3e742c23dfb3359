"""How a call can end, and that the record says so with what had arrived."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from loopback import HEAD, PATIENCE_S, Peer, Play, Upstream, capture, connect, event, make_identity, recorded

from proxy.harnesses import Route
from recorder.call import Call, Outcome

ROUTES: list[Route] = ["proxy", "base-url"]
FIRST = event("first")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> Route:
    route: Route = request.param
    return route


@pytest.fixture(params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(
    play: Play,
    *,
    folder: Path,
    home: Path,
    route: Route,
    scheme: str = "http",
    reads: int = 99,
    heard: Callable[[], None] = lambda: None,
) -> list[Call]:
    """Play to a client that reads `reads` pieces, telling of each, and then leaves; what was recorded."""
    identity = make_identity(folder)
    with (
        Upstream(play, tls=identity.server_context() if scheme == "https" else None) as upstream,
        capture(
            folder, upstream=upstream.url, route=route, home=home, environ={"SSL_CERT_FILE": str(identity.authority)}
        ) as it,
        suppress(httpx.TransportError),
        it.client.stream("POST", it.base + "/v1/messages", content=b"{}") as response,
    ):
        pieces: Iterator[bytes] = response.iter_raw()
        for _ in range(reads):
            if next(pieces, None) is None:
                break
            heard()
    return recorded(folder)


def test_a_stream_cut_by_the_upstream_is_truncated(tmp_path: Path, home: Path, route: Route, scheme: str) -> None:
    def play(peer: Peer) -> None:
        peer.send(HEAD)
        peer.chunk(FIRST)
        peer.close()

    (call,) = ask(play, folder=tmp_path, home=home, route=route, scheme=scheme)

    assert (call.outcome, call.status, call.response_body) == (Outcome.TRUNCATED, 200, FIRST)
    assert call.error.startswith("upstream: ")


def test_a_stream_reset_by_the_upstream_is_truncated(tmp_path: Path, home: Path, route: Route, scheme: str) -> None:
    arrived = threading.Event()

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        peer.chunk(FIRST)
        arrived.wait(PATIENCE_S)
        peer.reset()

    (call,) = ask(play, folder=tmp_path, home=home, route=route, scheme=scheme, heard=arrived.set)

    assert (call.outcome, call.status, call.response_body) == (Outcome.TRUNCATED, 200, FIRST)
    assert call.error.startswith("upstream: ")


def test_a_cut_before_the_status_line_is_unanswered(tmp_path: Path, home: Path, route: Route) -> None:
    (call,) = ask(Peer.close, folder=tmp_path, home=home, route=route)

    assert (call.outcome, call.status, call.response_body) == (Outcome.UNANSWERED, None, b"")
    assert call.request_body == b"{}"
    assert call.first_byte_s is None


def test_a_refused_connection_is_unanswered(tmp_path: Path, home: Path, route: Route) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with capture(tmp_path, upstream=f"http://127.0.0.1:{port}", route=route, home=home) as it:
        response = it.client.post(it.base + "/v1/messages", content=b"{}")

    (call,) = recorded(tmp_path)
    assert response.status_code == 502
    assert (call.outcome, call.status, call.response_body) == (Outcome.UNANSWERED, None, b"")
    assert call.error.startswith("upstream: ")


def test_an_error_status_is_kept_with_its_body(tmp_path: Path, home: Path, route: Route) -> None:
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'

    def play(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 529 Overloaded\r\nretry-after: 7\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    (call,) = ask(play, folder=tmp_path, home=home, route=route)

    assert (call.outcome, call.status, call.response_body) == (Outcome.HTTP_ERROR, 529, body)
    assert call.response_header("retry-after") == "7"


def test_a_client_that_leaves_mid_stream_aborts_and_the_upstream_is_told(
    tmp_path: Path, home: Path, route: Route, scheme: str
) -> None:
    hung_up = threading.Event()

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        peer.chunk(FIRST)
        while True:
            try:
                if not peer.receive():
                    break
            except OSError:
                break
        hung_up.set()

    (call,) = ask(play, folder=tmp_path, home=home, route=route, scheme=scheme, reads=1)

    assert hung_up.wait(PATIENCE_S)
    assert (call.outcome, call.status, call.response_body) == (Outcome.ABORTED, 200, FIRST)
    assert call.error.startswith("client: ")


def test_a_client_that_leaves_before_the_answer_aborts(tmp_path: Path, home: Path, route: Route) -> None:
    asked, left = threading.Event(), threading.Event()

    def play(peer: Peer) -> None:
        asked.set()
        left.wait(PATIENCE_S)

    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, route=route, home=home) as it:
        with connect(it, "api.anthropic.com:443") as connection:
            connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: api.anthropic.com\r\ncontent-length: 2\r\n\r\n{}")
            assert asked.wait(PATIENCE_S)
        it.recording.server.stop()
        left.set()

    (call,) = recorded(tmp_path)
    assert (call.outcome, call.status, call.response_body) == (Outcome.ABORTED, None, b"")


def test_a_retry_is_a_call_of_its_own(tmp_path: Path, home: Path, route: Route) -> None:
    def answer(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    turns: Iterator[Play] = iter([Peer.reset, answer])

    def play(peer: Peer) -> None:
        next(turns)(peer)

    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, route=route, home=home) as it:
        first = it.client.post(it.base + "/v1/messages", content=b'{"n":1}')
        second = it.client.post(it.base + "/v1/messages", content=b'{"n":1}')

    assert (first.status_code, second.status_code) == (502, 200)
    calls = recorded(tmp_path)
    assert [c.outcome for c in calls] == [Outcome.UNANSWERED, Outcome.COMPLETE]
    assert [c.request_body for c in calls] == [b'{"n":1}'] * 2
    assert [c.seq for c in calls] == [1, 2]


def test_a_call_still_running_when_the_recorder_stops_keeps_what_had_arrived(
    tmp_path: Path, home: Path, route: Route
) -> None:
    over = threading.Event()

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        peer.chunk(FIRST)
        over.wait(PATIENCE_S)

    with Upstream(play) as upstream:
        with capture(tmp_path, upstream=upstream.url, route=route, home=home) as it:
            arrived = threading.Event()

            def listen() -> None:
                try:
                    with it.client.stream("POST", it.base + "/v1/messages", content=b"{}") as response:
                        for _ in response.iter_raw():
                            arrived.set()
                except httpx.TransportError:
                    pass

            listener = threading.Thread(target=listen)
            listener.start()
            assert arrived.wait(PATIENCE_S)
        listener.join(PATIENCE_S)
        over.set()

    (call,) = recorded(tmp_path)
    assert call.response_body == FIRST
    assert call.outcome in (Outcome.TRUNCATED, Outcome.ABORTED)


def test_a_tail_lost_to_a_reset_is_never_called_complete(tmp_path: Path, home: Path, route: Route) -> None:
    """mitmproxy issue 8364: an upstream that closes with request bytes unread sends a RST, and the kernel drops what
    was under way. A client without any proxy loses the same tail, so no proxy can deliver it; the record says so."""
    body = event("x" * 4_000_000)

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        peer.chunk(body)
        peer.send(b"0\r\n\r\n")

    identity = make_identity(tmp_path)
    got = b""
    status = 0
    with (
        Upstream(play, tls=identity.server_context(), deaf=True) as upstream,
        capture(
            tmp_path, upstream=upstream.url, route=route, home=home, environ={"SSL_CERT_FILE": str(identity.authority)}
        ) as it,
        suppress(httpx.TransportError),
        it.client.stream("POST", it.base + "/v1/messages", content=b"{}" * 50_000) as response,
    ):
        status = response.status_code
        for piece in response.iter_raw():
            got += piece

    (call,) = recorded(tmp_path)
    if status == 200:
        assert call.response_body.startswith(got)
        assert call.outcome is Outcome.TRUNCATED or (call.outcome is Outcome.COMPLETE and call.response_body == body)
    else:
        assert (call.outcome, call.response_body) == (Outcome.UNANSWERED, b"")
