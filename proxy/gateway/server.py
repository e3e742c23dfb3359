"""The gateway on a loopback port: a context manager for programs, `serve` for the command line."""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import uvicorn

from proxy.gateway.app import Counts, Handlers, make_app
from proxy.gateway.engines import Engine
from proxy.gateway.engines.scripted import ScriptedEngine
from proxy.gateway.script import Script, load
from recorder.errors import LaunchError

HOST = "127.0.0.1"
_START_LIMIT_S = 10.0


class Gateway:
    """Serves an engine, or a script, from a thread of its own until the block is left."""

    def __init__(
        self,
        source: Engine | Script | str | Path,
        *,
        port: int = 0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`source` is an engine, a script or a script's path; port 0 takes a free one; `variables` fill the script."""
        script = load(source) if isinstance(source, (str, Path)) else source
        engine = ScriptedEngine(script, variables=variables) if isinstance(script, Script) else script
        self._handlers = Handlers(engine)
        self._socket = _listen(port)
        self._server = _server(self._handlers)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    @property
    def url(self) -> str:
        """Without a trailing slash and without /v1."""
        return f"http://{HOST}:{self._socket.getsockname()[1]}"

    @property
    def counts(self) -> Counts:
        return self._handlers.counts

    @property
    def requests(self) -> int:
        """Replies asked for so far."""
        return self._handlers.counts.requests

    def run(self) -> None:
        """Serve from this thread until interrupted."""
        self._server.run([self._socket])

    def __enter__(self) -> "Gateway":
        self._thread.start()
        deadline = time.monotonic() + _START_LIMIT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise LaunchError(f"gateway: expected to serve on {self.url} within {_START_LIMIT_S:g} s, got nothing")
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()
        self._socket.close()


def serve(
    source: Engine | Script | str | Path,
    *,
    port: int = 0,
    variables: Mapping[str, str] | None = None,
    announce: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until interrupted; `announce` gets the URL once it is listened on."""
    gateway = Gateway(source, port=port, variables=variables)
    announce(gateway.url)
    gateway.run()


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise LaunchError(f"gateway: expected a free port, got {reason} on {HOST}:{port}") from e


def _server(handlers: Handlers) -> uvicorn.Server:
    config = uvicorn.Config(
        make_app(handlers),
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",  # a cut is meant, and would be reported as an error
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)
