"""The load of benchmarks/capture.py: an upstream that stamps every event, and clients that read the stamps.

    python benchmarks/capture_load.py CHAIN.pem        prints the ports of a plain and of a TLS listener, then serves

Both ends use bare asyncio protocols, so that their own cost is small beside that of what stands between them. A stamp
is `time.monotonic_ns`, one clock for all processes of a machine: the delay of an event is the time from the write of
the upstream to the read of the client.
"""

import asyncio
import re
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

EVENTS = 200
PACE_S = 0.005
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nrequest-id: req_011\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STAMP = re.compile(rb'"t":(\d+)\}')
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant",'
    b'"model":"claude-opus-5-5","content":[],"stop_reason":null,"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
)
DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"%s"},"t":%d}\n\n'
)
STOP = (
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":200}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
WORDS = (b"the", b"context", b"of", b"a", b"policy", b"changes", b"when", b"tool", b"results", b"are", b"evicted")
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = bytearray()
        self._wanted = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._wanted and (end := self._data.find(b"\r\n\r\n")) >= 0:
            length = re.search(rb"\r\ncontent-length: *(\d+)", self._data[:end], re.IGNORECASE)
            self._wanted = end + 4 + (int(length[1]) if length else 0)
            if not length and b"chunked" in self._data[:end].lower():
                self._wanted = -1
        if (self._wanted > 0 and len(self._data) >= self._wanted) or (self._wanted < 0 and self._data.endswith(END)):
            self._data.clear()
            self._wanted = 0
            self._transport.write(HEAD + chunk(START))
            self._next(0, asyncio.get_running_loop().time())

    def _next(self, number: int, due: float) -> None:
        if self._transport.is_closing():
            return
        if number == EVENTS:
            self._transport.write(chunk(STOP) + END)
            return
        text = WORDS[number % len(WORDS)] + b" %d" % (number * 7919 % 1000)
        self._transport.write(chunk(DELTA % (text, time.monotonic_ns())))
        asyncio.get_running_loop().call_at(due + PACE_S, self._next, number + 1, due + PACE_S)


async def serve(chain: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    loop = asyncio.get_running_loop()
    plain = await loop.create_server(Upstream, "127.0.0.1", 0, backlog=256)
    tls = await loop.create_server(Upstream, "127.0.0.1", 0, ssl=context, backlog=256)
    print(*(s.sockets[0].getsockname()[1] for s in (plain, tls)), flush=True)
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Target:
    """How a client gets at the upstream."""

    port: int
    """Where it connects to."""
    path: str = "/v1/messages"
    connect: str = ""
    """HOST:PORT asked for by CONNECT; empty = no proxy, or a base URL."""
    authority: str = ""
    """PEM by which it judges the certificate; empty = no TLS."""


@dataclass(slots=True)
class Seen:
    """What the clients of one load saw. Seconds."""

    first_s: list[float] = field(default_factory=list)
    """From the request's first byte to the reply's first event, one a call."""
    delay_s: list[float] = field(default_factory=list)
    """From the upstream's write to the client's read, one an event."""
    gap_s: list[float] = field(default_factory=list)
    """Between two events as read, less the same as written, in absolute value: the unevenness that was added."""
    failed: int = 0
    """Calls that came back broken, or with an event missing."""
    calls: int = 0
    wall_s: float = 0.0


class Client(asyncio.Protocol):
    """Makes its calls one after the other on one connection."""

    def __init__(self, requests: Sequence[bytes], seen: Seen, done: asyncio.Future[None]) -> None:
        self._requests = iter(requests)
        self._left = len(requests)
        self._seen = seen
        self._done = done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def go(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._transport.close()
            self._finish()
            return
        self._tail = b""
        self._events = 0
        self._last: tuple[int, int] | None = None
        self._began = time.monotonic_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self._tail + data
        end = 0
        for match in STAMP.finditer(data):
            end = match.end()
            stamp = int(match[1])
            if not self._events:
                self._seen.first_s.append((now - self._began) / 1e9)
            self._events += 1
            self._seen.delay_s.append((now - stamp) / 1e9)
            if self._last:
                self._seen.gap_s.append(abs((now - self._last[0]) - (stamp - self._last[1])) / 1e9)
            self._last = now, stamp
        self._tail = data[max(end, len(data) - 64) :]
        if data.endswith(END):
            self._left -= 1
            self._seen.calls += 1
            self._seen.failed += self._events != EVENTS
            self.go()

    def connection_lost(self, exc: Exception | None) -> None:
        self._seen.failed += self._left
        self._left = 0
        self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


async def load(target: Target, sessions: Sequence[Sequence[bytes]]) -> Seen:
    """One client a session, all at once, starting evenly spread over one pace."""
    loop = asyncio.get_running_loop()
    seen = Seen()
    clients: list[Client] = []
    waiting: list[asyncio.Future[None]] = []
    for bodies in sessions:
        done = loop.create_future()
        client = Client([_request(target, b) for b in bodies], seen, done)
        connection = await _connect(target)
        context = ssl.create_default_context(cafile=target.authority) if target.authority else None
        await loop.create_connection(
            lambda client=client: client,
            sock=connection,
            ssl=context,
            server_hostname="localhost" if context else None,
        )
        clients.append(client)
        waiting.append(done)
    began = time.perf_counter()
    for client in clients:
        client.go()
        await asyncio.sleep(PACE_S / len(clients) if len(clients) > 1 else 0)
    await asyncio.gather(*waiting)
    seen.wall_s = time.perf_counter() - began
    return seen


async def _connect(target: Target) -> socket.socket:
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setblocking(False)
    await loop.sock_connect(connection, ("127.0.0.1", target.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if target.connect:
        await loop.sock_sendall(
            connection, f"CONNECT {target.connect} HTTP/1.1\r\nhost: {target.connect}\r\n\r\n".encode()
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await loop.sock_recv(connection, 4096)
        assert answer.startswith(b"HTTP/1.1 200"), answer
    return connection


def _request(target: Target, body: bytes) -> bytes:
    host = target.connect or f"127.0.0.1:{target.port}"
    return (
        f"POST {target.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        "user-agent: claude-cli/2.1.332 (external, sdk-cli)\r\nx-api-key: sk-ant-test\r\n"
        f"anthropic-version: 2023-06-01\r\naccept: */*\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
