"""Serves a page that follows a database: one HTML document, then what comes later as server-sent events.

It knows nothing of trees: what it serves is handed in as a `Growing`. The address holds a secret, so that neither
another user of the machine nor a web page in the same browser can read what the database keeps from them.
"""

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from recorder.call import Call
from recorder.errors import LaunchError
from recorder.follow import tail
from recorder.reader import UNFINISHED
from recorder.store import Store

HOST = "127.0.0.1"
POLL_S = 0.25
KEEP_ALIVE_S = 15.0
"""A comment that often, so that a reader who left is noticed."""
_START_LIMIT_S = 10.0
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


class Growing(Protocol):
    """What is served: calls go in, pieces come out."""

    @property
    def pieces(self) -> Sequence[str]:
        """JSON on one line each; only ever gets longer."""

    def restart(self) -> None:
        """All calls are about to come again."""

    def add(self, call: Call) -> None: ...

    def publish(self) -> None:
        """Make a piece of what was added."""

    def html(self) -> str:
        """The document, the pieces so far inside it."""


class PageServer:
    """Serves until the block is left, or from `run` until interrupted."""

    def __init__(self, db: str | Path, page: Growing, *, port: int = 0, poll_s: float = POLL_S) -> None:
        """Port 0 takes a free one. StoreError: the database cannot be read. LaunchError: the port is taken."""
        self._db, self._page, self._poll_s = db, page, poll_s
        self._stop = threading.Event()
        self._secret = secrets.token_urlsafe(12)
        self._failure = ""
        calls = tail(db, poll_s=poll_s, until=self._stop)  # from now on: what ends while the rest is read is not missed
        self._lock = threading.Lock()
        self._fresh = False
        self._seen: set[int] = set()
        self._socket = _listen(port)
        try:
            self._pending = self._read_all()
        except BaseException:
            self._socket.close()
            raise
        self._server = _server(self._app())
        self._follower = threading.Thread(target=self._follow, args=(calls,), daemon=True)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._socket.getsockname()[1]}/{self._secret}/"

    def run(self) -> None:
        """Serve from this thread until interrupted."""
        self._follower.start()
        try:
            self._server.run([self._socket])
        finally:
            self._end()

    def __enter__(self) -> "PageServer":
        self._follower.start()
        self._thread.start()
        deadline = time.monotonic() + _START_LIMIT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise LaunchError(f"page: expected to serve on {self.url} within {_START_LIMIT_S:g} s, got nothing")
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()
        self._socket.close()

    def _end(self) -> None:
        self._stop.set()
        self._follower.join(timeout=5)

    def _read_all(self) -> set[int]:
        """Hands every call over; the numbers of those that had not ended yet."""
        pending = set()
        with Store.open(self._db, create=False) as store:
            for call in store.calls():
                self._page.add(call)
                self._seen.add(call.seq)
                if call.error == UNFINISHED:
                    pending.add(call.seq)
        self._fresh = True
        return pending

    def _follow(self, calls: Iterator[Call]) -> None:
        """What ends later. A call that was shown while it ran is told again, with all others: trees do not forget."""
        try:
            for call in calls:
                with self._lock:
                    if call.seq in self._pending:
                        self._page.restart()
                        self._pending = self._read_all()
                    elif call.seq not in self._seen:
                        self._seen.add(call.seq)
                        self._page.add(call)
                        self._fresh = True
        except Exception as e:  # noqa: BLE001  the page stays up and says so
            self._failure = f"{type(e).__name__}: {e}"

    def _pieces(self) -> Sequence[str]:
        """Made when somebody asks, so that a burst of calls becomes one."""
        with self._lock:
            if self._fresh:
                self._page.publish()
                self._fresh = False
        return self._page.pieces

    def _html(self) -> str:
        self._pieces()
        return self._page.html()

    def _app(self) -> Starlette:
        return Starlette(
            routes=[Route(f"/{self._secret}/", self._document), Route(f"/{self._secret}/events", self._events)]
        )

    async def _document(self, request: Request) -> Response:
        return HTMLResponse(await asyncio.to_thread(self._html), headers=_HEADERS)

    async def _events(self, request: Request) -> Response:
        """Pieces behind the `after`th, or, to a reader who lost the connection, behind the last that it has."""
        after = request.headers.get("last-event-id") or request.query_params.get("after", "0")
        if not after.isascii() or not after.isdigit():
            return PlainTextResponse(f"expected after=NUMBER, got {after[:40]!r}\n", 400, headers=_HEADERS)
        return StreamingResponse(self._stream(int(after)), media_type="text/event-stream", headers=_HEADERS)

    async def _stream(self, at: int) -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        quiet = 0.0
        while not self._stop.is_set() and not self._server.should_exit:
            pieces = await asyncio.to_thread(self._pieces)
            while at < len(pieces):
                yield f"id: {at + 1}\ndata: {pieces[at]}\n\n"
                at, quiet = at + 1, 0.0
            if self._failure:
                yield f"event: failure\ndata: {' '.join(self._failure.split())}\n\n"
                return
            await asyncio.sleep(self._poll_s)
            quiet += self._poll_s
            if quiet >= KEEP_ALIVE_S:
                yield ": still here\n\n"
                quiet = 0.0


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise LaunchError(f"page: expected a free port, got {reason} on {HOST}:{port}") from e


def _server(app: Starlette) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)
