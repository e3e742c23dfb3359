"""A proxy that the environment names already stays on the way, behind ours, and only where it was."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from loopback import HEAD, PATIENCE_S, Identity, Peer, Upstream, capture, connect, make_identity, recorded

from proxy.chain import Chain, chain
from proxy.harnesses import Route
from proxy.launch import run
from proxy.recording import Options
from recorder.errors import LaunchError

BODY = b'{"model":"m","messages":[]}'


def play(peer: Peer) -> None:
    peer.send(HEAD)
    peer.chunk(b"data: hello\n\n")
    peer.send(b"0\r\n\r\n")


class Corporate:
    """A proxy that leads every name to one port of loopback, and notes what it was asked."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[str] = []
        self.logins: list[str] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        lines = head.decode().splitlines()
        self.asked.append(lines[0])
        self.logins += [line.split(" ", 1)[1] for line in lines if line.lower().startswith("proxy-authorization:")]
        with client, socket.create_connection(("127.0.0.1", self._to), timeout=PATIENCE_S) as server:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join(PATIENCE_S)


def _pump(source: socket.socket, to: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("identity"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def upstream(identity: Identity) -> Iterator[Upstream]:
    with Upstream(play, tls=identity.server_context()) as upstream:
        yield upstream


def test_a_model_call_goes_through_it_with_its_login(
    tmp_path: Path, home: Path, identity: Identity, upstream: Upstream
) -> None:
    with Corporate(upstream.port) as corporate:
        environ = {"HTTPS_PROXY": f"http://me:p%40ss@{corporate.address}", "SSL_CERT_FILE": str(identity.authority)}
        with capture(
            tmp_path,
            upstream="",
            redirect=False,
            home=home,
            environ=environ,
            hosts=("model.test",),
            base="https://model.test",
        ) as it:
            replies = [it.client.post(it.base + "/v1/messages", content=BODY).content for _ in range(2)]

    assert replies == [b"data: hello\n\n"] * 2
    assert set(corporate.asked) == {"CONNECT model.test:443 HTTP/1.1"}
    assert set(corporate.logins) == {"Basic bWU6cEBzcw=="}  # me:p@ss
    assert [(c.url, c.request_body) for c in recorded(tmp_path)] == [("https://model.test/v1/messages", BODY)] * 2
    assert "bWU6cEBzcw" not in repr(recorded(tmp_path))


def test_the_base_url_route_goes_through_it_too(
    tmp_path: Path, home: Path, identity: Identity, upstream: Upstream
) -> None:
    with Corporate(upstream.port) as corporate:
        environ = {
            "https_proxy": corporate.address,
            "SSL_CERT_FILE": str(identity.authority),
            "ANTHROPIC_BASE_URL": "https://model.test",
        }
        with capture(tmp_path, upstream="", redirect=False, route="base-url", home=home, environ=environ) as it:
            reply = it.client.post(it.base + "/v1/messages", content=BODY).content

    assert reply == b"data: hello\n\n"
    assert corporate.asked == ["CONNECT model.test:443 HTTP/1.1"]
    assert [c.url for c in recorded(tmp_path)] == ["https://model.test/v1/messages"]


def test_what_is_tunnelled_untouched_goes_through_it(
    tmp_path: Path, home: Path, identity: Identity, upstream: Upstream
) -> None:
    with Corporate(upstream.port) as corporate:
        environ = {"HTTPS_PROXY": f"http://{corporate.address}"}
        with (
            capture(tmp_path, upstream="", redirect=False, home=home, environ=environ) as it,
            connect(it, "model.test:443", trusted=identity.authority) as connection,
        ):
            connection.sendall(b"POST / HTTP/1.1\r\nhost: model.test\r\ncontent-length: 0\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"

    assert corporate.asked == ["CONNECT model.test:443 HTTP/1.1"]


@pytest.mark.parametrize("route", ["proxy", "base-url"])
def test_an_upstream_on_loopback_is_reached_directly(tmp_path: Path, home: Path, route: Route) -> None:
    with Upstream(play) as upstream, Corporate(1) as corporate:
        environ = {"HTTPS_PROXY": f"http://{corporate.address}"}
        with capture(tmp_path, upstream=upstream.url, route=route, home=home, environ=environ) as it:
            assert it.client.post(it.base + "/v1/messages", content=BODY).content == b"data: hello\n\n"

    assert corporate.asked == []


def test_no_proxy_and_loopback_are_gone_to_directly() -> None:
    it = Chain(("http", ("proxy.corp", 8080)), bypass="inside.corp, .lab")
    hosts = ["api.anthropic.com", "inside.corp", "a.lab", "127.0.0.1", "::1", "localhost"]
    assert [it.via(host) is None for host in hosts] == [False, True, True, True, True, True]


@pytest.mark.parametrize(
    ("value", "mode", "login"),
    [
        ("http://proxy.corp:3128", "upstream:http://proxy.corp:3128", ""),
        ("proxy.corp:3128", "upstream:http://proxy.corp:3128", ""),
        ("https://u:p@proxy.corp", "upstream:https://proxy.corp:443", "u:p"),
        ("http://[2001:db8::1]:80/", "upstream:http://[2001:db8::1]:80", ""),
    ],
)
def test_every_way_to_name_it_is_read(value: str, mode: str, login: str) -> None:
    it = chain({"HTTPS_PROXY": value})
    assert it is not None
    assert (it.mode, it.login) == (mode, login)


def test_none_is_none() -> None:
    assert chain({"HTTPS_PROXY": "", "ALL_PROXY": "socks5://proxy.corp"}) is None


def test_one_that_cannot_be_chained_is_refused_without_its_password(tmp_path: Path) -> None:
    environ = {"HTTPS_PROXY": "socks5://me:secret@proxy.corp:1080", "PATH": "/bin:/usr/bin", "HOME": str(tmp_path)}
    with pytest.raises(LaunchError) as e:
        run(["true"], Options(tmp_path / "t.db"), environ=environ)
    assert (
        str(e.value) == "expected http://HOST:PORT or https://HOST:PORT, got socks5://proxy.corp:1080, at HTTPS_PROXY"
    )
