"""What goes into the store comes out equal, byte for byte, and is found again by session and run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import databases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from storecalls import CALL, SESSION, anthropic, stream, turns

from recorder import database, schema
from recorder.call import Call, Outcome
from recorder.errors import StoreError
from recorder.importing import read_har
from recorder.message import Exchange, prefix_hash
from recorder.outcome import Repeat
from recorder.store import UNFINISHED, Fault, RunInfo, SessionInfo, Store
from recorder.wire import read

CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.fixture(params=databases.KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with databases.empty(request.param, tmp_path) as target:
        yield target


@pytest.fixture
def store(target: str) -> Iterator[Store]:
    with Store.open(target) as opened:
        yield opened


def test_a_call_comes_back_equal(store: Store) -> None:
    seq = store.put(CALL)
    assert seq == 1
    assert store.call(1) == replace(CALL, seq=1)


@pytest.mark.parametrize(
    "call",
    [
        replace(CALL, request_body=b"", response_body=b""),
        replace(CALL, request_body=b"\x00\xff{[garbage", response_body=bytes(range(256)) * 9),
        replace(CALL, status=None, outcome=Outcome.UNANSWERED, response_body=b"", first_byte_s=None, duration_s=None),
        replace(CALL, status=502, outcome=Outcome.HTTP_ERROR, error="peer said \ud83d \x00 no"),
        replace(CALL, url="https://example.org/other", request_body=b"not a model call", run="", source=""),
        replace(CALL, response_headers=(("x-request-id", "a"), ("x-request-id", "b"), ("request-id", "\udcff"))),
    ],
    ids=["empty", "garbage", "unanswered", "error", "other", "headers"],
)
def test_a_call_of_any_sort_comes_back_equal(store: Store, call: Call) -> None:
    store.put(CALL)
    seq = store.put(call)
    assert store.call(seq) == replace(call, seq=seq)
    assert store.verify() == []


@settings(deadline=None, max_examples=8)
@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), min_size=1, max_size=6))
def test_calls_of_any_bytes_come_back_equal(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[tuple[bytes, bytes]]
) -> None:
    calls = [replace(CALL, request_body=a + b, response_body=b + a) for a, b in bodies]
    with Store.open(tmp_path_factory.mktemp("db") / "t.db") as store:
        for call in calls:
            store.put(call)
        assert [replace(c, seq=0) for c in store.calls()] == calls
        assert store.verify() == []


def test_a_growing_session_comes_back_from_a_store_opened_anew(target: str) -> None:
    calls = turns(45)
    for some in (calls[:20], calls[20:21], calls[21:]):  # a new process goes on where the last one ended
        with Store.open(target) as store:
            for call in some:
                store.put(call)
    with Store.open(target, create=False) as store:
        assert store.call(45) == replace(calls[44], seq=45)
        assert [replace(c, seq=0) for c in store.calls()] == calls
        assert store.verify() == []


def test_a_growing_session_is_stored_in_a_small_part_of_its_bytes(tmp_path: Path) -> None:
    calls = turns(80)
    with Store.open(tmp_path / "t.db") as store:
        for call in calls:
            store.put(call)
    raw = sum(len(c.request_body) + len(c.response_body) for c in calls)
    assert (tmp_path / "t.db").stat().st_size < raw / 12


def test_every_call_of_the_captures_comes_back_equal(store: Store) -> None:
    calls = [c for har in sorted(CAPTURES.glob("*/*.har")) for c in read_har(har)]
    assert store.put_new(calls) == len(calls) >= 132
    assert [replace(c, seq=0) for c in store.calls()] == calls
    assert store.verify() == []


def test_interleaved_sessions_do_not_mix(store: Store) -> None:
    sessions = {name: turns(6, session=name, run=f"run-{name}") for name in ("a", "b", "c")}
    for turn in range(6):
        for name in sessions:
            store.put(sessions[name][turn])
    for name, calls in sessions.items():
        assert [replace(c, seq=0) for c in store.calls(session=name)] == calls
        assert [replace(c, seq=0) for c in store.calls(run=f"run-{name}")] == calls
    assert [c.seq for c in store.calls(session="b")] == [2, 5, 8, 11, 14, 17]
    assert list(store.calls(session="a", run="run-b")) == []


def test_a_call_that_names_no_session_belongs_to_its_run(store: Store) -> None:
    store.put(replace(CALL, url="http://127.0.0.1:9/v1/chat/completions", request_body=b"{}", run="r9"))
    assert [s.session for s in store.sessions()] == ["r9"]


def test_sessions_and_runs_are_told_with_times_models_and_sizes(store: Store) -> None:
    store.put(replace(CALL, request_body=anthropic("a"), response_body=b"12345", started_at_utc=20.0))
    store.put(replace(CALL, request_body=anthropic("a", model="claude-haiku"), response_body=b"", started_at_utc=30.0))
    first, second = len(anthropic("a")), len(anthropic("a", model="claude-haiku"))
    assert store.sessions() == [
        SessionInfo(SESSION, "claude-code", 2, 20.0, 30.0, ("claude-haiku", "claude-opus-5-5"), first + second + 5)
    ]
    assert store.runs() == [RunInfo("r1", 2, 20.0, 30.0)]


def test_a_started_call_is_there_before_its_response_and_equal_after_it(store: Store) -> None:
    seq = store.start(CALL)
    open_ = store.call(seq)
    assert (open_.request_body, open_.response_body, open_.status) == (CALL.request_body, b"", None)
    assert (open_.outcome, open_.error) == (Outcome.UNANSWERED, UNFINISHED)
    store.finish(seq, CALL)
    assert store.call(seq) == replace(CALL, seq=seq)
    assert store.verify() == []


def test_what_had_arrived_of_an_unfinished_call_reads_back_as_truncated(store: Store) -> None:
    seq = store.start(CALL)
    store.append({seq: b"event: ping\n"})
    store.append({seq: b"data: {}\n\n"})
    cut = store.call(seq)
    assert (cut.response_body, cut.outcome, cut.error) == (
        b"event: ping\ndata: {}\n\n",
        Outcome.TRUNCATED,
        "recorder ended before the response did",
    )
    store.finish(seq, CALL)
    assert store.call(seq).response_body == CALL.response_body
    assert store.verify() == []


def test_responses_that_end_in_another_order_stay_with_their_requests(store: Store) -> None:
    calls = turns(8)
    seqs = [store.start(c) for c in calls]
    for seq, call in reversed(list(zip(seqs, calls, strict=True))):
        store.finish(seq, call)
    assert [replace(c, seq=0) for c in store.calls()] == calls
    assert store.verify() == []


def test_finishing_a_call_that_was_not_started_is_one_line(store: Store) -> None:
    with pytest.raises(StoreError, match=r"^call 7: expected a started call, got none of that number at .*/t[.\w]*$"):
        store.finish(7, CALL)


def test_asking_for_a_call_that_is_not_there_is_one_line(store: Store) -> None:
    with pytest.raises(StoreError, match=r"^call 3: expected a stored call, got none of that number at .*/t[.\w]*$"):
        store.call(3)


def test_calls_known_by_run_and_source_are_added_once(store: Store) -> None:
    calls = [replace(CALL, source="a.har#1"), replace(CALL, source="a.har#2")]
    assert store.put_new(calls[:1]) == 1
    assert store.put_new(calls) == 1
    assert store.put_new([replace(CALL, source="a.har#2", run="other")]) == 1
    assert [c.source for c in store.calls()] == ["a.har#1", "a.har#2", "a.har#2"]


def test_the_prefix_of_a_call_is_one_node_and_its_parents_are_stored(store: Store, target: str) -> None:
    store.put(replace(CALL, request_body=anthropic("one", "two", "three")))
    store.put(replace(CALL, request_body=anthropic("one", "two", "three", "four", "five")))
    meaning = read(store.call(2))
    assert isinstance(meaning, Exchange)
    node = meaning.head.digest
    for message in meaning.messages:
        node = prefix_hash(node, message.digest)
    engine = database.connect(target)
    with engine.connect().execution_options(reading=True) as connection:
        found = connection.execute(select(schema.call.c.head, schema.call.c.node).where(schema.call.c.seq == 2)).one()
        assert [bytes(v) for v in found] == [meaning.head.digest, node]
        assert connection.scalar(select(func.count()).select_from(schema.node)) == 6
    engine.dispose()


def test_a_run_is_counted_as_whoever_opens_the_database_next_will_find_it(store: Store) -> None:
    assert store.held("r1") == 0
    store.put(CALL)
    open_ = store.start(CALL)
    store.put(replace(CALL, run="r2"))
    assert store.held("r1") == 1
    store.finish(open_, CALL)
    assert store.held("r1") == 2


def test_a_retry_is_found_in_the_database(store: Store) -> None:
    for call in (CALL, *turns(2), CALL):
        store.put(call)
    assert store.repeats() == store.repeats(session=SESSION) == {4: Repeat(1, "retry")}
    assert store.repeats(session="another") == {}


def test_a_parser_that_fails_costs_the_prefix_and_not_the_call(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Call) -> Exchange:
        raise AssertionError("a bug in a parser")

    monkeypatch.setattr("recorder.wire.read", broken)
    seq = store.put(CALL)
    assert store.unparsed == 1
    assert store.call(seq).request_body == CALL.request_body


def test_credentials_do_not_reach_the_file(tmp_path: Path) -> None:
    canary = "CANARY-5e1f"
    headers = (
        *((n, canary) for n in ("authorization", "x-api-key", "cookie", "api-key", "x-goog-api-key", "Set-Cookie")),
        ("x-codex-access-token", canary),
        ("x-unknown", canary),
        ("user-agent", "claude-cli/2.1.332"),
    )
    url = f"https://user:{canary}@api.anthropic.com/v1/messages?key={canary}&beta=true&api_key={canary}#{canary}"
    with Store.open(tmp_path / "t.db") as store:
        seq = store.put(replace(CALL, url=url, request_headers=headers, response_headers=headers))
        back = store.call(seq)
    assert back.url == "https://api.anthropic.com/v1/messages?key=REDACTED&beta=true&api_key=REDACTED"
    assert back.request_headers == back.response_headers == (("user-agent", "claude-cli/2.1.332"),)
    assert canary.encode() not in b"".join(p.read_bytes() for p in tmp_path.iterdir())


def test_nothing_is_wrong_with_an_empty_store(store: Store) -> None:
    assert store.verify() == list[Fault]()
    assert (list(store.calls()), store.sessions(), store.runs()) == ([], [], [])


def test_a_reply_in_pieces_is_stored_whole(store: Store) -> None:
    body = stream(*("wort " for _ in range(500)))
    seq = store.put(replace(CALL, response_body=body))
    assert store.call(seq).response_body == body
