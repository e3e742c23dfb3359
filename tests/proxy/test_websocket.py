"""Codex speaks over a websocket: each frame of the client is a call, its reply the frames up to the closing event."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Peer, Upstream, capture, connect, recorded, until
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Request, TextMessage

from proxy.harnesses import Route
from recorder.call import Outcome

HANDSHAKE = b"GET /v1/responses HTTP/1.1\r\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def reply(n: int) -> list[str]:
    return [
        f'{{"type":"response.created","response":{{"id":"resp_{n}"}}}}',
        '{"type":"response.output_text.delta","delta":"caf\u00e9"}',
        f'{{"type":"response.completed","response":{{"id":"resp_{n}"}}}}',
    ]


class Talker:
    """A client that has shaken hands."""

    def __init__(self, connection: socket.socket, *, extra: list[tuple[bytes, bytes]] | None = None) -> None:
        self._socket = connection
        self._ws = WSConnection(ConnectionType.CLIENT)
        connection.sendall(
            self._ws.send(Request(host="api.openai.com", target="/v1/responses", extra_headers=extra or []))
        )
        assert isinstance(next(self.events()), AcceptConnection)

    def events(self) -> Iterator[Event]:
        while True:
            yield from self._ws.events()
            data = self._socket.recv(65536)
            self._ws.receive_data(data or None)
            if not data:
                return

    def say(self, text: str) -> None:
        self._socket.sendall(self._ws.send(TextMessage(text)))

    def hear(self, count: int) -> list[str]:
        heard = []
        for event in self.events():
            if isinstance(event, TextMessage):
                heard.append(event.data)
                if len(heard) == count:
                    break
        return heard

    def leave(self) -> None:
        self._socket.sendall(self._ws.send(CloseConnection(code=1000)))


def serve(peer: Peer, *, turns: list[list[str]], then_close: bool = False) -> None:
    ws = WSConnection(ConnectionType.SERVER)
    ws.receive_data(peer.head + b"\r\n\r\n")
    pending = iter(turns)
    while True:
        for event in ws.events():
            if isinstance(event, Request):
                peer.send(ws.send(AcceptConnection()))
            elif isinstance(event, TextMessage):
                for text in next(pending):
                    peer.send(ws.send(TextMessage(text)))
                if then_close:
                    peer.send(ws.send(CloseConnection(code=1011)))
                    return
            elif isinstance(event, CloseConnection):
                peer.send(ws.send(event.response()))
                return
        data = peer.receive()
        if not data:
            return
        ws.receive_data(data)


def sequence(texts: list[str]) -> bytes:
    return b"".join(b"\x1e" + t.encode() + b"\n" for t in texts)


@pytest.mark.parametrize("route", ["proxy", "base-url"])
def test_each_frame_of_the_client_is_a_call(tmp_path: Path, home: Path, route: Route) -> None:
    asks = ['{"type":"response.create","input":[1]}', '{"type":"response.create","previous_response_id":"resp_1"}']
    with (
        Upstream(lambda p: serve(p, turns=[reply(1), reply(2)])) as upstream,
        capture(tmp_path, upstream=upstream.url, route=route, home=home) as it,
        connect(it, "api.openai.com:443") as connection,
    ):
        talker = Talker(connection, extra=[(b"authorization", b"Bearer canary"), (b"session-id", b"s1")])
        heard = []
        for ask in asks:
            talker.say(ask)
            heard.append(talker.hear(3))
        until(lambda: it.recording.writer.stored == 2)
        talker.leave()

    assert heard == [reply(1), reply(2)]
    calls = recorded(tmp_path)
    assert [c.request_body.decode() for c in calls] == asks
    assert [c.response_body for c in calls] == [sequence(reply(1)), sequence(reply(2))]
    assert [(c.method, c.status, c.outcome) for c in calls] == [("GET", 101, Outcome.COMPLETE)] * 2
    assert [c.request_header("session-id") for c in calls] == ["s1", "s1"]
    assert [c.request_header("authorization") for c in calls] == ["", ""]


def test_a_reply_broken_off_by_the_upstream_is_truncated(tmp_path: Path, home: Path) -> None:
    with (
        Upstream(lambda p: serve(p, turns=[reply(1)[:2]], then_close=True)) as upstream,
        capture(tmp_path, upstream=upstream.url, home=home) as it,
        connect(it, "api.openai.com:443") as connection,
    ):
        talker = Talker(connection)
        talker.say('{"type":"response.create"}')
        assert talker.hear(3) == reply(1)[:2]

    (call,) = recorded(tmp_path)
    assert (call.outcome, call.response_body) == (Outcome.TRUNCATED, sequence(reply(1)[:2]))
    assert call.error == "the upstream closed the websocket (1011)"


def test_a_client_that_leaves_mid_reply_aborts(tmp_path: Path, home: Path) -> None:
    with (
        Upstream(lambda p: serve(p, turns=[reply(1)[:1]])) as upstream,
        capture(tmp_path, upstream=upstream.url, home=home) as it,
        connect(it, "api.openai.com:443") as connection,
    ):
        talker = Talker(connection)
        talker.say('{"type":"response.create"}')
        assert talker.hear(1) == reply(1)[:1]
        talker.leave()
        it.recording.server.stop()

    (call,) = recorded(tmp_path)
    assert (call.outcome, call.response_body) == (Outcome.ABORTED, sequence(reply(1)[:1]))


def test_a_refused_upgrade_is_no_call(tmp_path: Path, home: Path) -> None:
    def refuse(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 0\r\n\r\n")

    with (
        Upstream(refuse) as upstream,
        capture(tmp_path, upstream=upstream.url, home=home) as it,
        connect(it, "api.openai.com:443") as connection,
    ):
        connection.sendall(
            HANDSHAKE + b"host: api.openai.com\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 426")

    assert recorded(tmp_path) == []
