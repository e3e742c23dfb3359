"""A store in a process of its own, so that hashing and SQL never hold up the event loop (one interpreter, one lock).

    writer thread --(pickle over a socket pair)--> child: the same store, the same calls, the same errors

The child is a fork, taken while we have no other thread: it costs a few milliseconds and inherits nothing that runs.
It outlives a killed parent for as long as it takes to store what it was given. Where there are threads already, or no
fork, the store stays on the writer's thread; so it does when the child dies. benchmarks/capture.md has what this buys.
"""

import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from proxy.writer import Ledger
from recorder.call import Call
from recorder.errors import StoreError
from recorder.journal import Journal
from recorder.outcome import settle

LENGTH = struct.Struct("!Q")
BUFFER_BYTES = 1 << 20
"""A whole request in one write: each write lets go of the interpreter lock and must win it back."""

NICE = 10
"""Beside a busy process it gets a tenth of a core; with 19, a seventieth. Ours: benchmarks/capture.md."""

Reply = tuple[bool, object]
"""Whether it went well, and the result or the error."""


class Apart:
    """The child, forked now where that can be done, and the way to its store."""

    def __init__(self, open_store: Callable[[], Ledger], *, journal: Journal | None = None) -> None:
        """With a journal, what is to be stored outlives us already: the child lets everyone else go first."""
        self._open_store = open_store
        self._child = 0
        self._connection: socket.socket | None = None
        if not _alone():
            return
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._child = os.fork()
        if self._child == 0:
            ours.close()
            if journal:
                journal.leave()
                os.nice(NICE)
            _serve(theirs, open_store)
        theirs.close()
        self._connection = ours

    def open(self) -> Ledger:
        """Open the store, there or here; for the writer's thread. Raises what opening raises."""
        if self._connection is None:
            return self._open_store()
        return StoreApart(self._connection, self._open_store)

    def close(self) -> None:
        """Let the child store what it was given, and end."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            os.waitpid(self._child, 0)


def _alone() -> bool:
    """No other thread, Python's or a library's, that a fork would cut off half-way."""
    try:
        return hasattr(os, "fork") and len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


class StoreApart:
    """A `Ledger` whose store is in the child. Used by the writer's thread alone."""

    settles = True
    """Calls that end may come as they are: the child reads how their stream ended."""

    def __init__(self, connection: socket.socket, open_store: Callable[[], Ledger]) -> None:
        """Raises what opening raises there."""
        self._connection: socket.socket | None = connection
        self._open_store = open_store
        self._here: Ledger | None = None
        self._ask("open")

    def start(self, call: Call, once: bytes, /) -> int:
        return self._number("start", call, once)

    def append(self, pieces: Mapping[int, bytes], /) -> None:
        self._ask("append", dict(pieces))

    def finish(self, seq: int, call: Call, /) -> None:
        """The store has the request already: half a megabyte is not sent twice."""
        self._ask("finish", seq, replace(call, request_body=b"") if self._connection else settle(call))

    def put(self, call: Call, once: bytes, /) -> int:
        return self._number("put", call if self._connection else settle(call), once)

    def held(self, run: str, /) -> int:
        return self._number("held", run)

    def close(self) -> None:
        self._ask("close")

    def _number(self, method: str, *arguments: object) -> int:
        number = self._ask(method, *arguments)
        assert isinstance(number, int)
        return number

    def _ask(self, method: str, *arguments: object) -> object:
        if self._connection is None:
            if self._here is None:
                self._here = self._open_store()
            return getattr(self._here, method)(*arguments)
        try:
            _send(self._connection, (method, arguments))
            return self._result()
        except OSError as e:
            self._connection = None
            raise StoreError(f"store: expected its process to answer, got {e}; it goes on in this one") from e

    def _result(self) -> object:
        assert self._connection is not None
        reply = _receive(self._connection)
        if reply is None:
            raise ConnectionResetError("its end")
        good, value = reply
        if good:
            return value
        assert isinstance(value, Exception)
        raise value


def _serve(connection: socket.socket, open_store: Callable[[], Ledger]) -> None:
    """The child's whole life. Never returns."""
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the agent and for our parent
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):  # whoever reads what the agent prints shall see it end when the agent ends
            os.dup2(nothing, descriptor)
        _answer(connection, open_store)
        code = 0
    except (OSError, StoreError):
        pass  # our parent is gone; what it had said is stored, or waits for whoever opens the database next
    finally:
        sys.stderr.flush()
        os._exit(code)


def _answer(connection: socket.socket, open_store: Callable[[], Ledger]) -> None:
    store: Ledger | None = None
    while (asked := _receive(connection)) is not None:
        method, arguments = asked
        assert isinstance(method, str)
        assert isinstance(arguments, tuple)
        reply: Reply
        try:
            if method == "open":
                store = open_store()
                reply = True, None
            else:
                if method in ("finish", "put"):
                    arguments = tuple(settle(a) if isinstance(a, Call) else a for a in arguments)
                reply = True, getattr(store, method)(*arguments)
        except Exception as e:  # noqa: BLE001  # raised in the parent
            reply = False, _portable(e)
        _send(connection, reply)
        if method == "close":
            return
    if store is not None:
        store.close()
        open_store().close()  # our parent was killed: what it had not given us yet is in its journal


def _portable(error: Exception) -> Exception:
    """Ours as they are; a library's may not survive the journey."""
    return error if type(error) is StoreError else StoreError(str(error))


def _send(connection: socket.socket, message: tuple[object, object]) -> None:
    data = pickle.dumps(message, protocol=5)
    sent = connection.sendmsg((LENGTH.pack(len(data)), data)) - LENGTH.size  # no copy while we hold the lock
    if sent < len(data):
        connection.sendall(memoryview(data)[sent:])


def _receive(connection: socket.socket) -> tuple[object, object] | None:
    """The next message; None at the end, also in the middle of one: who sent it is gone, and has said nothing."""
    head = _exactly(connection, LENGTH.size)
    data = head and _exactly(connection, LENGTH.unpack(head)[0])
    if not data:
        return None
    message: tuple[object, object] = pickle.loads(data)
    return message


def _exactly(connection: socket.socket, size_bytes: int) -> bytearray | None:
    data = bytearray(size_bytes)
    view, have = memoryview(data), 0
    while have < size_bytes:
        count = connection.recv_into(view[have:], size_bytes - have, socket.MSG_WAITALL)
        if not count:
            return None
        have += count
    return data
