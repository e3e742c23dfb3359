"""Streams of one HTTP/2 connection run side by side, and arrive whole, where the server speaks HTTP/1.1.

The client is h2's own state machine on one socket, and tells no content-length, which HTTP/2 does not ask for. httpx
hangs now and then with 64 requests on one connection, where this one does not (benchmarks/capture.md).
"""

import socket
import ssl
import threading
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RemoteSettingsChanged, StreamEnded
from loopback import HEAD, PATIENCE_S, Capture, Peer, Upstream, capture, event, recorded

from recorder.call import Outcome

STREAMS = 64


def secured(it: Capture, host: str) -> ssl.SSLSocket:
    """A connection through CONNECT on which HTTP/2 was agreed."""
    name, port = it.recording.url.removeprefix("http://").split(":")
    plain = socket.create_connection((name, int(port)), timeout=3 * PATIENCE_S)
    plain.sendall(f"CONNECT {host}:443 HTTP/1.1\r\nhost: {host}:443\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += plain.recv(1)
    context = ssl.create_default_context(cafile=it.recording.variables["SSL_CERT_FILE"])
    context.set_alpn_protocols(["h2"])
    made = context.wrap_socket(plain, server_hostname=host)
    assert made.selected_alpn_protocol() == "h2"
    return made


def ask(connection: ssl.SSLSocket, host: str, bodies: list[bytes]) -> list[bytes]:
    """All bodies at once, once the server has told its settings; the replies in the same order."""
    h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    h2.initiate_connection()
    h2.increment_flow_control_window(2**24)
    unsent: dict[int, bytes] = {}
    replies: dict[int, bytes] = {}
    open_streams: set[int] = set()
    while not replies or open_streams:
        for stream, rest in list(unsent.items()):
            while rest and (size := min(h2.local_flow_control_window(stream), h2.max_outbound_frame_size, len(rest))):
                h2.send_data(stream, rest[:size], end_stream=size == len(rest))
                rest = rest[size:]
            unsent[stream] = rest
        connection.sendall(h2.data_to_send())
        data = connection.recv(65536)
        assert data, "the connection was closed"
        for it in h2.receive_data(data):
            if isinstance(it, RemoteSettingsChanged) and not replies:
                for body in bodies:
                    stream = h2.get_next_available_stream_id()
                    fields = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", host.encode())]
                    h2.send_headers(stream, [*fields, (b":path", b"/v1/messages")])
                    unsent[stream], replies[stream] = body, b""
                open_streams = set(replies)
            elif isinstance(it, DataReceived):
                replies[it.stream_id] += it.data
                h2.acknowledge_received_data(it.flow_controlled_length, it.stream_id)
            elif isinstance(it, StreamEnded):
                open_streams.discard(it.stream_id)
    return list(replies.values())


def test_sixty_four_streams_of_one_connection_are_open_at_once(tmp_path: Path) -> None:
    """No upstream goes on before the last has begun; mitmproxy alone would let five of them begin."""
    together = threading.Barrier(STREAMS)

    def play(peer: Peer) -> None:
        peer.send(HEAD)
        peer.chunk(event(f"{peer.body[:9].decode()} begun"))
        together.wait(3 * PATIENCE_S)
        peer.chunk(event("over"))
        peer.send(b"0\r\n\r\n")

    bodies = [b"stream %02d " % n * 3000 for n in range(STREAMS)]
    expected = [event(f"stream {n:02d} begun") + event("over") for n in range(STREAMS)]
    with (
        Upstream(play) as upstream,
        capture(tmp_path, upstream=upstream.url, home=tmp_path / "home") as it,
        secured(it, "api.anthropic.com") as connection,
    ):
        assert ask(connection, "api.anthropic.com", bodies) == expected

    calls = recorded(tmp_path)
    assert {c.request_body: c.response_body for c in calls} == dict(zip(bodies, expected, strict=True))
    assert (len(calls), {c.outcome for c in calls}) == (STREAMS, {Outcome.COMPLETE})
