"""Canaries planted in every place where a client puts a credential: they reach the upstream and nothing of ours.

The file is compressed, so a search of its bytes alone could not fail: the calls are read back through the store, and
every cell of every table is looked at as well.
"""

import sqlite3
from pathlib import Path

import pytest
from loopback import Capture, Peer, Upstream, capture, connect, recorded, until

from proxy.harnesses import Route
from recorder.store import Store

CANARY = b"canary-8d1f6b"

HEADERS = [
    b"authorization: Bearer %s",
    b"Authorization: Basic %s",
    b"x-api-key: %s",
    b"api-key: %s",
    b"x-goog-api-key: %s",
    b"x-amz-security-token: %s",
    b"x-goog-iam-authorization-token: %s",
    b"cookie: session=%s",
    b"proxy-authorization: Basic %s",
    b"x-forwarded-authorization: Bearer %s",
    b"openai-organization: %s",
    b"chatgpt-account-id: %s",
    b"x-codex-token: %s",
    b"x-stainless-api-key: %s",
    b"x-claude-code-secret: %s",
    b"referer: https://host/?key=%s",
]

QUERIES = [b"key=%s", b"access_token=%s", b"api_key=%s", b"X-Amz-Signature=%s", b"sig=%s", b"%s", b"beta=true&token=%s"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def answer(peer: Peer) -> None:
    peer.send(
        b"HTTP/1.1 200 OK\r\nset-cookie: a=%s; HttpOnly\r\nx-codex-session-key: %s\r\nlocation: /?key=%s\r\n"
        b"www-authenticate: Bearer %s\r\ncontent-length: 2\r\n\r\n{}" % ((CANARY,) * 4)
    )


def ask(it: Capture, *, target: bytes = b"/v1/messages", header: bytes = b"accept: */*") -> None:
    with connect(it, "api.anthropic.com:443") as connection:
        connection.sendall(
            b"POST %s HTTP/1.1\r\nhost: api.anthropic.com\r\n%s\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
            % (target, header)
        )
        received = b""
        while data := connection.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 200"), received


def cells(db: Path) -> bytes:
    """Every value in the database as it is stored."""
    with sqlite3.connect(db) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for name in tables for row in connection.execute(f'SELECT * FROM "{name}"')]
    connection.close()
    return repr(rows).encode()


def assert_nothing_is_kept(folder: Path, home: Path, *, calls: int) -> None:
    assert len(recorded(folder)) == calls
    with Store.open(folder / "traces.db", create=False) as store:
        assert CANARY not in repr([*store.calls(), *store.sessions(), *store.runs()]).encode()
    assert CANARY not in cells(folder / "traces.db")
    files = [p for root in (folder, home) for p in root.rglob("*") if p.is_file()]
    assert [p.name for p in files if CANARY in p.read_bytes()] == []
    ours = [p for p in files if p.name.startswith("traces.db") or p.suffix == ".log"]
    assert {p.stat().st_mode & 0o777 for p in ours} == {0o600}


@pytest.mark.parametrize("route", ["proxy", "base-url"])
def test_no_header_that_carries_a_credential_is_kept(tmp_path: Path, home: Path, route: Route) -> None:
    with Upstream(answer) as upstream, capture(tmp_path, upstream=upstream.url, route=route, home=home) as it:
        for header in HEADERS:
            ask(it, header=header % CANARY)
        until(lambda: it.recording.writer.stored == len(HEADERS))
        assert {p.stat().st_mode & 0o777 for p in tmp_path.glob("traces.db*")} == {0o600}

    assert [CANARY in head for head in upstream.heads] == [True] * len(HEADERS)
    assert_nothing_is_kept(tmp_path, home, calls=len(HEADERS))


@pytest.mark.parametrize("route", ["proxy", "base-url"])
def test_no_query_that_carries_a_credential_is_kept(tmp_path: Path, home: Path, route: Route) -> None:
    with Upstream(answer) as upstream, capture(tmp_path, upstream=upstream.url, route=route, home=home) as it:
        for query in QUERIES:
            ask(it, target=b"/v1/messages?" + query % CANARY)

    assert [CANARY in head for head in upstream.heads] == [True] * len(QUERIES)
    assert_nothing_is_kept(tmp_path, home, calls=len(QUERIES))
    assert recorded(tmp_path)[-1].url.endswith("/v1/messages?beta=true&token=REDACTED")


def test_a_user_and_password_in_the_address_are_not_kept(tmp_path: Path, home: Path) -> None:
    with Upstream(answer) as upstream:
        address = upstream.url.replace("http://", f"http://user:{CANARY.decode()}@")
        for number, route in enumerate[Route](("proxy", "base-url")):
            folder = tmp_path / route
            folder.mkdir()
            with capture(folder, upstream=address, route=route, home=home) as it:
                ask(it)
            assert_nothing_is_kept(folder, home, calls=1)
            assert len(upstream.heads) == number + 1


def test_a_key_offered_as_a_websocket_protocol_is_not_kept(tmp_path: Path, home: Path) -> None:
    frame = b"\x81\xa0\0\0\0\0" + b'{"type":"response.create","n":1}'

    def play(peer: Peer) -> None:
        peer.send(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n"
            b"sec-websocket-protocol: realtime\r\n\r\n"
        )
        assert peer.receive()[6:].strip() != b""
        done = b'{"type":"response.completed"}'
        peer.send(b"\x81" + bytes([len(done)]) + done)
        peer.receive()

    with (
        Upstream(play) as upstream,
        capture(tmp_path, upstream=upstream.url, home=home) as it,
        connect(it, "api.openai.com:443") as connection,
    ):
        connection.sendall(
            b"GET /v1/responses HTTP/1.1\r\nhost: api.openai.com\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"sec-websocket-protocol: realtime, openai-insecure-api-key.%s, Bearer.%s\r\n\r\n" % (CANARY, CANARY)
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 101")
        connection.sendall(frame)
        until(lambda: it.recording.writer.stored == 1)

    assert CANARY in upstream.heads[0]
    assert_nothing_is_kept(tmp_path, home, calls=1)
