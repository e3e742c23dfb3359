"""Run mitmproxy inside our own program: one thread, one loop, our two addons, no terminal, loopback unless asked.

mitmproxy's console programs load some thirty addons; each hook visits them all. Capture needs five of them, so a plain
`Master` carries those: listener, layer choice, certificates, h2c refusal and our tee.
"""

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from mitmproxy import options
from mitmproxy.addons.core import Core
from mitmproxy.addons.disable_h2c import DisableH2C
from mitmproxy.addons.next_layer import NextLayer
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.addons.tlsconfig import TlsConfig
from mitmproxy.connection import Client
from mitmproxy.master import Master

from proxy.addon import Tee
from recorder.errors import LaunchError

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("", "0.0.0.0", "::")

SERVER_CONNECTIONS = 256
"""To one address for one client connection. mitmproxy's five would leave the sixth stream of an HTTP/2 connection
waiting until one of them ended, where the server speaks HTTP/1.1: ours, above what a server lets a client open."""

START_S = 30.0
STOP_S = 5.0


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there. A name other than localhost is taken for reachable."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Settings:
    mode: str
    """mitmproxy's own word: `regular`, or `reverse:URL`."""
    confdir: Path
    """Where the authority is."""
    trusted: Path
    """PEM file of the roots by which upstream servers are judged."""
    allow_hosts: Sequence[str] = ()
    """Patterns of `host:port` whose TLS is opened; empty = whatever arrives is for us."""
    host: str = LOOPBACK
    """Address to listen on."""
    port: int = 0
    """0 = any free one."""
    chain: object | None = None
    """An addon that speaks to the proxy behind ours."""
    log: Path | None = None
    """Where mitmproxy's warnings go; None = nowhere. The agent's terminal never sees them."""


class Server:
    def __init__(self, tee: Tee, settings: Settings) -> None:
        self._tee = tee
        self._settings = settings
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self._master: Master | None = None
        self._listener: Proxyserver | None = None
        self._thread = threading.Thread(target=self._work, name="memorywalker-proxy", daemon=True)
        self.port = 0

    @property
    def url(self) -> str:
        """As a client on this machine reaches it."""
        host = self._settings.host
        if host in EVERYWHERE:
            host = LOOPBACK
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def start(self) -> None:
        """Listen. Raises LaunchError when the port cannot be had."""
        self._thread.start()
        if not self._started.wait(START_S):
            raise LaunchError(
                f"expected the proxy to listen within {START_S:.0f} s, got nothing, at {self._settings.host}"
            )
        if self._failed is not None:
            self._thread.join(STOP_S)
            raise LaunchError(
                f"expected a free port, got {self._failed}, at {self._settings.host}:{self._settings.port}"
            ) from self._failed

    def stop(self, *, linger_s: float = 1.0) -> None:
        """Stop listening, give running calls `linger_s` to end by themselves, close every connection."""
        master = self._master
        if master is None or not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._wind_down(linger_s), master.event_loop)
        self._thread.join(linger_s + STOP_S)

    def _work(self) -> None:
        with _quiet(self._settings.log):
            try:
                asyncio.run(self._main())
            except BaseException as e:  # noqa: BLE001  # told to start(), or too late to matter to anyone
                self._failed = e
            finally:
                self._started.set()

    async def _main(self) -> None:
        settings = self._settings
        opts = options.Options(
            mode=[settings.mode],
            listen_host=settings.host,
            listen_port=settings.port,
            confdir=str(settings.confdir),
            allow_hosts=list(settings.allow_hosts),
            ssl_verify_upstream_trusted_ca=str(settings.trusted),
        )
        self._master = Master(opts)
        self._listener = Proxyserver()  # type: ignore[no-untyped-call]
        ours = (_Running(self._report), _Wide(self._listener), *([settings.chain] if settings.chain else ()))
        addons = (Core(), self._listener, DisableH2C(), NextLayer(), TlsConfig(), self._tee, *ours)
        self._master.addons.add(*addons)  # type: ignore[no-untyped-call]
        opts.update(connection_strategy="lazy")  # type: ignore[no-untyped-call]  # eager dials before --upstream can act
        await self._master.run()
        if self._failed is not None:
            raise self._failed

    def _report(self) -> None:
        assert self._listener is not None
        assert self._master is not None
        for instance in self._listener.servers:
            if instance.last_exception is not None:
                cause = instance.last_exception.__cause__ or instance.last_exception
                self._failed = cause
                self._master.should_exit.set()
        if self._failed is None:
            self.port = self._listener.listen_addrs()[0][1]
            self._started.set()

    async def _wind_down(self, linger_s: float) -> None:
        assert self._listener is not None
        assert self._master is not None
        for instance in self._listener.servers:
            if instance.is_running:
                await instance.stop()
        await _until(lambda: self._tee.idle, limit_s=linger_s)
        self._tee.done()  # before the connections close, which would read as the client's doing
        writers = [t.writer for h in self._listener.connections.values() for t in h.transports.values()]
        for handler in list(self._listener.connections.values()):
            if (client := handler.transports.get(handler.client)) and client.handler:
                client.handler.cancel("the recorder stopped")
        listener = self._listener
        await _until(lambda: not listener.connections, limit_s=1.0)
        for writer in writers:
            if isinstance(writer, asyncio.StreamWriter):
                writer.transport.abort()  # close() would wait for a peer that no longer reads
        await asyncio.sleep(0)  # an aborted transport lets go of its socket on the next turn of the loop
        self._master.should_exit.set()


async def _until(happened: Callable[[], bool], *, limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while not happened() and loop.time() < end:
        await asyncio.sleep(0.01)


class _Running:
    """Calls back when mitmproxy has tried to listen."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report

    def running(self) -> None:
        self._report()


class _Wide:
    """Lets a client's streams reach their server all at once."""

    def __init__(self, listener: Proxyserver) -> None:
        self._listener = listener

    def client_connected(self, client: Client) -> None:
        if handler := self._listener.connections.get(client.id):
            handler.max_conns = defaultdict(lambda: asyncio.Semaphore(SERVER_CONNECTIONS))


class _quiet:
    """Send mitmproxy's warnings to a file, and nothing anywhere else."""

    def __init__(self, path: Path | None) -> None:
        self._handler: logging.Handler = logging.NullHandler() if path is None else _file(path)
        self._logger = logging.getLogger("mitmproxy")

    def __enter__(self) -> None:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.addHandler(self._handler)
        self._logger.setLevel(logging.WARNING)
        self._logger.propagate = False

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)
        self._handler.close()
        self._logger.level, self._logger.propagate = self._before


def _file(path: Path) -> logging.Handler:
    try:
        path.touch(mode=0o600, exist_ok=True)
        handler = logging.FileHandler(path, delay=True, encoding="utf-8")
    except OSError:
        return logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return handler
