"""mitmproxy's own flow files (`mitmdump -w`) -> calls, one flow in memory at a time; bodies are those of the wire."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mitmproxy import http
from mitmproxy.exceptions import FlowReadException
from mitmproxy.io import FlowReader

from recorder import wire
from recorder.call import Call, Outcome
from recorder.errors import SourceError
from recorder.headers import clean_url, kept
from recorder.importing import Counts, run_of
from recorder.imports.websocket import Frame, turns
from recorder.outcome import settled

_START = re.compile(rb"\d{1,12}:\d{1,4}:[a-z_]+[,;]")
"""A tnetstring of a dictionary whose first key is a word."""
_FAULTS = (FlowReadException, KeyError, TypeError, AttributeError, ValueError, OverflowError, MemoryError)
"""What mitmproxy raises on files that are damaged: the reader checks little."""


def is_flow_file(path: str | Path) -> bool:
    """Told by its first bytes; False for what cannot be read."""
    try:
        with open(path, "rb") as file:
            return _START.match(file.read(64)) is not None
    except OSError:
        return False


def read_flows(path: str | Path, *, counts: Counts | None = None) -> Iterator[Call]:
    """The model calls of a flow file in its order. SourceError names the file and the flow that cannot be read.

    A `recorder.importing.Reader`: `import_path(store, path, reader=read_flows)` stores each call once.
    """
    path, counts = Path(path), counts or Counts()
    run, index = run_of(path), 0
    with open(path, "rb") as file:
        flows = iter(FlowReader(file).stream())
        while True:
            try:
                flow = next(flows, None)
            except _FAULTS as e:
                said = " ".join(str(e).split()) or type(e).__name__
                raise SourceError(f"import: expected a mitmproxy flow, got {said}, at flow {index} of {path}") from e
            if flow is None:
                return
            found = (
                [settled(c) for c in _calls(flow, f"{path.name}#{index}", run)]
                if isinstance(flow, http.HTTPFlow)
                else []
            )
            counts.calls += len(found)
            counts.others += not found
            yield from found
            index += 1


def _calls(flow: http.HTTPFlow, source: str, run: str) -> Iterator[Call]:
    request, response = flow.request, flow.response
    url = request.pretty_url
    socket = flow.websocket is not None and bool(wire.classify("GET", url) or wire.classify("POST", url))
    if not socket and (request.method.upper() != "POST" or not wire.classify(request.method, url)):
        return
    outcome, error = _outcome(flow)
    call = Call(
        method=request.method,
        url=clean_url(url),
        status=response.status_code if response else None,
        outcome=outcome,
        request_headers=_headers(request.headers),
        response_headers=_headers(response.headers) if response else (),
        request_body=request.raw_content or b"",
        response_body=(response.raw_content or b"") if response else b"",
        started_at_utc=request.timestamp_start,
        first_byte_s=_since(request.timestamp_start, response.timestamp_start if response else None),
        duration_s=_since(request.timestamp_start, response.timestamp_end if response else None),
        error=error,
        source=source,
        run=run,
    )
    if not socket or flow.websocket is None:
        yield call
        return
    closed = flow.websocket.closed_by_client
    left = f"{'client' if closed else 'upstream'}: the websocket was closed ({flow.websocket.close_code})"
    call = replace(call, error=call.error or ("Client disconnected: " if closed else "") + left)
    yield from turns(call, (Frame(m.from_client, m.content, m.timestamp) for m in flow.websocket.messages))


def _outcome(flow: http.HTTPFlow) -> tuple[Outcome, str]:
    said = flow.error.msg if flow.error else ""
    if "client disconnected" in said.lower():
        return Outcome.ABORTED, said
    if flow.response is None:
        return Outcome.UNANSWERED, said or "recorder: the file holds no response"
    if said:
        return Outcome.TRUNCATED, said
    if flow.response.raw_content is None:
        return Outcome.TRUNCATED, "recorder: the file does not hold the body"
    return (Outcome.HTTP_ERROR if flow.response.status_code >= 400 else Outcome.COMPLETE), ""


def _headers(headers: http.Headers) -> tuple[tuple[str, str], ...]:
    return kept((n.decode("latin-1"), v.decode("latin-1")) for n, v in headers.fields)


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)
