"""The same words come out of a reply however its wire format cuts it, and nothing else of the body moves."""

import json
import struct
from base64 import b64encode
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storecalls import CALL

from recorder.call import Call
from recorder.message import Exchange
from recorder.rewrite import literals, recut, reply, rewritten
from recorder.wire import read

CHAT = "https://api.openai.com/v1/chat/completions"
RESPONSES = "https://api.openai.com/v1/responses"
GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/g:streamGenerateContent"
BEDROCK = "https://bedrock-runtime.us-east-1.amazonaws.com/model/claude/invoke-with-response-stream"


def shout(text: str, path: tuple[str, ...]) -> str:
    """Three letters for each `secret`, so that lengths differ from the wire's."""
    return text.replace("secret", "XYZ")


def sse(*events: object) -> bytes:
    return b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)


def chat(**delta: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta}]}


def item(kind: str, delta: str, **more: object) -> dict[str, object]:
    return {"type": f"response.{kind}.delta", "output_index": 0, "delta": delta, **more}


def frame(event: object) -> bytes:
    payload = json.dumps({"bytes": b64encode(json.dumps(event).encode()).decode()}).encode()
    prelude = struct.pack(">II", 16 + len(payload), 0)
    head = prelude + struct.pack(">I", crc32(prelude)) + payload
    return head + struct.pack(">I", crc32(head))


def part(text: str, **more: object) -> dict[str, object]:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text, **more}]}}]}


def block(kind: str, text: str, index: int = 0) -> dict[str, object]:
    key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[kind]
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, key: text}}


def start(kind: str, index: int = 0, **more: object) -> dict[str, object]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **more}}


CASES = {
    "anthropic": (
        CALL.url,
        sse(
            start("thinking", thinking=""),
            block("thinking_delta", "a sec"),
            start("text", 1, text="the se"),
            block("text_delta", "cr", 1),
            block("thinking_delta", "ret"),
            block("text_delta", "et", 1),
            start("tool_use", 2, id="t", name="secret_tool", input={}),
            block("input_json_delta", '{"secret": "sec', 2),
            block("input_json_delta", 'ret"}', 2),
        ),
        ["a XYZ", "the XYZ", '{"XYZ": "XYZ"}'],
    ),
    "chat": (
        CHAT,
        sse(
            chat(reasoning_content="my sec"),
            chat(reasoning_content="ret"),
            chat(content="the sec"),
            chat(content="ret"),
            chat(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":"se'}}]),
            chat(tool_calls=[{"index": 0, "function": {"arguments": 'cret"}'}}]),
        )
        + b"data: [DONE]\n\n",
        ["my XYZ", "the XYZ", '{"a":"XYZ"}'],
    ),
    "responses": (
        RESPONSES,
        sse(
            {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}},
            item("output_text", "the sec"),
            item("output_text", "ret"),
        ),
        ["the XYZ"],
    ),
    "websocket": (
        RESPONSES,
        b"".join(
            b"\x1e" + json.dumps(e).encode() + b"\n"
            for e in (
                {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}},
                item("output_text", "the sec"),
                item("output_text", "ret"),
            )
        ),
        ["the XYZ"],
    ),
    "gemini": (
        GEMINI,
        sse(part("my sec", thought=True), part("ret", thought=True), part("the sec"), part("ret")),
        ["my XYZ", "the XYZ"],
    ),
    "gemini array": (GEMINI, json.dumps([part("the sec"), part("ret")]).encode(), ["the XYZ"]),
    "bedrock": (
        BEDROCK,
        frame(start("text", text="")) + frame(block("text_delta", "the sec")) + frame(block("text_delta", "ret")),
        ["the XYZ"],
    ),
}


def sampled(call: Call) -> list[str]:
    meaning = read(call)
    assert isinstance(meaning, Exchange)
    assert meaning.reply is not None
    return [b.text for b in meaning.reply.message.blocks]


REQUEST = b'{"model":"m","messages":[],"input":[],"contents":[]}'


@pytest.mark.parametrize("name", CASES)
def test_a_word_that_a_stream_cuts_in_two_is_one_word(name: str) -> None:
    url, body, blocks = CASES[name]
    call = replace(CALL, url=url, request_body=REQUEST, response_body=body)
    assert sampled(rewritten(call, shout)) == blocks


@pytest.mark.parametrize("name", CASES)
def test_a_reply_without_the_word_stays_byte_for_byte(name: str) -> None:
    _, body, _ = CASES[name]
    assert reply(body, lambda text, path: text) == body


def test_line_ends_comments_and_names_of_events_stay() -> None:
    body = b': ping\r\nevent: x\r\nid: 7\r\ndata: {"a" : 1}\r\n\r\ndata:{"text":"secret"}\r\n\r\ndata: [DONE]\r\n\r\n'
    assert reply(body, shout) == body.replace(b"secret", b"XYZ")


@given(st.lists(st.text(), min_size=1), st.text())
def test_pieces_are_as_many_as_before_and_make_the_new_text(olds: list[str], new: str) -> None:
    made = recut(olds, new)
    assert len(made) == len(olds)
    if any(olds):
        assert "".join(made) == new


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_literals_of_any_json_are_found_where_they_stand(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        assert literals(text, lambda inner, path: inner, ()) == text
        assert json.loads(literals(text, lambda inner, path: inner + "\u2028\n\"'", ())) is not ...


@given(st.binary())
def test_no_garbage_stops_it(data: bytes) -> None:
    assert reply(data, lambda text, path: text) == data
