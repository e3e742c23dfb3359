"""Server-sent events: what other readers get wrong, and the same events however the bytes are cut."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.wire.sse import Decoder, Event


def events(*chunks: bytes) -> list[Event]:
    decoder = Decoder()
    return [e for chunk in chunks for e in decoder.feed(chunk)] + decoder.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_ends_at_a_blank_line_in_all_three_line_endings(end: bytes) -> None:
    body = end.join((b"event: ping", b"data: 1", b"", b"data: 2", b"", b""))
    assert events(body) == [Event("ping", "1"), Event("", "2")]


def test_a_crlf_cut_in_half_is_one_line_end() -> None:
    assert events(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [Event("", "a\nb")]


def test_a_cr_alone_at_the_end_of_a_chunk_ends_the_line_at_once() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: a\r\r") == [Event("", "a")]
    assert decoder.feed(b"\ndata: b\n\n") == [Event("", "b")]


def test_line_separator_characters_of_unicode_stay_inside_the_data() -> None:
    text = "a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg"
    assert events(f"data: {text}\n\n".encode()) == [Event("", text)]


def test_only_one_space_after_the_colon_is_taken_off() -> None:
    assert events(b"data:  two\n\ndata:none\n\ndata:\n\n") == [Event("", " two"), Event("", "none"), Event("", "")]


def test_several_data_lines_are_joined_by_newlines() -> None:
    assert events(b"data: {\ndata:  1\ndata: }\n\n") == [Event("", "{\n 1\n}")]


def test_comments_unknown_fields_and_events_without_data_say_nothing() -> None:
    body = b": keep-alive\n\nid: 7\nretry: 10\nevent: lost\n\ndata: x\n: in between\nfoo\n\n"
    assert events(body) == [Event("", "x")]


def test_a_byte_order_mark_is_dropped_at_the_start_only() -> None:
    assert events(b"\xef\xbb", b"\xbfdata: \xef\xbb\xbfx\n\n") == [Event("", "\ufeffx")]


def test_an_event_left_open_at_the_end_comes_with_finish() -> None:
    assert events(b"data: [DONE]") == [Event("", "[DONE]")]
    assert events(b"event: a\ndata: 1\n") == [Event("a", "1")]
    assert events(b"event: a\n") == []


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert events(b"data: a\xffb\n\n") == [Event("", "a\ufffdb")]


PIECES = st.sampled_from(
    [
        b"data: ",
        b"data:",
        b"event: e",
        b": c",
        b"x",
        "é😀\u2028".encode(),
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\xef\xbb\xbf",
    ]
)


@given(st.lists(PIECES, max_size=30), st.data())
def test_any_split_gives_the_same_events(pieces: list[bytes], data: st.DataObject) -> None:
    body = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    chunks = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert events(*chunks) == events(body)
    assert events(*(body[i : i + 1] for i in range(len(body)))) == events(body)


def test_a_long_line_in_many_chunks_costs_no_more_than_its_length() -> None:
    decoder = Decoder()
    started = time.process_time()
    for _ in range(40_000):
        decoder.feed(b"x" * 50)
    assert time.process_time() - started < 1.0  # joining at every chunk copies 40 GB and takes many times this
