"""What is opened, what is kept, and what never is."""

import os
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from loopback import PATIENCE_S, Peer, Upstream, capture, connect, make_identity, recorded, until

from proxy import harnesses
from proxy.harnesses import Route
from proxy.launch import run
from proxy.recording import Options, recording
from proxy.server import is_loopback
from recorder.errors import LaunchError
from recorder.store import Store

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"

CANARY = "canary-8d1f6b"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def answer(peer: Peer) -> None:
    peer.send(OK)


def test_a_host_that_serves_no_model_sees_the_clients_own_handshake(tmp_path: Path, home: Path) -> None:
    identity = make_identity(tmp_path)
    with (
        Upstream(answer, tls=identity.server_context()) as upstream,
        capture(tmp_path, upstream="http://127.0.0.1:1", home=home) as it,
        connect(it, f"localhost:{upstream.port}", trusted=identity.authority) as connection,
    ):
        assert isinstance(connection, ssl.SSLSocket)
        shown = connection.getpeercert(binary_form=True)
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
        reply = connection.recv(65536)

    pem = identity.chain.read_text()
    assert shown == ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE-----") :])
    assert reply == OK
    assert recorded(tmp_path) == []


def test_a_host_named_by_the_user_is_opened_and_recorded(tmp_path: Path, home: Path) -> None:
    identity = make_identity(tmp_path)
    with Upstream(answer, tls=identity.server_context()) as upstream:
        base = f"https://localhost:{upstream.port}"
        with capture(
            tmp_path,
            upstream="",
            redirect=False,
            home=home,
            base=base,
            hosts=(f"localhost:{upstream.port}",),
            environ={"SSL_CERT_FILE": str(identity.authority)},
        ) as it:
            assert it.client.post(base + "/v1/messages", content=b"{}").status_code == 200

    (call,) = recorded(tmp_path)
    assert call.url == base + "/v1/messages"


def test_an_upstream_whose_certificate_nobody_vouches_for_is_not_talked_to(tmp_path: Path, home: Path) -> None:
    identity = make_identity(tmp_path)
    with (
        Upstream(answer, tls=identity.server_context()) as upstream,
        capture(tmp_path, upstream=upstream.url, home=home) as it,
    ):
        response = it.client.post(it.base + "/v1/messages", content=b"{}")

    assert response.status_code == 502
    assert upstream.heads == []


@pytest.mark.parametrize("route", ["proxy", "base-url"])
def test_calls_that_are_no_model_calls_pass_and_are_not_kept(tmp_path: Path, home: Path, route: Route) -> None:
    with (
        Upstream(answer) as upstream,
        capture(tmp_path, upstream=upstream.url, route=route, home=home) as it,
    ):
        assert it.client.get(it.base + "/v1/models").content == b"{}"
        assert it.client.post(it.base + "/api/event_logging/batch", content=b"x" * 200_000).content == b"{}"

    assert upstream.bodies == [b"", b"x" * 200_000]
    assert recorded(tmp_path) == []


def test_the_host_header_stays_for_an_address_and_changes_for_a_name(tmp_path: Path, home: Path) -> None:
    (tmp_path / "address").mkdir()
    (tmp_path / "base").mkdir()
    with Upstream(answer) as upstream:
        with capture(tmp_path / "address", upstream=upstream.url, home=home) as it:
            it.client.post(it.base + "/v1/messages", content=b"{}")
        with capture(tmp_path / "base", upstream=upstream.url, route="base-url", home=home) as it:
            it.client.post(it.base + "/v1/messages", content=b"{}")

    assert b"\r\nHost: api.anthropic.com" in upstream.heads[0]
    assert f"\r\nHost: 127.0.0.1:{upstream.port}".encode() in upstream.heads[1]


@pytest.mark.parametrize("route", ["proxy", "base-url"])
def test_no_secret_reaches_the_database(tmp_path: Path, home: Path, route: Route) -> None:
    secrets = {
        "x-api-key": CANARY,
        "authorization": f"Bearer {CANARY}",
        "proxy-authorization": f"Basic {CANARY}",
        "cookie": f"session={CANARY}",
        "x-goog-api-key": CANARY,
        "api-key": CANARY,
        "x-unheard-of": CANARY,
    }

    def play(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\nset-cookie: a=" + CANARY.encode() + b"\r\ncontent-length: 2\r\n\r\n{}")

    with Upstream(play) as upstream, capture(tmp_path, upstream=upstream.url, route=route, home=home) as it:
        it.client.post(
            it.base + f"/v1/messages?key={CANARY}&beta=true",
            content=b"{}",
            headers={**secrets, "x-claude-code-session-id": "s1"},
        )
        until(lambda: it.recording.writer.stored == 1)
        files = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        assert {"traces.db", "traces.db-wal"} <= set(files)
        assert [name for name, data in files.items() if CANARY.encode() in data] == []

    assert CANARY.encode() in upstream.heads[0]
    (call,) = recorded(tmp_path)
    assert CANARY not in repr(call)  # the file is compressed: a search of its bytes alone could not fail
    assert call.url.endswith("/v1/messages?key=REDACTED&beta=true")
    assert call.request_header("x-claude-code-session-id") == "s1"
    assert [p.name for p in tmp_path.iterdir() if CANARY.encode() in p.read_bytes()] == []
    assert [p.name for p in home.iterdir() if p.is_file() and CANARY.encode() in p.read_bytes()] == []


def test_database_key_and_folder_are_private(tmp_path: Path, home: Path) -> None:
    with capture(tmp_path, upstream="http://127.0.0.1:1", home=home):
        pass
    with Store.open(tmp_path / "traces.db"):
        modes = {
            p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "traces.db", home, home / "ca" / "mitmproxy-ca.pem")
        }

    assert modes == {"traces.db": 0o600, home.name: 0o700, "mitmproxy-ca.pem": 0o600}


