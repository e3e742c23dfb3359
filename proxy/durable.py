"""Make a tape outlive us before it is stored: append it to the journal on a thread of its own, then hand it on.

    event loop --(a queue)--> this thread: journal --(a queue)--> writer's thread --(a pipe)--> store

A tape whose journal cannot be written goes on all the same; it is durable when the store has it.
"""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from proxy.tape import Tape, call_of
from proxy.writer import DRAIN_S, FLUSH_S, Ledger, Writer
from recorder.journal import Journal

SHOWN_S = 1.0
"""How often the database is told what of running replies has arrived, which readers see and the journal has: ours."""


class Durable:
    """A `Sink` before the writer. `begin`, `end` and `room` are the proxy's thread's and never wait."""

    def __init__(
        self, journal: Journal, open_store: Callable[[], Ledger], *, run: str, notice: Callable[[str], None]
    ) -> None:
        """As `Writer`, which it owns."""
        self._journal = journal
        self._run = run
        self.writer = Writer(open_store, run=run, notice=notice, flush_s=SHOWN_S, over=self._over)
        self._queue: SimpleQueue[tuple[str, Tape] | None] = SimpleQueue()
        self._open: dict[Tape, int] = {}
        """Calls that run: how many of their chunks are in the journal; -1 = not even the response's head."""
        self._given = 0
        self._passed = 0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="memorywalker-journal", daemon=True)

    @property
    def lost(self) -> int:
        """Those of the writer, and calls that a disk which hangs held up until it was too late to store them."""
        return self.writer.lost + self._given - self._passed

    def start(self) -> None:
        """Raises what opening the store raises."""
        self.writer.start()
        self._thread.start()

    def begin(self, tape: Tape) -> None:
        self._given += 1
        tape.taken = False
        self._queue.put(("begin", tape))

    def end(self, tape: Tape) -> None:
        self._queue.put(("end", tape))

    def room(self, size_bytes: int) -> bool:
        return self.writer.room(size_bytes)

    def close(self) -> None:
        """Hand on what is left and let the writer end; what it could not manage in time stays in the journal."""
        if self._closed:
            return
        self._closed = True
        if self._thread.ident is not None:
            self._queue.put(None)
            self._thread.join(DRAIN_S)
        self.writer.close()
        if self._thread.is_alive():
            return
        while not self._queue.empty():
            if item := self._queue.get():
                self._take(*item)
        self._journal.close(keep=self.writer.abandoned)

    def _over(self, tape: Tape) -> None:
        """It is stored or given up: the writer says so, on its own thread."""
        self._queue.put(("over", tape))

    def _work(self) -> None:
        flush_at = time.monotonic() + FLUSH_S
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, flush_at - time.monotonic()) if self._open else None)
                if item is None:
                    return
                self._take(*item)
            except Empty:
                pass
            if time.monotonic() >= flush_at:
                for tape in list(self._open):
                    self._try(self._piece, tape)
                flush_at = time.monotonic() + FLUSH_S

    def _take(self, word: str, tape: Tape) -> None:
        if word == "begin":
            self._try(self._begin, tape)
            self._passed += 1
            self.writer.begin(tape)
            tape.taken = tape.taken or tape in self._open
        elif word == "end":
            if tape in self._open:
                self._try(self._end, tape)
                self._open.pop(tape, None)
            self.writer.end(tape)
        else:
            self._try(lambda it: self._journal.forget(it.key), tape)

    def _begin(self, tape: Tape) -> None:
        self._journal.begin(tape.key, call_of(tape, run=self._run))
        self._open[tape] = -1

    def _piece(self, tape: Tape) -> None:
        done, count = self._open[tape], len(tape.chunks)
        if tape.status is None or count == done:
            return
        head = call_of(tape, run=self._run) if done < 0 else None
        self._journal.piece(tape.key, b"".join(tape.chunks[max(done, 0) : count]), head)
        self._open[tape] = count

    def _end(self, tape: Tape) -> None:
        rest = b"".join(tape.chunks[max(self._open[tape], 0) :])
        self._journal.end(tape.key, call_of(tape, run=self._run), rest)

    def _try(self, note: Callable[[Tape], None], tape: Tape) -> None:
        try:
            note(tape)
        except Exception:  # noqa: BLE001  # a call that the journal lacks is still on its way to the store
            self._open.pop(tape, None)
