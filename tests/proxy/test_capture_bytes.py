"""What the client gets is what the upstream sent is what is stored, on both routes, plain and TLS, as it happens."""

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import zstandard
from loopback import HEAD, PATIENCE_S, Capture, Peer, Play, Upstream, capture, event, make_identity, recorded

from proxy.harnesses import Route
from recorder.call import Outcome

PATHS: list[tuple[Route, str]] = [("proxy", "http"), ("proxy", "https"), ("base-url", "http"), ("base-url", "https")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


Open = Callable[[Play], AbstractContextManager[tuple[Capture, Upstream]]]


@pytest.fixture(params=PATHS, ids=lambda p: "-".join(p))
def opened(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> Open:
    route, scheme = request.param

    @contextmanager
    def open_(play: Play) -> Iterator[tuple[Capture, Upstream]]:
        identity = make_identity(tmp_path)
        with (
            Upstream(play, tls=identity.server_context() if scheme == "https" else None) as upstream,
            capture(
                tmp_path,
                upstream=upstream.url,
                route=route,
                home=home,
                environ={"SSL_CERT_FILE": str(identity.authority)},
            ) as it,
        ):
            yield it, upstream

    return open_


def test_each_chunk_reaches_the_client_before_the_upstream_sends_the_next(opened: Open, tmp_path: Path) -> None:
    chunks = [event(f"chunk {n}") for n in range(5)]
    seen = threading.Semaphore(0)
    waited: list[bool] = []

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        for chunk in chunks:
            peer.chunk(chunk)
            waited.append(seen.acquire(timeout=PATIENCE_S))
        peer.send(b"0\r\n\r\n")

    with opened(play) as (it, upstream):
        got = []
        with it.client.stream("POST", it.base + "/v1/messages?beta=true", json={"stream": True}) as response:
            for piece in response.iter_raw():
                got.append(piece)
                seen.release()

    assert waited == [True] * 5
    assert got == chunks
    (call,) = recorded(tmp_path)
    assert call.response_body == b"".join(chunks)
    assert call.request_body == upstream.bodies[0] == b'{"stream":true}'
    assert (call.method, call.status, call.outcome, call.error) == ("POST", 200, Outcome.COMPLETE, "")
    assert call.url.endswith("/v1/messages?beta=true")
    assert call.response_header("content-type") == "text/event-stream"
    assert call.first_byte_s is not None
    assert call.duration_s is not None
    assert 0 < call.first_byte_s < call.duration_s


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_compressed_stream_stays_compressed(opened: Open, tmp_path: Path, coding: str) -> None:
    plain = b"".join(event(f"{n}" * 50) for n in range(40))
    packed = gzip.compress(plain) if coding == "gzip" else zstandard.ZstdCompressor().compress(plain)
    pieces = [packed[i : i + 7] for i in range(0, len(packed), 7)]

    def play(peer: Peer) -> None:
        peer.send(HEAD[:-2] + b"content-encoding: " + coding.encode() + b"\r\n\r\n")
        for piece in pieces:
            peer.chunk(piece)
        peer.send(b"0\r\n\r\n")

    with (
        opened(play) as (it, _),
        it.client.stream("POST", it.base + "/v1/messages", content=b"{}") as response,
    ):
        got = b"".join(response.iter_raw())

    (call,) = recorded(tmp_path)
    assert got == packed
    assert call.response_body == packed
    assert call.response_header("content-encoding") == coding


def test_an_event_of_five_megabytes_passes_whole(opened: Open, tmp_path: Path) -> None:
    big = event("x" * 5_000_000)

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        peer.chunk(big)
        peer.send(b"0\r\n\r\n")

    with opened(play) as (it, _):
        got = it.client.post(it.base + "/v1/messages", content=b"{}").content

    (call,) = recorded(tmp_path)
    assert got == big
    assert call.response_body == big


def test_a_request_passes_unchanged_and_is_stored(opened: Open, tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096

    def play(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    with opened(play) as (it, upstream):
        first = it.client.post(it.base + "/v1/messages", content=body, headers={"X-Odd-Case": "Kept"})
        second = it.client.post(it.base + "/v1/messages", content=iter([body[:1000], body[1000:]]))

    assert (first.content, second.content) == (b"{}", b"{}")
    assert upstream.bodies == [body, body]
    assert b"\r\nX-Odd-Case: Kept" in upstream.heads[0]
    assert b"\r\nTransfer-Encoding: chunked" in upstream.heads[1]
    assert [c.request_body for c in recorded(tmp_path)] == [body, body]


def test_a_body_that_ends_with_the_connection_is_whole(opened: Open, tmp_path: Path) -> None:
    def play(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
        peer.send(b'{"whole":')
        peer.send(b"true}")
        peer.close()

    with opened(play) as (it, _):
        got = it.client.post(it.base + "/v1/messages", content=b"{}").content

    (call,) = recorded(tmp_path)
    assert got == call.response_body == b'{"whole":true}'
    assert call.outcome is Outcome.COMPLETE


def test_interleaved_calls_never_mix(opened: Open, tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        for n in range(20):
            if n == 10:
                together.wait(PATIENCE_S)
            peer.chunk(peer.body + b" %d\n" % n)
        peer.send(b"0\r\n\r\n")

    with opened(play) as (it, _):
        replies: dict[str, bytes] = {}

        def ask(name: str) -> None:
            replies[name] = it.client.post(it.base + "/v1/messages", content=name.encode()).content

        threads = [threading.Thread(target=ask, args=(f"call {n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)

    expected = {f"call {n}": b"".join(b"call %d %d\n" % (n, i) for i in range(20)) for n in range(8)}
    assert replies == expected
    assert {c.request_body.decode(): c.response_body for c in recorded(tmp_path)} == expected
