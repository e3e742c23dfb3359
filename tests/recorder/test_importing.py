"""A HAR becomes the calls it holds, byte for byte; a file that is not one is one line and stores nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from recorder.call import Call, Outcome
from recorder.errors import SourceError
from recorder.importing import Counts, import_har, read_har
from recorder.store import Store

CAPTURES = Path(__file__).parents[1] / "captures"
LABELS: dict[str, list[dict[str, str]]] = json.loads((CAPTURES / "labels.json").read_text())
COPIED = sorted(f"{p.parent.name}/{p.stem}" for p in CAPTURES.glob("*/*.har"))

Entry = dict[str, object]


def entry(**changes: object) -> Entry:
    """A HAR entry of one Anthropic call; `request__x` and `response__x` change fields inside."""
    made: dict[str, dict[str, object]] = {
        "request": {
            "method": "POST",
            "url": "https://api.anthropic.com/v1/messages?beta=true",
            "headers": [{"name": "X-Api-Key", "value": "secret"}, {"name": "Anthropic-Version", "value": "2023-06-01"}],
            "postData": {"mimeType": "application/json", "text": '{"model":"m","messages":[]}'},
        },
        "response": {
            "status": 200,
            "headers": [{"name": "Content-Type", "value": "application/json"}],
            "content": {
                "size": 2,
                "mimeType": "application/json",
                "text": '{"type":"message","stop_reason":"end_turn"}',
            },
        },
    }
    top: Entry = {"startedDateTime": "2026-11-30T22:00:00.250Z", "time": 1500.0, "timings": {"send": 25, "wait": 100}}
    for name, value in changes.items():
        where, _, field = name.partition("__")
        (made[where] if field else top)[field or where] = value
    return {**top, **made}


def har(path: Path, *entries: Entry) -> Path:
    path.write_text(json.dumps({"log": {"version": "1.2", "creator": {}, "entries": list(entries)}}))
    return path


def one(path: Path, **changes: object) -> Call:
    (call,) = read_har(har(path / "a.har", entry(**changes)))
    return call


def test_an_entry_becomes_a_call(tmp_path: Path) -> None:
    call = one(tmp_path)
    assert replace(call, run="") == Call(
        method="POST",
        url="https://api.anthropic.com/v1/messages?beta=true",
        status=200,
        outcome=Outcome.COMPLETE,
        request_headers=(("anthropic-version", "2023-06-01"),),
        response_headers=(("content-type", "application/json"),),
        request_body=b'{"model":"m","messages":[]}',
        response_body=b'{"type":"message","stop_reason":"end_turn"}',
        started_at_utc=1796076000.25,
        first_byte_s=0.125,
        duration_s=1.5,
        source="a.har#0",
    )
    assert call.run.startswith("import-")


@pytest.mark.parametrize("name", COPIED)
def test_the_calls_of_a_capture_are_those_that_are_labelled(name: str) -> None:
    rows = [f"{name.split('/')[1]}.har#{row['entry']}" for row in LABELS[name]]
    assert [c.source for c in read_har(CAPTURES / f"{name}.har")] == rows


def test_a_file_is_imported_once_however_often_it_is_given(tmp_path: Path) -> None:
    path = CAPTURES / "claude-code/multiturn.har"
    with Store.open(tmp_path / "t.db") as store:
        first, second = import_har(store, path), import_har(store, path)
        assert (first.added, first.already, first.others) == (12, 0, 10)
        assert (second.added, second.already, second.others) == (0, 12, 10)
        assert len(list(store.calls(run=first.run))) == 12
        assert store.verify() == []


def test_base64_content_and_lone_surrogates_keep_their_bytes(tmp_path: Path) -> None:
    assert one(tmp_path, response__content={"text": "H4sI/w==", "encoding": "base64"}).response_body == (
        b"\x1f\x8b\x08\xff"
    )
    assert one(tmp_path, request__postData={"text": "\ud83d ok \u2028"}).request_body == b"\xed\xa0\xbd ok \xe2\x80\xa8"


@pytest.mark.parametrize(
    ("changes", "outcome", "status"),
    [
        ({"response___error": "Client disconnected."}, Outcome.ABORTED, 200),
        ({"response___error": "peer closed connection without sending complete message body"}, Outcome.TRUNCATED, 200),
        ({"response__status": 0, "response___error": "connection refused"}, Outcome.UNANSWERED, None),
        ({"response__status": 429}, Outcome.HTTP_ERROR, 429),
    ],
)
def test_how_an_exchange_ended_is_told(
    tmp_path: Path, changes: dict[str, object], outcome: Outcome, status: int | None
) -> None:
    call = one(tmp_path, **changes)
    assert (call.outcome, call.status, call.error) == (outcome, status, changes.get("response___error", ""))


def streamed(path: Path, text: str) -> Call:
    headers = [{"name": "content-type", "value": "text/event-stream"}]
    return one(path, response__headers=headers, response__content={"text": text})


def test_a_stream_that_carries_an_error_event_is_a_stream_error(tmp_path: Path) -> None:
    call = streamed(
        tmp_path, 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    )
    assert (call.outcome, call.error) == (Outcome.STREAM_ERROR, "overloaded_error: Overloaded")


def test_a_stream_without_its_end_is_truncated_though_nobody_said_so(tmp_path: Path) -> None:
    call = streamed(tmp_path, 'event: message_start\ndata: {"type":"message_start","message":{"id":"m"}}\n\n')
    assert (call.outcome, call.error) == (Outcome.TRUNCATED, "upstream: the stream ended before its last event")


def test_each_ask_over_a_websocket_is_a_call(tmp_path: Path) -> None:
    def frame(way: str, at: float, data: str, opcode: int = 1) -> Entry:
        return {"type": way, "time": at, "opcode": opcode, "data": data}

    ws = entry(
        comment="004",
        request__method="GET",
        request__url="https://api.openai.com/v1/responses",
        response__status=101,
        _webSocketMessages=[
            frame("send", 10.0, '{"type":"response.create","input":[1]}'),
            frame("receive", 10.5, '{"type":"response.created"}'),
            frame("receive", 12.0, '{"type":"response.completed","response":{"status":"completed"}}'),
            frame("send", 12.5, '{"type":"session.update"}'),
            frame("send", 13.0, '{"type":"response.create","input":[2]}'),
            frame("receive", 13.5, "eyJ0eXBlIjoicmVzcG9uc2UuY3JlYXRlZCJ9", 2),
            frame("send", 14.0, '{"type":"response.create","input":[3]}'),
        ],
    )
    first, third, fourth = read_har(har(tmp_path / "w.har", ws))
    assert (first.source, third.source, fourth.source) == ("w.har#004.ws001", "w.har#004.ws003", "w.har#004.ws004")
    assert first.request_body == b'{"type":"response.create","input":[1]}'
    assert first.response_body == (
        b'\x1e{"type":"response.created"}\n\x1e{"type":"response.completed","response":{"status":"completed"}}\n'
    )
    assert (first.status, first.outcome, first.started_at_utc) == (101, Outcome.COMPLETE, 10.0)
    assert (first.first_byte_s, first.duration_s) == (0.5, 2.0)
    assert (third.outcome, third.response_body) == (Outcome.TRUNCATED, b'\x1e{"type":"response.created"}\n')
    assert third.error == "the websocket ended before the turn did"
    assert (fourth.outcome, fourth.first_byte_s) == (Outcome.UNANSWERED, None)


def test_what_is_no_model_call_is_counted(tmp_path: Path) -> None:
    counts = Counts()
    others = [entry(request__url="https://api.anthropic.com/api/event_logging"), entry(request__method="GET")]
    assert len(list(read_har(har(tmp_path / "a.har", entry(), *others), counts=counts))) == 1
    assert (counts.calls, counts.others) == (1, 2)


GOOD = json.dumps(entry())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "import: expected a HAR, got an empty file at F"),
        ("hello", "import: expected JSON of a HAR, got b'hello' at the start of F"),
        ("[]", "import: expected JSON of a HAR, got b'[]' at the start of F"),
        ("{}", "import: expected a HAR with log.entries, got other JSON in F"),
        ('{"log": {"entries": {}}}', "import: expected a HAR with log.entries, got other JSON in F"),
        ('{"log": {"entries": [1]}}', "import: expected objects in log.entries, got others at byte 21 of F"),
        (f'{{"log":{{"entries":[{GOOD}', "import: expected JSON to its end, got the end of the file at byte"),
        (
            f'{{"log":{{"entries":[{GOOD}{GOOD}]}}}}',
            "import: expected entries apart by a comma, got others before byte",
        ),
        (
            f'{{"log":{{"entries":[{GOOD},{{"request":1}}]}}}}',
            "import: request: expected an object, got int, at entry 1 of F",
        ),
        (f'{{"log":{{"entries":[{GOOD},{{oops}}]}}}}', "import: expected JSON, got "),
        (
            json.dumps({"log": {"entries": [entry(response__content={"text": "?", "encoding": "base64"})]}}),
            "import: response.content.text: expected base64, got ",
        ),
        (
            json.dumps({"log": {"entries": [entry(startedDateTime="yesterday")]}}),
            "import: startedDateTime: expected an ISO 8601 time, got 'yesterday', at entry 0 of F",
        ),
    ],
)
def test_a_file_that_is_no_har_is_one_line_and_stores_nothing(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.har"
    path.write_text(content)
    with Store.open(tmp_path / "t.db") as store:
        with pytest.raises(SourceError) as caught:
            import_har(store, path)
        assert list(store.calls()) == []
    line = str(caught.value).replace(str(path), "F")
    assert line.startswith(said)
    assert "\n" not in line


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"^import: expected a file to read, got No such file or directory at .*no\.har$"
    ):
        list(read_har(tmp_path / "no.har"))
    with pytest.raises(SourceError, match="got Is a directory"):
        list(read_har(tmp_path))