def test_a_client_that_does_not_trust_us_is_named_in_the_notes(tmp_path: Path, home: Path) -> None:
    with capture(tmp_path, upstream="http://127.0.0.1:1", home=home) as it:
        with (
            httpx.Client(proxy=it.recording.url, trust_env=False) as distrustful,
            pytest.raises(httpx.ConnectError),
        ):
            distrustful.post("https://api.anthropic.com/v1/messages", content=b"{}")
        it.recording.server.stop()
        (note,) = it.recording.notes()

    assert note.startswith("api.anthropic.com: the client broke off TLS")


def test_what_is_tunnelled_is_not_looked_into(tmp_path: Path, home: Path) -> None:
    """Not TLS, not HTTP, and the server speaks first."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        capture(tmp_path, upstream="http://127.0.0.1:1", home=home) as it,
        socket.create_connection(("127.0.0.1", int(it.recording.url.rpartition(":")[2])), PATIENCE_S) as client,
    ):
        client.sendall(f"CONNECT 127.0.0.1:{listener.getsockname()[1]} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(b"\x00\xffEHLO\r\n")
        server, _ = listener.accept()
        with server:
            assert server.recv(65536) == b"\x00\xffEHLO\r\n"
            server.sendall(b"220 ready\r\n")
            assert client.recv(65536) == b"220 ready\r\n"

    assert recorded(tmp_path) == []


def test_the_server_of_a_tunnel_gets_the_clients_own_first_flight(tmp_path: Path, home: Path) -> None:
    """The ClientHello arrives byte for byte, its random numbers included: nobody stood between."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        handshake.do_handshake()
    hello = outgoing.read()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        capture(tmp_path, upstream="http://127.0.0.1:1", home=home) as it,
        socket.create_connection(("127.0.0.1", int(it.recording.url.rpartition(":")[2])), PATIENCE_S) as client,
    ):
        client.sendall(f"CONNECT 127.0.0.1:{listener.getsockname()[1]} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(hello)
        server, _ = listener.accept()
        with server:
            received = b""
            while len(received) < len(hello):
                received += server.recv(65536)

    assert hello[:1] == b"\x16"
    assert received == hello
    assert it.recording.tee.refused == {}


def test_we_listen_on_loopback_alone_unless_asked(tmp_path: Path, home: Path) -> None:
    with capture(tmp_path, upstream="http://127.0.0.1:1", home=home) as it:
        port = int(it.recording.url.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port), PATIENCE_S):
            pass


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("", False),
        ("my-machine", False),
    ],
)
def test_what_counts_as_loopback(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it


def listening(folder: Path, home: Path, host: str) -> tuple[str, list[str]]:
    said: list[str] = []
    options = Options(folder / "traces.db", upstream="http://127.0.0.1:1", listen=host)
    environ = {"MEMORYWALKER_HOME": str(home)}
    with recording(options, profile=harnesses.profile("generic"), environ=environ, notice=said.append) as it:
        port = int(it.url.rpartition(":")[2])
        with socket.create_connection((host, port), PATIENCE_S) as client:
            client.sendall(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        return it.variables["HTTPS_PROXY"].rpartition(":")[0], said


@pytest.mark.parametrize(("host", "url"), [("127.0.0.2", "http://127.0.0.2"), ("::1", "http://[::1]")])
def test_another_loopback_address_is_listened_on_in_silence(tmp_path: Path, home: Path, host: str, url: str) -> None:
    assert listening(tmp_path, home, host) == (url, [])


def test_an_address_that_others_reach_is_told_once(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """192.0.2.1 is set aside for documentation (RFC 5737): no machine has it, so nothing is exposed here."""
    with pytest.raises(LaunchError, match=r"^expected a free port, got .*, at 192\.0\.2\.1:0$"):
        run(
            ["true"],
            Options(tmp_path / "traces.db", listen="192.0.2.1"),
            environ={"MEMORYWALKER_HOME": str(home), "PATH": os.environ["PATH"]},
        )

    assert capsys.readouterr().err == (
        "memorywalker: listening on 192.0.2.1, which is not loopback: whoever reaches it can use this proxy\n"
    )
