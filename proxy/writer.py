"""Write tapes down on a thread of its own. The loop hands over and forgets; a failing store costs only the record.

A store that fails is asked again every second: calls that have ended wait in memory, so that one that heals (a lock let
go, a disk with room again) loses nothing. At the end the file itself is asked what it holds: that is what is told.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Protocol

from proxy.tape import Tape, call_of
from recorder.call import Call
from recorder.outcome import settle

LIMIT_BYTES = 1 << 30
"""Bodies held in memory before new ones are given up: ours, far above what 64 streams of long contexts hold."""

FLUSH_S = 0.2
"""How often what streams arrive is made durable: ours."""

RETRY_S = 1.0
"""How long a store that failed is left alone before it is asked again: ours."""

LAST_TRY_S = 5.0
"""At the end, how long calls that wait are offered to a store that fails: ours."""

DRAIN_S = 30.0


class Ledger(Protocol):
    """The slice of `recorder.store.Store` used here."""

    def start(self, call: Call, once: bytes, /) -> int: ...
    def append(self, pieces: Mapping[int, bytes], /) -> None: ...
    def finish(self, seq: int, call: Call, /) -> None: ...
    def put(self, call: Call, once: bytes, /) -> int: ...
    def held(self, run: str, /) -> int: ...
    def close(self) -> None: ...


class Writer:
    """Owns the store from `start()` to `close()`; `begin`, `end` and `room` are the proxy's thread's and never wait."""

    def __init__(
        self,
        open_store: Callable[[], Ledger],
        *,
        run: str,
        notice: Callable[[str], None],
        limit_bytes: int = LIMIT_BYTES,
        redact: Callable[[Call], Call] | None = None,
        flush_s: float = FLUSH_S,
        over: Callable[[Tape], None] = lambda _: None,
    ) -> None:
        """`open_store` is called on the writer's thread; `notice` gets one line the first time that a call cannot be
        stored. `redact` sees each call before the store does; replies are then stored whole only, not as they come.
        `over` gets each tape that is stored or given up."""
        self._open_store = open_store
        self._run = run
        self._notice = notice
        self._limit_bytes = limit_bytes
        self._redact = redact
        self._flush_s = flush_s
        self._over = over
        self._queue: SimpleQueue[tuple[str, Tape | None]] = SimpleQueue()
        self._taken = 0  # written by the proxy's thread only
        self._released = 0  # written by the writer's thread only
        self._seqs: dict[Tape, int] = {}
        """Calls that run, and their numbers in the store (0 = it has not taken their start yet)."""
        self._flushed: dict[Tape, int] = {}
        self._waiting: dict[Tape, int] = {}
        """Ended calls that the store did not take, and their seqs (0 = not started), the longest untried first."""
        self._waiting_bytes = 0
        self._resume_at = 0.0
        self._begun = 0
        self._noticed = False
        self._ready = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="memorywalker-writer", daemon=True)
        self.stored = 0
        """Calls that are whole in the store."""
        self.lost = 0
        """Calls of which the store has nothing, or not the end."""
        self.abandoned = False
        """Closing did not wait for the last calls."""
        self.why = ""
        """What the store said the first time."""

    def start(self) -> None:
        """Open the store. Raises what opening raises: a database that cannot be used is told before the agent runs."""
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed

    def begin(self, tape: Tape) -> None:
        self._begun += 1
        tape.taken = False
        self._queue.put(("begin", tape))

    def end(self, tape: Tape) -> None:
        self._queue.put(("end", tape))

    def room(self, size_bytes: int) -> bool:
        if self._taken - self._released + size_bytes > self._limit_bytes:
            return False
        self._taken += size_bytes
        return True

    def close(self, *, timeout_s: float = DRAIN_S) -> None:
        """Write what is queued, at most for `timeout_s`; what is left then counts as lost."""
        self._queue.put(("stop", None))
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.abandoned = True
            left = self._begun - self.stored - self.lost
            self._lose(left, f"the store did not take the last {left} calls within {timeout_s:.0f} s")

    def _work(self) -> None:
        try:
            store = self._open_store()
        except Exception as e:  # noqa: BLE001  # handed to start(), which raises it
            self._failed = e
            return
        finally:
            self._ready.set()
        flush_at = time.monotonic() + self._flush_s
        while True:
            try:
                word, tape = self._queue.get(timeout=self._idle_s(flush_at))
                if tape is None:
                    break
                (self._begin if word == "begin" else self._end)(store, tape)
            except Empty:
                pass
            if self._down:
                continue
            if self._waiting:
                self._try_again(store)
            if time.monotonic() >= flush_at:
                self._flush(store)
                flush_at = time.monotonic() + self._flush_s
        self._last_try(store)
        if not self.abandoned:
            self._recount(store)
        try:
            store.close()
        except Exception as e:  # noqa: BLE001  # every call was counted when it was written
            self.why = self.why or str(e)

    @property
    def _down(self) -> bool:
        return time.monotonic() < self._resume_at

    def _idle_s(self, flush_at: float) -> float | None:
        """How long there is nothing to do but wait for the proxy; None = for ever."""
        if not self._seqs and not self._waiting:
            return None
        return max(0.0, (self._resume_at if self._down else flush_at) - time.monotonic())

    def _begin(self, store: Ledger, tape: Tape) -> None:
        self._seqs[tape] = 0
        try:
            if not self._down:
                self._seqs[tape] = store.start(self._call(tape), tape.key)
        except Exception as e:  # noqa: BLE001  # traffic goes on; the call gets another try at the next flush
            self._fail(e)
        finally:
            tape.taken = True

    def _end(self, store: Ledger, tape: Tape) -> None:
        seq = self._seqs.pop(tape, 0)
        self._flushed.pop(tape, None)
        if self._down or not self._write(store, tape, seq):
            self._waiting[tape] = seq
            self._waiting_bytes += _size_bytes(tape)
            while self._waiting_bytes > self._limit_bytes // 4:
                self._give_up(next(iter(self._waiting)))

    def _write(self, store: Ledger, tape: Tape, seq: int) -> bool:
        try:
            call = replace(self._call(tape), seq=seq)
            if not getattr(store, "settles", False):
                call = settle(call)
            if seq:
                store.finish(seq, call)
            else:
                store.put(call, tape.key)
        except Exception as e:  # noqa: BLE001  # traffic goes on; the call waits and is counted at the end
            self._fail(e)
            self._tell(str(e))
            return False
        self._released += _size_bytes(tape)
        self._over(tape)
        if tape.overflow:
            self._lose(1, f"more than {self._limit_bytes >> 20} MiB waited for the store")
        elif not self.abandoned:
            self.stored += 1
        return True

    def _call(self, tape: Tape) -> Call:
        call = call_of(tape, run=self._run)
        return self._redact(call) if self._redact else call

    def _try_again(self, store: Ledger) -> None:
        """Each waiting call once, or up to the first that fails again; that one goes to the end of the row."""
        for tape, seq in list(self._waiting.items()):
            written = self._write(store, tape, seq)
            del self._waiting[tape]
            if not written:
                self._waiting[tape] = seq
                return
            self._waiting_bytes -= _size_bytes(tape)

    def _last_try(self, store: Ledger) -> None:
        end = time.monotonic() + LAST_TRY_S
        for tape, seq in list(self._waiting.items()):
            if time.monotonic() < end and self._write(store, tape, seq):
                del self._waiting[tape]
        for tape in list(self._waiting):
            self._give_up(tape)

    def _give_up(self, tape: Tape) -> None:
        del self._waiting[tape]
        self._waiting_bytes -= _size_bytes(tape)
        self._released += _size_bytes(tape)
        self._over(tape)
        self._lose(1, self.why)

    def _recount(self, store: Ledger) -> None:
        """A file that was removed or overwritten takes what it is given without a word; whoever opens it next knows."""
        if not self.stored:
            return
        try:
            held, why = store.held(self._run), "the file does not hold them any more"
        except Exception as e:  # noqa: BLE001  # what cannot be read back is lost
            held, why = 0, str(e)
        if held < self.stored:
            gone, self.stored = self.stored - held, held
            self._lose(gone, why)

    def _flush(self, store: Ledger) -> None:
        for tape in [t for t, seq in self._seqs.items() if not seq]:
            if not self._down:
                self._begin(store, tape)
        if self._down or self._redact:  # half a secret is not recognised
            return
        pieces: dict[int, bytes] = {}
        have = {tape: len(tape.chunks) for tape, seq in self._seqs.items() if seq}
        for tape, count in have.items():
            if count > (done := self._flushed.get(tape, 0)):
                pieces[self._seqs[tape]] = b"".join(tape.chunks[done:count])
        if not pieces:
            return
        try:
            store.append(pieces)
            self._flushed |= have
        except Exception as e:  # noqa: BLE001  # finish() writes the whole body once more
            self._fail(e)

    def _fail(self, error: Exception) -> None:
        self._resume_at = time.monotonic() + RETRY_S
        self.why = self.why or str(error)

    def _lose(self, calls: int, why: str) -> None:
        self.lost += calls
        self.why = self.why or why
        if calls:
            self._tell(why)

    def _tell(self, why: str) -> None:
        if not self._noticed:
            self._noticed = True
            self._notice(f"memorywalker: calls cannot be stored: {why}. The agent goes on; the summary counts the lost")


def _size_bytes(tape: Tape) -> int:
    return len(tape.request_body) + sum(map(len, tape.chunks))
