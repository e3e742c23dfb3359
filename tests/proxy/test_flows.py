"""A flow file as mitmdump writes it becomes the calls that were on the wire."""

from pathlib import Path

import pytest
from mitmproxy.flow import Error, Flow
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow, tutils
from mitmproxy.websocket import WebSocketMessage
from wsproto.frame_protocol import Opcode

from proxy.flows import is_flow_file, read_flows
from recorder.call import Outcome
from recorder.errors import SourceError
from recorder.importing import import_path
from recorder.store import Store

ASK = b'{"model":"m","messages":[]}'
REPLY = b'{"type":"message","content":[],"stop_reason":"end_turn"}'
GZIPPED = b"\x1f\x8b\x08\x00whatever"


def model_call(**response: object) -> HTTPFlow:
    request = tutils.treq(
        method=b"POST", host="api.anthropic.com", port=443, scheme=b"https", path=b"/v1/messages?key=sk-secret"
    )
    request.raw_content = ASK
    request.headers["x-api-key"] = "sk-secret"
    request.headers["anthropic-version"] = "2023-06-01"
    request.timestamp_start = 1796076000.25
    flow = tflow.tflow(req=request, resp=True)
    assert flow.response is not None
    flow.response.raw_content = REPLY
    flow.response.timestamp_start, flow.response.timestamp_end = 1796076000.75, 1796076002.25
    for name, value in response.items():
        setattr(flow.response, name, value)
    return flow


def written(path: Path, *flows: Flow) -> Path:
    with open(path, "wb") as file:
        writer = FlowWriter(file)  # type: ignore[no-untyped-call]
        for flow in flows:
            writer.add(flow)
    return path


def test_a_flow_becomes_a_call_without_its_secrets(tmp_path: Path) -> None:
    (call,) = read_flows(written(tmp_path / "f.mitm", model_call(raw_content=GZIPPED)))
    assert (call.method, call.url) == ("POST", "https://api.anthropic.com/v1/messages?key=REDACTED")
    assert (call.request_body, call.response_body) == (ASK, GZIPPED)
    assert ("anthropic-version", "2023-06-01") in call.request_headers
    assert "sk-secret" not in repr(call)
    assert (call.status, call.outcome, call.source) == (200, Outcome.COMPLETE, "f.mitm#0")
    assert (call.started_at_utc, call.first_byte_s, call.duration_s) == (1796076000.25, 0.5, 2.0)


def test_how_a_flow_ended_is_told(tmp_path: Path) -> None:
    refused, cut, left, streamed, limited = (model_call() for _ in range(5))
    refused.response, refused.error = None, Error("Connection refused")
    cut.error, left.error = Error("peer closed connection"), Error("Client disconnected.")
    assert streamed.response is not None
    assert limited.response is not None
    streamed.response.raw_content = None
    limited.response.status_code = 429
    calls = list(read_flows(written(tmp_path / "f.mitm", refused, cut, left, streamed, limited)))
    assert [(c.outcome, c.error) for c in calls] == [
        (Outcome.UNANSWERED, "Connection refused"),
        (Outcome.TRUNCATED, "peer closed connection"),
        (Outcome.ABORTED, "Client disconnected."),
        (Outcome.TRUNCATED, "recorder: the file does not hold the body"),
        (Outcome.HTTP_ERROR, ""),
    ]


def test_each_ask_over_a_websocket_is_a_call(tmp_path: Path) -> None:
    flow = tflow.twebsocketflow()
    flow.request.host, flow.request.path = "api.openai.com", "/v1/responses"
    assert flow.websocket is not None
    flow.websocket.messages = [
        WebSocketMessage(Opcode.TEXT, True, b'{"type":"response.create","input":[1]}', 10.0),
        WebSocketMessage(Opcode.TEXT, False, b'{"type":"response.completed","response":{"status":"completed"}}', 11.5),
        WebSocketMessage(Opcode.TEXT, True, b'{"type":"response.create","input":[2]}', 12.0),
        WebSocketMessage(Opcode.TEXT, False, b'{"type":"response.created"}', 12.5),
    ]
    whole, cut = read_flows(written(tmp_path / "f.mitm", flow))
    assert (whole.source, whole.status, whole.outcome) == ("f.mitm#0.ws001", 101, Outcome.COMPLETE)
    assert whole.request_body == b'{"type":"response.create","input":[1]}'
    assert whole.response_body.startswith(b'\x1e{"type":"response.completed"')
    assert (whole.started_at_utc, whole.duration_s) == (10.0, 1.5)
    assert (cut.source, cut.outcome) == ("f.mitm#0.ws002", Outcome.TRUNCATED)
    assert cut.error.startswith("upstream: the websocket was closed")


def test_a_flow_file_is_stored_once(tmp_path: Path) -> None:
    path = written(tmp_path / "f.mitm", model_call(), tflow.tflow(resp=True), tflow.tdnsflow(), model_call())
    with Store.open(tmp_path / "t.db") as store:
        first, second = (import_path(store, path, reader=read_flows) for _ in range(2))
        assert [c.source for c in store.calls()] == ["f.mitm#0", "f.mitm#3"]
    assert (first.added, first.already, first.others) == (2, 0, 2)
    assert (second.added, second.already) == (0, 2)


def test_a_flow_file_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    assert is_flow_file(written(tmp_path / "f.har", model_call()))
    (tmp_path / "g.mitm").write_text('{"log": {"entries": []}}')
    assert not is_flow_file(tmp_path / "g.mitm")
    assert not is_flow_file(tmp_path)


@pytest.mark.parametrize("damage", [lambda d: d[:-40], lambda d: d + b"12:rubbish", lambda d: d + b"3:1:1,}"])
def test_a_damaged_flow_file_is_one_line_and_stores_nothing(tmp_path: Path, damage: object) -> None:
    path = written(tmp_path / "f.mitm", model_call(), model_call())
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with Store.open(tmp_path / "t.db") as store:
        with pytest.raises(
            SourceError, match=r"^import: expected a mitmproxy flow, got .*, at flow [12] of .*f\.mitm$"
        ):
            import_path(store, path, reader=read_flows)
        assert list(store.calls()) == []
