"""Calls are found by what is known of them, and their tokens add up."""

import json
from dataclasses import replace

import pytest
from storecalls import CALL, SESSION, anthropic, stream, turns

from recorder.call import Call, Outcome
from recorder.errors import FilterError
from recorder.listing import SessionUsage, added, row, usage
from recorder.message import Usage
from recorder.wanted import Wanted, instant, rows, size_bytes


def reported(session: str, **tokens: int) -> Call:
    body = stream("x").replace(b'{"output_tokens": 3}', json.dumps(tokens).encode())
    return replace(CALL, request_body=anthropic("Hi.", session=session), response_body=body)


def test_a_row_says_who_spoke_and_what_it_was() -> None:
    one = row(CALL)
    assert (one.session, one.harness, one.wire, one.kind) == (SESSION, "claude-code", "anthropic", "generate")
    assert (one.model, one.outcome, one.messages, one.usage.output) == ("claude-opus-5-5", "complete", 1, 3)


CALLS = [
    replace(CALL, seq=1, started_at_utc=100.0),
    replace(CALL, seq=2, started_at_utc=200.0, status=429, outcome=Outcome.HTTP_ERROR, response_body=b"{}"),
    replace(CALL, seq=3, started_at_utc=300.0, request_headers=(), request_body=anthropic("x" * 5000, session="other")),
]


@pytest.mark.parametrize(
    ("wanted", "seqs"),
    [
        (Wanted(), [1, 2, 3]),
        (Wanted(session="5f0c"), [1, 2]),
        (Wanted(session="other"), [3]),
        (Wanted(harness="claude-*"), [1, 2]),
        (Wanted(wire="openai_chat"), []),
        (Wanted(model="CLAUDE-OPUS*"), [1, 2, 3]),
        (Wanted(model="opus"), []),
        (Wanted(outcome="http_error"), [2]),
        (Wanted(status="200"), [1, 3]),
        (Wanted(status="4xx"), [2]),
        (Wanted(since_utc=200.0), [2, 3]),
        (Wanted(until_utc=200.0), [1]),
        (Wanted(min_bytes=5000), [3]),
        (Wanted(session="5f0c", status="2xx", since_utc=50.0), [1]),
    ],
)
def test_calls_are_found_by_what_is_known_of_them(wanted: Wanted, seqs: list[int]) -> None:
    assert [one.seq for one in rows(CALLS, wanted)] == seqs


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Wanted(outcome="fine"), "expected an outcome out of complete, .*; got 'fine'"),
        (lambda: Wanted(status="4x"), "expected a status such as 429 or 4xx, got '4x'"),
        (lambda: instant("soon", now_utc=0.0), "expected a time such as .*, got 'soon'"),
        (lambda: size_bytes("big"), "expected a size such as .*, got 'big'"),
    ],
)
def test_a_filter_that_says_nothing_is_one_line(made: object, said: str) -> None:
    with pytest.raises(FilterError, match=f"^{said}$"):
        made()  # type: ignore[operator]


def test_times_and_sizes_are_read_as_people_write_them() -> None:
    assert instant("2h", now_utc=10_000.0) == 2800.0
    assert instant("2026-11-30T22:00:00", now_utc=0.0) == 1796076000.0
    assert instant("2026-12-01T01:00:00+03:00", now_utc=0.0) == 1796076000.0
    assert [size_bytes(t) for t in ("1500", "20k", "1.5MB", "2 g")] == [1500, 20_000, 1_500_000, 2_000_000_000]


def test_tokens_add_up_by_session_and_what_nobody_reported_stays_unknown() -> None:
    calls = [
        reported("a", input_tokens=10, output_tokens=5, cache_read_input_tokens=30),
        reported("b", output_tokens=7),
        reported("a", input_tokens=20, output_tokens=5, cache_read_input_tokens=40, cache_creation_input_tokens=100),
        replace(CALL, request_body=anthropic("Hi.", session="b"), response_body=b"", outcome=Outcome.UNANSWERED),
    ]
    assert list(usage(map(row, calls))) == [
        SessionUsage("a", 2, 2, Usage(30, 10, 70, 100)),
        SessionUsage("b", 2, 1, Usage(None, 7, None, None)),
    ]
    (a, b) = usage(map(row, calls))
    assert (a.cache_share, b.cache_share) == (0.35, None)
    assert added(Usage(1), Usage(None, 2)) == Usage(1, 2)


def test_tokens_that_were_only_counted_were_not_used() -> None:
    count = replace(
        CALL, url="https://api.anthropic.com/v1/messages/count_tokens", response_body=b'{"input_tokens":9000}'
    )
    assert list(usage([row(count)])) == [SessionUsage(SESSION, 1, 0, Usage())]


def test_a_session_without_an_id_goes_by_its_run() -> None:
    call = replace(CALL, request_headers=(), request_body=b'{"model":"m","messages":[]}', run="r7")
    assert [u.session for u in usage([row(call)])] == ["r7"]
    assert [one.run for one in rows([call], Wanted(session="r7"))] == ["r7"]


def test_rows_stream() -> None:
    asked: list[int] = []

    def calls() -> object:
        for i, call in enumerate(turns(3)):
            asked.append(i)
            yield call

    assert next(rows(calls(), Wanted())).wire == "anthropic"  # type: ignore[arg-type]
    assert asked == [0]
