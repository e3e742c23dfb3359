"""Cutting, telling and gluing change no byte, whatever the bytes; and what is shared is found."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder import recipe
from recorder.glue import glue, unglue
from recorder.segments import EMPTY, Cut, cut, digest, split

fuzz = settings(deadline=None, max_examples=100)
LONG = "x" * 600
"""A string that is a segment of its own."""


def pieces(made: Cut) -> list[bytes]:
    return [made.segment(i) for i in range(len(made.ends))]


def test_a_body_is_cut_at_messages_and_around_long_strings() -> None:
    body = (
        f'{{"model":"m","messages":[{{"role":"user","content":"hi"}},{{"role":"user","content":"{LONG}"}}]}}'.encode()
    )
    assert split(body) == [
        b'{"model":"m","messages":[',
        b'{"role":"user","content":"hi"}',
        b",",
        b'{"role":"user","content":',
        f'"{LONG}"'.encode(),
        b"}",
        b"]}",
    ]


def test_a_content_block_is_cut_off_once_it_is_large() -> None:
    small, large = '{"text":"a"}', f'{{"text":"{"b" * 300}"}}'
    body = f'{{"messages":[{{"content":[{small},{large},{small}]}}]}}'.encode()
    assert split(body)[1:3] == [f'{{"content":[{small},{large}'.encode(), f",{small}]}}".encode()]


def test_brackets_and_quotes_inside_strings_cut_nothing() -> None:
    body = rb'{"messages":[{"content":"a \" ] } [ { , \\"}]}'
    assert split(body) == [rb'{"messages":[', rb'{"content":"a \" ] } [ { , \\"}', b"]}"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"}",
        b"]]]]",
        b'{"messages":[{"a":"',
        b'{"messages":[{"a":"\\',
        b"event: ping\ndata: {}\n\n",
        b"\x1f\x8b\x08\x00[{[{",
        b"[" * 2000,
        b'{"messages":[' + b'{"a":1},' * 50,
        '{"messages":[{"a":"\u2028 \U0001f600"}]}'.encode(),
    ],
)
def test_a_body_that_is_no_json_is_the_sum_of_its_segments(body: bytes) -> None:
    assert b"".join(split(body)) == body
    assert b"".join(pieces(cut(body))) == body


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=20) | st.sampled_from([LONG, LONG + "y"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=25,
)
bodies = (
    json_values.map(lambda v: json.dumps({"messages": [v, v], "tools": v}).encode())
    | st.binary(max_size=200)
    | st.text(alphabet='[]{}",:\\a\n', max_size=80).map(str.encode)
)


@fuzz
@given(bodies, bodies, st.integers(0, 400), st.integers(0, 400))
def test_any_bodies_one_after_the_other_come_back_byte_for_byte(a: bytes, b: bytes, i: int, j: int) -> None:
    before = cut(a)
    for body in (a, b, a[:i] + b[j:], b[:i] + a[j:]):
        after = cut(body, before)
        assert b"".join(pieces(after)) == body
        assert after.digests == [digest(p) for p in pieces(after)]
        assert all(pieces(after))
        before = after


def test_a_longer_history_takes_over_all_segments_of_the_shorter() -> None:
    messages = [{"role": "user", "content": f"question {i} {LONG}"} for i in range(20)]
    short = cut(json.dumps({"messages": messages[:19], "tools": [{"name": LONG}]}).encode())
    long = cut(json.dumps({"messages": messages, "tools": [{"name": LONG}]}).encode(), short)
    new = [p for p, d in zip(pieces(long), long.digests, strict=True) if d not in short.digests]
    assert new == [f'"question 19 {LONG}"'.encode()]


def test_a_change_at_the_front_still_finds_what_follows() -> None:
    messages = [{"role": "user", "content": f"question {i} {LONG}"} for i in range(20)]
    before = cut(json.dumps({"system": [{"text": "cch=1"}], "messages": messages}).encode())
    after = cut(json.dumps({"system": [{"text": "cch=23"}], "messages": messages}).encode(), before)
    new = [p for p, d in zip(pieces(after), after.digests, strict=True) if d not in before.digests]
    assert new == [b'{"text": "cch=23"}']


def test_a_body_cut_after_another_shares_as_much_as_one_cut_alone() -> None:
    messages = [{"role": "user", "content": f"question {i} {LONG}"} for i in range(9)]
    before = cut(json.dumps({"messages": messages[:4] + messages[5:]}).encode())
    body = json.dumps({"messages": messages}).encode()
    assert cut(body, before).digests == cut(body, EMPTY).digests


def test_a_recipe_that_only_grows_is_two_runs() -> None:
    base = list(range(100, 400))
    told = recipe.encode([*base, 400, 401, 402], base)
    assert told == bytes(
        [(300 << 1 | 1) & 0x7F | 0x80, (300 << 1 | 1) >> 7, 0, 3 << 1, (400 << 1) & 0x7F | 0x80, 800 >> 7]
    )


@fuzz
@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)))
def test_a_recipe_names_its_segments_over_any_base(ids: list[int], base: list[int]) -> None:
    assert recipe.decode(recipe.encode(ids, base), base) == ids


@fuzz
@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=10))
def test_a_damaged_recipe_is_a_value_error_or_names_few_segments(told: bytes, base: list[int]) -> None:
    with suppress(ValueError):
        assert len(recipe.decode(told, base)) <= recipe.MAX_SEGMENTS


def test_a_stream_is_its_glue_and_its_text_in_one_piece() -> None:
    words = ["Let", " me", " look", " at", " it", "."]
    body = b"".join(b'event: delta\ndata: {"type":"delta","text":"%s"}\n\n' % w.encode() for w in words)
    glued = glue(body)
    assert b"me look at it" in glued
    assert unglue(glued) == body
    assert len(glued) < len(body) / 2


@fuzz
@given(
    st.lists(
        st.sampled_from(["a", '"', "\n\n", "\r\n\r\n", "data: ", '{"delta":{"type":"text_delta","text":"', "\x01"])
    )
)
def test_glue_comes_undone_for_any_stream(parts: list[str]) -> None:
    body = "".join(p * (1 + len(parts) % 7) for p in parts).encode()
    assert unglue(glue(body)) == body


@fuzz
@given(st.binary(max_size=60))
def test_damaged_glue_is_a_value_error_and_nothing_else(data: bytes) -> None:
    assert unglue(glue(data)) == data
    with suppress(ValueError):
        unglue(data)
