"""A raw upstream on loopback that sends exactly the bytes a test wrote down, and a recording proxy on the way to it."""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from proxy import harnesses
from proxy.harnesses import Route
from proxy.recording import Options, Recording, recording
from recorder.call import Call
from recorder.store import Store

PATIENCE_S = 10.0
"""A test that waits this long has failed; none waits for the clock to pass."""

MODEL_URL = "https://api.anthropic.com"


@dataclass(frozen=True, slots=True)
class Identity:
    """A throw-away authority and a certificate of its for 127.0.0.1, localhost and model.test."""

    authority: Path
    chain: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain)
        return context


KEY_CERT_SIGN = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""Python 3.13 asks for it of an authority."""


def make_identity(folder: Path) -> Identity:
    issuer_key, leaf_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    start, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)

    def builder(name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
        )

    root = (
        builder(issuer, issuer_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(KEY_CERT_SIGN, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    leaf = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")]), leaf_key.public_key())
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.DNSName("model.test"), x509.IPAddress(ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    identity = Identity(folder / "authority.pem", folder / "chain.pem")
    identity.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    key = leaf_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    identity.chain.write_bytes(key + leaf.public_bytes(serialization.Encoding.PEM))
    return identity


class Peer:
    """One request that has arrived, and the connection to answer it on."""

    def __init__(self, connection: socket.socket, head: bytes, body: bytes) -> None:
        self._connection = connection
        self.head = head
        self.body = body

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def reset(self) -> None:
        """Cut the connection with a RST instead of a FIN."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()

    def close(self) -> None:
        """End the connection in order, TLS included."""
        if isinstance(self._connection, ssl.SSLSocket):
            self._connection = self._connection.unwrap()
        self._connection.close()

    def receive(self) -> bytes:
        return self._connection.recv(65536)


Play = Callable[[Peer], None]


class Upstream:
    """Plays `play` for each request, one thread a connection."""

    def __init__(self, play: Play, *, tls: ssl.SSLContext | None = None, deaf: bool = False) -> None:
        """`deaf` answers without reading the request, so that closing resets the connection."""
        self._play = play
        self._deaf = deaf
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._connections: list[socket.socket] = []
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(PATIENCE_S)
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._connections.append(connection)
            if self._deaf:
                self._play(Peer(connection, b"", b""))
                return
            while request := _read_request(connection):
                self.heads.append(request[0])
                self.bodies.append(request[1])
                self._play(Peer(connection, *request))
        except OSError:
            pass
        except BaseException as e:  # noqa: BLE001  # shown by the test, which sees an unexpected reply
            self.failures.append(e)
        finally:
            connection.close()


def _read_request(connection: socket.socket) -> tuple[bytes, bytes] | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        while not rest.endswith(b"0\r\n\r\n"):
            rest += connection.recv(65536)
        return head, unchunk(rest)
    length = next((int(line[15:]) for line in lower.split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(rest) < length:
        rest += connection.recv(65536)
    return head, rest


def unchunk(data: bytes) -> bytes:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if int(size, 16) == 0:
            return body
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]


@dataclass(frozen=True, slots=True)
class Capture:
    """A proxy that records, and a client that was told of it."""

    recording: Recording
    client: httpx.Client
    base: str
    db: Path


@contextmanager
def capture(
    folder: Path,
    *,
    upstream: str,
    route: Route = "proxy",
    home: Path,
    environ: Mapping[str, str] | None = None,
    hosts: tuple[str, ...] = (),
    base: str = MODEL_URL,
    redirect: bool = True,
) -> Iterator[Capture]:
    db = folder / "traces.db"
    variables = {"MEMORYWALKER_HOME": str(home), **(environ or {})}
    options = Options(db, route=route, upstream=upstream if redirect else None, hosts=hosts)
    with recording(options, profile=harnesses.profile("claude-code"), environ=variables) as it:
        if route == "proxy":
            context = ssl.create_default_context(cafile=it.variables["SSL_CERT_FILE"])
            client = httpx.Client(proxy=it.url, verify=context, trust_env=False, timeout=PATIENCE_S)
        else:
            base = it.variables["ANTHROPIC_BASE_URL"]
            client = httpx.Client(trust_env=False, timeout=PATIENCE_S)
        with client:
            yield Capture(it, client, base, db)


def connect(it: Capture, target: str, *, trusted: Path | None = None) -> socket.socket:
    """A raw connection to `target` as an agent would get it: through CONNECT and TLS, or straight to our listener."""
    host, port = it.recording.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    if it.recording.options.route == "base-url":
        return connection
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += connection.recv(1)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    context = ssl.create_default_context(cafile=str(trusted or it.recording.variables["SSL_CERT_FILE"]))
    return context.wrap_socket(connection, server_hostname=target.rpartition(":")[0])


def until(happened: Callable[[], bool]) -> None:
    """Wait for another thread's doing."""
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def recorded(folder: Path) -> list[Call]:
    with Store.open(folder / "traces.db", create=False) as store:
        assert store.verify() == []
        return list(store.calls())


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(text: str) -> bytes:
    return b"event: content_block_delta\ndata: " + text.encode() + b"\n\n"
