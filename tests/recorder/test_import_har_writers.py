"""What browsers and proxies make of HAR: each oddity read as what happened on the wire."""

import json
from pathlib import Path

import pytest

from recorder.call import Call, Outcome
from recorder.importing import read_har

ASK = '{"model":"m","messages":[]}'
REPLY = '{"type":"message","content":[],"stop_reason":"end_turn"}'


def one(path: Path, entry: dict[str, object]) -> Call:
    (call,) = many(path, entry)
    return call


def many(path: Path, *entries: dict[str, object]) -> list[Call]:
    file = path / "a.har"
    file.write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}))
    return list(read_har(file))


def chrome(**response: object) -> dict[str, object]:
    """An entry as Chrome's network panel saves it over HTTP/2."""
    return {
        "_initiator": {"type": "script"},
        "_resourceType": "fetch",
        "startedDateTime": "2026-11-30T22:00:00.250Z",
        "time": -1,
        "request": {
            "method": "POST",
            "url": "https://api.anthropic.com/v1/messages",
            "httpVersion": "h2",
            "headers": [
                {"name": ":authority", "value": "api.anthropic.com"},
                {"name": ":method", "value": "POST"},
                {"name": "content-length", "value": 27},
                {"name": "anthropic-version", "value": "2023-06-01"},
            ],
            "queryString": [],
            "headersSize": -1,
            "bodySize": -1,
            "postData": {"mimeType": "application/json", "text": ASK, "params": []},
        },
        "response": {
            "status": 200,
            "statusText": "",
            "httpVersion": "h2",
            "headers": [
                {"name": "content-encoding", "value": "br"},
                {"name": "content-type", "value": "application/json"},
            ],
            "content": {"size": 56, "mimeType": "application/json", "text": REPLY},
            "bodySize": -1,
            "_transferSize": 80,
            "_error": None,
            **response,
        },
        "timings": {"blocked": -1, "dns": -1, "ssl": -1, "connect": -1, "send": 0.5, "wait": 99.5, "receive": 1},
    }


def test_text_that_was_decoded_loses_the_header_that_says_how_it_was_encoded(tmp_path: Path) -> None:
    call = one(tmp_path, chrome())
    assert call.response_headers == (("content-type", "application/json"),)
    assert call.response_body == REPLY.encode()
    assert call.request_headers == (("content-length", "27"), ("anthropic-version", "2023-06-01"))
    assert (call.outcome, call.first_byte_s, call.duration_s) == (Outcome.COMPLETE, 0.1, None)


def test_bytes_kept_as_base64_keep_their_header(tmp_path: Path) -> None:
    content = {"size": 4, "text": "KLUv/Q==", "encoding": "base64"}
    call = one(tmp_path, chrome(content=content, headers=[{"name": "Content-Encoding", "value": "zstd"}]))
    assert (call.response_body, call.response_headers) == (b"\x28\xb5\x2f\xfd", (("content-encoding", "zstd"),))


@pytest.mark.parametrize(
    ("response", "outcome", "error"),
    [
        ({"status": 0, "content": {}, "_error": "net::ERR_ABORTED"}, Outcome.ABORTED, "net::ERR_ABORTED"),
        (
            {"status": 0, "content": {}, "_error": "net::ERR_CONNECTION_REFUSED"},
            Outcome.UNANSWERED,
            "net::ERR_CONNECTION_REFUSED",
        ),
        ({"content": {"size": 1200}}, Outcome.TRUNCATED, "recorder: the HAR does not hold the body"),
        ({"content": {"size": 0}, "status": 500}, Outcome.HTTP_ERROR, ""),
    ],
)
def test_how_a_browser_says_that_a_response_is_not_there(
    tmp_path: Path, response: dict[str, object], outcome: Outcome, error: str
) -> None:
    call = one(tmp_path, chrome(**response))
    assert (call.outcome, call.error) == (outcome, error)


def test_an_entry_without_a_response_was_not_answered(tmp_path: Path) -> None:
    request = {"method": "POST", "url": "https://api.anthropic.com/v1/messages"}
    call = one(tmp_path, {"request": request})
    assert (call.outcome, call.status, call.started_at_utc, call.request_body) == (Outcome.UNANSWERED, None, 0.0, b"")


def test_firefox_times_bear_a_zone_and_forms_have_no_text(tmp_path: Path) -> None:
    entry = chrome() | {"startedDateTime": "2026-12-01T01:00:00.250+03:00"}
    form = {"mimeType": "application/x-www-form-urlencoded", "params": [{"name": "a b", "value": "1&2"}, {"name": "c"}]}
    assert isinstance(entry["request"], dict)
    entry["request"]["postData"] = form
    call = one(tmp_path, entry)
    assert (call.started_at_utc, call.request_body) == (1796076000.25, b"a+b=1%262&c=")


def test_entries_that_share_a_comment_are_told_apart(tmp_path: Path) -> None:
    entries = [chrome() | {"comment": "page"}, chrome() | {"comment": "page"}, chrome()]
    assert [c.source for c in many(tmp_path, *entries)] == ["a.har#page", "a.har#page~2", "a.har#2"]


def test_a_header_without_a_value_is_empty(tmp_path: Path) -> None:
    call = one(tmp_path, chrome(headers=[{"name": "request-id"}, {"name": "date", "value": None}]))
    assert call.response_headers == (("request-id", ""), ("date", ""))
