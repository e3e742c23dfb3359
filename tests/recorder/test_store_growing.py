"""A request that grows from the last one is read in part, with the result of reading it whole."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storecalls import CALL, anthropic

from recorder import growing, segments, wire
from recorder.call import Call
from recorder.growing import NOTHING, Known, Meaning
from recorder.importing import read_har
from recorder.message import Exchange
from recorder.recipe import shared_start
from recorder.segments import digest, digest_along

CAPTURES = Path(__file__).parents[1] / "captures"


def known(call: Call) -> Known:
    return growing.learn(segments.cut(call.request_body), growing.read(call))


def after(first: Call, second: Call) -> Meaning:
    return growing.read(second, known(first), shared_start(first.request_body, second.request_body))


def same_as_whole(call: Call, meaning: Meaning) -> bool:
    whole = wire.read(replace(call, response_body=b""))
    if not isinstance(whole, Exchange):
        return meaning.exchange is None and meaning.hints == wire.hints(call)
    assert meaning.exchange is not None
    assert meaning.exchange.messages == whole.messages[meaning.known :]
    facts = (whole.head, whole.hints, whole.kind, whole.wire, [m.digest for m in whole.messages])
    got = meaning.exchange
    return facts == (got.head, meaning.hints, got.kind, got.wire, list(meaning.digests))


def asking(body: bytes) -> Call:
    return replace(CALL, request_body=body)


def test_only_the_new_messages_are_read() -> None:
    first, second = asking(anthropic("a", "b", "c")), asking(anthropic("a", "b", "c", "d", "e"))
    meaning = after(first, second)
    assert meaning.known == 3
    assert meaning.exchange is not None
    assert [m.plain.strip() for m in meaning.exchange.messages] == ["d", "e"]
    assert same_as_whole(second, meaning)


def test_the_ends_of_the_messages_are_known() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"a"}, {"role":"user","content":[]}],"tools":[{"name":"t"}]}'
    )
    assert known(asking(body)) == Known("anthropic", 25, [54, 84], known(asking(body)).digests)
    assert body[56:84] == b'{"role":"user","content":[]}'


def test_a_rewritten_message_is_read_again() -> None:
    first, second = asking(anthropic("a", "b", "c")), asking(anthropic("a", "B", "c", "d"))
    meaning = after(first, second)
    assert meaning.known == 1
    assert same_as_whole(second, meaning)


def test_a_shorter_history_is_a_history() -> None:
    first, second = asking(anthropic("a", "b", "c")), asking(anthropic("a", "b"))
    assert same_as_whole(second, after(first, second))


@pytest.mark.parametrize(
    "more",
    [
        b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"x":{"messages":[{"role":"user","content":"b"}]}}',
        b'{"messages":[{"role":"user","content":"a"},7]}',
        b'{"messages":[{"role":"user","content":"a"}',
        b'{"messages":[{"role":"user","content":"a"},{"role":"user","content":"\\"messages\\":["}]}',
        b'{"messages":[{"role":"user","content":"a"},{"role":"nobody"}]}',
        b'{"messages":[{"role":"user","content":"a"}] ,"tools":[{"name":"x"}], "system":"s"}',
    ],
    ids=["twice", "nested", "number", "cut", "quoted", "opaque", "blanks"],
)
def test_whatever_follows_is_read_as_the_whole_is(more: bytes) -> None:
    first = asking(b'{"messages":[{"role":"user","content":"a"}]}')
    assert known(first).ends == [42]
    assert same_as_whole(asking(more), after(first, asking(more)))


def test_another_address_reads_the_same_bytes_its_own_way() -> None:
    first = asking(b'{"messages":[{"role":"user","content":"a"}],"input":"hello"}')
    second = replace(
        asking(b'{"messages":[{"role":"user","content":"a"}],"input":"hello!"}'), url="https://a/v1/responses"
    )
    assert same_as_whole(second, after(first, second))


def pairs() -> Iterator[tuple[Call, Call]]:
    for har in sorted(CAPTURES.glob("*/*.har")):
        calls = list(read_har(har))
        yield from pairwise(calls)


def test_the_captures_read_as_they_do_whole_and_most_of_them_in_part() -> None:
    found = [(after(first, second), second) for first, second in pairs()]
    assert all(same_as_whole(call, meaning) for meaning, call in found)
    for first, second in pairs():
        assert growing.learn(segments.cut(second.request_body), after(first, second), known(first)) == known(second)
    assert sum(meaning.known > 0 for meaning, _ in found) > len(found) / 3


TEXT = st.text(alphabet='ab"\\{}[],:\n', max_size=6)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT})
ODD = st.one_of(
    MESSAGE,
    MESSAGE,
    MESSAGE,
    st.none(),
    st.integers(0, 9),
    st.fixed_dictionaries({"messages": st.lists(MESSAGE, max_size=1)}),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(ODD, max_size=5), st.lists(ODD, max_size=5), st.sampled_from([b",", b" , "]), st.booleans(), TEXT)
def test_any_two_histories_read_as_they_do_whole(
    old: list[object], new: list[object], comma: bytes, longer: bool, system: str
) -> None:
    def body(messages: list[object]) -> bytes:
        elements = comma.join(json.dumps(m).encode() for m in messages)
        return b'{"model":"m","messages":[' + elements + b'],"system":' + json.dumps(system).encode() + b"}"

    first, second = asking(body(old)), asking(body([*old, *new] if longer else new))
    meaning = after(first, second)
    assert same_as_whole(second, meaning)
    assert growing.learn(segments.cut(second.request_body), meaning, known(first)) == known(second)


def test_nothing_known_is_nothing_used() -> None:
    assert growing.read(CALL, NOTHING, 10**6).known == 0


@settings(deadline=None)
@given(st.integers(0, 200_000), st.integers(0, 200_000), st.integers(0, 200_000))
def test_a_hash_gone_on_with_is_the_hash_of_the_whole(first: int, second: int, shared: int) -> None:
    a, b = bytes(first), bytes(min(first, shared)) + b"x" * second
    _, states = digest_along(a)
    assert digest_along(b, states, shared_start(a, b))[0] == digest(b)
    again, states = digest_along(b, states, shared_start(a, b))
    assert digest_along(b, states, len(b))[0] == digest(b) == again


def test_tools_given_by_an_input_item_are_the_heads_only_where_the_input_begins_with_them() -> None:
    """Read alone, what is new would begin with it."""
    more = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "look"}]}
    said = [{"role": "user", "content": f"question {n}"} for n in range(3)]

    def ask(*items: object) -> Call:
        body = json.dumps({"model": "m", "input": items}).encode()
        return replace(CALL, url="https://api.openai.com/v1/responses", request_body=body)

    for first, second in (
        (ask(*said), ask(*said, more)),
        (ask(more, *said[:2]), ask(more, *said)),
        (ask(*said, more), ask(*said, more, said[0])),
    ):
        assert same_as_whole(second, after(first, second))
