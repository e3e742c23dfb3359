"""Write tapes down on a thread of its own. The loop hands over and forgets; a failing store costs only the record."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Protocol

from proxy.addon import Fields, Tape
from recorder.call import Call, Outcome
from recorder.headers import clean_url, kept
from recorder.outcome import settled

LIMIT_BYTES = 1 << 30
"""Bodies held in memory before new ones are given up: ours, far above what 64 streams of long contexts hold."""

FLUSH_S = 0.2
"""How often what streams arrive is made durable, where the store can append: ours."""

DRAIN_S = 30.0


class Ledger(Protocol):
    """The slice of `recorder.store.Store` used here."""

    def start(self, call: Call, /) -> int: ...
    def finish(self, seq: int, call: Call, /) -> None: ...
    def put(self, call: Call, /) -> int: ...
    def close(self) -> None: ...


class Appending(Protocol):
    def append(self, seq: int, data: bytes, /) -> None: ...


class Writer:
    """Owns the store from `start()` to `close()`; `begin`, `end` and `room` are the proxy's thread's and never wait."""

    def __init__(
        self,
        open_store: Callable[[], Ledger],
        *,
        run: str,
        notice: Callable[[str], None],
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        """`open_store` is called on the writer's thread; `notice` gets one line the first time that a call is lost."""
        self._open_store = open_store
        self._run = run
        self._notice = notice
        self._limit_bytes = limit_bytes
        self._queue: SimpleQueue[tuple[str, Tape | None]] = SimpleQueue()
        self._taken = 0  # written by the proxy's thread only
        self._released = 0  # written by the writer's thread only
        self._seqs: dict[Tape, int] = {}
        self._flushed: dict[Tape, int] = {}
        self._begun = 0
        self._abandoned = False
        self._ready = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="memorywalker-writer", daemon=True)
        self.stored = 0
        """Calls that are whole in the store."""
        self.lost = 0
        """Calls of which the store has nothing, or not the end."""
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
            self._abandoned = True
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
        append = getattr(store, "append", None)
        due = time.monotonic() + FLUSH_S
        while True:
            try:
                wait_s = max(0.0, due - time.monotonic()) if self._seqs and append else None
                word, tape = self._queue.get(timeout=wait_s)
                if tape is None:
                    break
                (self._begin if word == "begin" else self._end)(store, tape)
            except Empty:
                pass
            if append and time.monotonic() >= due:
                self._flush(append)
                due = time.monotonic() + FLUSH_S
        try:
            store.close()
        except Exception as e:  # noqa: BLE001  # every call was counted when it was written
            self._lose(0, str(e))

    def _begin(self, store: Ledger, tape: Tape) -> None:
        try:
            self._seqs[tape] = store.start(call_of(tape, run=self._run))
        except Exception as e:  # noqa: BLE001  # traffic goes on; the call gets another try when it ends
            self.why = self.why or str(e)

    def _end(self, store: Ledger, tape: Tape) -> None:
        seq = self._seqs.pop(tape, 0)
        self._flushed.pop(tape, None)
        try:
            call = settled(replace(call_of(tape, run=self._run), seq=seq))
            if seq:
                store.finish(seq, call)
            else:
                store.put(call)
            if self._abandoned:
                return
            if tape.overflow:
                self._lose(1, f"more than {self._limit_bytes >> 20} MiB waited for the store")
            else:
                self.stored += 1
        except Exception as e:  # noqa: BLE001  # traffic goes on; the loss is shown at the end
            self._lose(1, str(e))
        self._released += len(tape.request_body) + sum(map(len, tape.chunks))

    def _flush(self, append: Callable[[int, bytes], None]) -> None:
        for tape, seq in self._seqs.items():
            done, have = self._flushed.get(tape, 0), len(tape.chunks)
            if have > done:
                try:
                    append(seq, b"".join(tape.chunks[done:have]))
                    self._flushed[tape] = have
                except Exception as e:  # noqa: BLE001  # finish() writes the whole body once more
                    self.why = self.why or str(e)

    def _lose(self, calls: int, why: str) -> None:
        first = self.lost == 0 and calls
        self.lost += calls
        self.why = self.why or why
        if first:
            self._notice(f"memorywalker: calls are being lost: {why}. The agent goes on; the summary counts them")


def call_of(tape: Tape, *, run: str) -> Call:
    """What may be stored of a tape: allow-listed headers, a URL without keys. A running call reads as truncated."""
    outcome, error = tape.outcome, tape.error
    if tape.overflow:
        outcome, error = Outcome.TRUNCATED, "recorder: the body was given up, the store was too slow"
    elif outcome is None:
        outcome = Outcome.TRUNCATED if tape.status else Outcome.UNANSWERED
        error = "recorder: in flight"
    return Call(
        method=tape.method,
        url=clean_url(tape.url),
        status=tape.status,
        outcome=outcome,
        request_headers=kept(_text(tape.request_headers)),
        response_headers=kept(_text(tape.response_headers)),
        request_body=tape.request_body,
        response_body=b"".join(tape.chunks),
        started_at_utc=tape.started_at_utc,
        first_byte_s=None if tape.first_byte is None else tape.first_byte - tape.started,
        duration_s=None if tape.ended is None else tape.ended - tape.started,
        error=error,
        source="proxy",
        run=run,
    )


def _text(fields: Fields) -> tuple[tuple[str, str], ...]:
    return tuple((n.decode("latin-1").lower(), v.decode("latin-1")) for n, v in fields)
