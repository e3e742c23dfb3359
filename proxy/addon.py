"""Tee what passes and hand it over. Hooks never parse, hash, store or wait; whatever fails here, traffic goes on."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from mitmproxy import http

from proxy.tape import Tape
from recorder.call import Outcome

FRAME_START, FRAME_END = b"\x1e", b"\n"
"""RFC 7464, as `Call.response_body` promises for websocket turns."""

LAST_EVENTS = (b"response.completed", b"response.failed", b"response.incomplete", b'"error"')
"""Types that end a Responses turn over a websocket; they stand at the very start of the frame (WIRE.md section 4)."""


DURABLE_S = 1.0
"""How long, at most, the end of a response waits for its request to be durable: ours; a dead disk stops nobody."""
POLL_S = 0.002


class Sink(Protocol):
    """Where tapes go. Both methods return at once and never raise for want of room."""

    def begin(self, tape: Tape, /) -> None: ...
    def end(self, tape: Tape, /) -> None: ...
    def room(self, size_bytes: int, /) -> bool:
        """False = the bytes may not be kept."""


class Tee:
    def __init__(self, sink: Sink, *, route: Callable[[http.HTTPFlow], str]) -> None:
        """`route` may redirect the request; it returns the URL to record, or nothing for one not to be recorded."""
        self._sink = sink
        self._route = route
        self._open: dict[str, Tape] = {}
        self._pending: dict[str, str] = {}
        self.lost = 0
        """Calls that this class failed to hand over."""
        self.refused: dict[str, str] = {}
        """Host to reason: clients that broke off the TLS handshake, most often because they do not trust us."""

    @property
    def idle(self) -> bool:
        """No call is running."""
        return not self._open

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        url = ""
        try:
            url = self._route(flow)
        except Exception:  # noqa: BLE001  # traffic goes on; the loss is shown at the end
            self.lost += 1
        if url:
            self._pending[flow.id] = url
        else:
            flow.request.stream = not _lengthless(flow.request)

    def request(self, flow: http.HTTPFlow) -> None:
        if url := self._pending.pop(flow.id, ""):
            self._guard(self._begin, flow, url)
        if _lengthless(flow.request) and (body := flow.request.raw_content):
            flow.request.headers["content-length"] = str(len(body))

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        response = flow.response
        if response is None:
            return
        tape = self._open.get(flow.id)
        if tape is None:
            response.stream = response.status_code != 101
            return
        tape.status = response.status_code
        tape.response_headers = response.headers.fields
        response.stream = self._tap(tape)

    async def response(self, flow: http.HTTPFlow) -> None:
        """All but the end has gone to the client; the end waits, shortly, for a request that is not durable yet."""
        tape = self._open.pop(flow.id, None)
        if tape is None or flow.response is None:
            return
        if tape.status is None:
            tape.status = flow.response.status_code
            tape.response_headers = flow.response.headers.fields
        self._finish(tape, Outcome.HTTP_ERROR if tape.status >= 400 else Outcome.COMPLETE)
        give_up = time.perf_counter() + DURABLE_S
        while not tape.taken and time.perf_counter() < give_up:
            await asyncio.sleep(POLL_S)

    def error(self, flow: http.HTTPFlow) -> None:
        self._pending.pop(flow.id, None)
        if tape := self._open.pop(flow.id, None):
            self._guard(self._broken, flow, tape)

    def done(self) -> None:
        for tape in self._open.values():
            self._finish(tape, Outcome.TRUNCATED if tape.status else Outcome.UNANSWERED, error="the recorder stopped")
        self._open.clear()

    def websocket_message(self, flow: http.HTTPFlow) -> None:
        if flow.websocket is None:
            return
        message = flow.websocket.messages[-1]
        flow.websocket.messages.clear()
        self._guard(self._frame, flow, message.from_client, message.content)

    def websocket_end(self, flow: http.HTTPFlow) -> None:
        if (tape := self._open.pop(flow.id, None)) and flow.websocket is not None:
            by_client = flow.websocket.closed_by_client
            outcome = Outcome.ABORTED if by_client else Outcome.TRUNCATED
            who = "client" if by_client else "upstream"
            self._finish(tape, outcome, error=f"the {who} closed the websocket ({flow.websocket.close_code})")

    def tls_failed_client(self, data: object) -> None:
        connection = getattr(data, "conn", None)
        self.refused[str(getattr(connection, "sni", "") or "?")] = str(getattr(connection, "error", ""))

    def _begin(self, flow: http.HTTPFlow, url: str) -> None:
        now = time.perf_counter()
        at = flow.request.timestamp_start
        tape = Tape(
            method=flow.request.method,
            url=url,
            request_headers=flow.request.headers.fields,
            request_body=flow.request.raw_content or b"",
            started_at_utc=at,
            started=now - max(0.0, time.time() - at),
        )
        if flow.request.headers.get("upgrade", "").lower() == "websocket":
            flow.metadata["memorywalker"] = tape  # each frame of the client will be a call; the handshake is none
            return
        if self._sink.room(len(tape.request_body)):
            self._open[flow.id] = tape
            self._sink.begin(tape)
        else:
            self.lost += 1

    def _tap(self, tape: Tape) -> Callable[[bytes], bytes]:
        chunks, room = tape.chunks, self._sink.room

        def tap(data: bytes) -> bytes:
            try:
                if data and not tape.overflow:
                    if tape.first_byte is None:
                        tape.first_byte = time.perf_counter()
                    if room(len(data)):
                        chunks.append(data)
                    else:
                        tape.overflow = True
            except Exception:  # noqa: BLE001  # traffic goes on; the loss is shown at the end
                tape.overflow = True
            return data

        return tap

    def _frame(self, flow: http.HTTPFlow, from_client: bool, content: bytes) -> None:
        handshake = flow.metadata.get("memorywalker")
        if not isinstance(handshake, Tape):
            return
        now = time.perf_counter()
        tape = self._open.get(flow.id)
        if from_client:
            if tape is not None:
                self._finish(tape, Outcome.COMPLETE)
            tape = Tape(
                method=handshake.method,
                url=handshake.url,
                request_headers=handshake.request_headers,
                request_body=content,
                started_at_utc=time.time(),
                started=now,
                status=101,
                response_headers=flow.response.headers.fields if flow.response else (),
            )
            self._open.pop(flow.id, None)
            if self._sink.room(len(content)):
                self._open[flow.id] = tape
                self._sink.begin(tape)
            else:
                self.lost += 1
        elif tape is not None:
            if tape.first_byte is None:
                tape.first_byte = now
            chunk = FRAME_START + content + FRAME_END
            if self._sink.room(len(chunk)):
                tape.chunks.append(chunk)
            else:
                tape.overflow = True
            if any(event in content[:80] for event in LAST_EVENTS):
                del self._open[flow.id]
                self._finish(tape, Outcome.COMPLETE)

    def _broken(self, flow: http.HTTPFlow, tape: Tape) -> None:
        said = flow.error.msg if flow.error else ""
        by_client = not flow.client_conn.connected or "reset by client (CANCEL)" in said
        cut = Outcome.UNANSWERED if tape.status is None else Outcome.TRUNCATED
        outcome = Outcome.ABORTED if by_client else cut
        self._finish(tape, outcome, error=f"{'client' if by_client else 'upstream'}: {said}")

    def _finish(self, tape: Tape, outcome: Outcome, *, error: str = "") -> None:
        tape.ended = time.perf_counter()
        tape.error = error
        tape.outcome = outcome
        self._guard(self._sink.end, tape)

    def _guard(self, action: Callable[..., None], *args: object) -> None:
        try:
            action(*args)
        except Exception:  # noqa: BLE001  # traffic goes on; the loss is shown at the end
            self.lost += 1


def _lengthless(request: http.Request) -> bool:
    """HTTP/2 needs no length; to a server that speaks HTTP/1.1 mitmproxy would send the body with no frame at all."""
    return request.is_http2 and "content-length" not in request.headers
