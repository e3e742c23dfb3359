"""What a stream's own end says, and which earlier call a call repeats: told from the bytes, not from headers."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from storecalls import CALL, anthropic, stream, turns

from recorder.call import Call, Outcome
from recorder.outcome import CUT, Repeat, settled
from recorder.store import Store

WHOLE = stream("There", " are")
ERROR = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
CHAT = "https://api.openai.com/v1/chat/completions"


def ended(body: bytes, **changes: object) -> tuple[Outcome, str]:
    call = settled(replace(CALL, response_body=body, **changes))  # type: ignore[arg-type]
    return call.outcome, call.error


def test_a_stream_with_its_end_marker_is_complete() -> None:
    assert ended(WHOLE) == (Outcome.COMPLETE, "")


def test_a_stream_without_its_end_marker_is_truncated() -> None:
    assert ended(WHOLE[: WHOLE.rindex(b"event: message_stop")]) == (Outcome.TRUNCATED, CUT)


def test_an_empty_stream_is_truncated() -> None:
    assert ended(b"") == (Outcome.TRUNCATED, CUT)


def test_a_stream_of_pings_is_truncated() -> None:
    assert ended(b'event: ping\ndata: {"type":"ping"}\n\n') == (Outcome.TRUNCATED, CUT)


def test_a_stream_cut_in_its_first_event_is_truncated() -> None:
    assert ended(b"event: message_start\nda") == (Outcome.TRUNCATED, CUT)


def test_an_error_event_makes_a_stream_error() -> None:
    assert ended(stream("There")[:400] + ERROR) == (Outcome.STREAM_ERROR, "overloaded_error: Overloaded")


def test_a_compressed_stream_is_read_too() -> None:
    headers = (*CALL.response_headers, ("content-encoding", "gzip"))
    assert ended(gzip.compress(WHOLE), response_headers=headers) == (Outcome.COMPLETE, "")
    assert ended(gzip.compress(ERROR), response_headers=headers)[0] is Outcome.STREAM_ERROR
    assert ended(gzip.compress(WHOLE)[:-30], response_headers=headers) == (Outcome.TRUNCATED, CUT)


def test_chat_ends_with_its_finish_reason_or_done() -> None:
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
    assert ended(piece, url=CHAT) == (Outcome.TRUNCATED, CUT)
    assert ended(piece + b"data: [DONE]\n\n", url=CHAT) == (Outcome.COMPLETE, "")


def test_events_of_another_language_are_left_as_the_transport_saw_them() -> None:
    assert ended(b"data: tick\n\ndata: tock\n\n") == (Outcome.COMPLETE, "")


def test_what_is_no_stream_is_left_alone() -> None:
    assert ended(b'{"cut', response_headers=(("content-type", "application/json"),)) == (Outcome.COMPLETE, "")


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.COMPLETE])
def test_what_the_transport_found_wrong_stays(outcome: Outcome) -> None:
    assert ended(WHOLE, outcome=outcome, error="client: gone") == (outcome, "client: gone")


def repeats(path: Path, *calls: Call) -> dict[int, Repeat]:
    with Store.open(path / "t.db") as store:
        for call in calls:
            store.put(call)
        return store.repeats()


ASK = replace(CALL, request_body=anthropic("Why?", stream=True))
FAILED = replace(ASK, outcome=Outcome.STREAM_ERROR, error="overloaded_error: Overloaded", response_body=ERROR)
AGAIN = replace(ASK, request_body=anthropic("Why?", stream=False))


def test_the_same_bytes_again_are_a_retry_of_the_newest(tmp_path: Path) -> None:
    busy = replace(ASK, status=529, outcome=Outcome.HTTP_ERROR, response_body=b"{}")
    assert repeats(tmp_path, busy, busy, ASK) == {2: Repeat(1, "retry"), 3: Repeat(2, "retry")}


def test_the_same_prefix_without_stream_after_a_failed_stream_is_a_fallback(tmp_path: Path) -> None:
    assert repeats(tmp_path, FAILED, AGAIN) == {2: Repeat(1, "fallback")}


def test_no_fallback_follows_a_stream_that_ended_well(tmp_path: Path) -> None:
    assert repeats(tmp_path, ASK, AGAIN) == {}


def test_another_body_that_streams_again_is_no_fallback(tmp_path: Path) -> None:
    assert repeats(tmp_path, FAILED, replace(ASK, request_body=anthropic("Why?", stream=True, max_tokens=5))) == {}


def test_sessions_and_runs_and_addresses_never_mix(tmp_path: Path) -> None:
    other_run = replace(ASK, run="r2")
    other_url = replace(ASK, url="https://api.anthropic.com/v1/messages/count_tokens")
    other_session = replace(ASK, request_headers=(("x-claude-code-session-id", "another"),))
    assert repeats(tmp_path, FAILED, other_run, other_session, other_url) == {}


def test_a_growing_session_repeats_nothing(tmp_path: Path) -> None:
    assert repeats(tmp_path, *turns(5)) == {}
