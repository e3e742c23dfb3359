"""Bedrock: frames with checksums around Anthropic's events, and Converse as the same in other words."""

import base64
import json
import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.call import Call, Outcome
from recorder.message import Block, Exchange, Message, Reply, Tool, Usage
from recorder.wire import bedrock, read, reply_reader
from recorder.wire.eventstream import Decoder, Frame


def frame(payload: bytes, **headers: str) -> bytes:
    named = ((":" + k.replace("_", "-"), v.encode()) for k, v in headers.items())
    head = b"".join(bytes([len(n)]) + n.encode() + b"\x07" + struct.pack(">H", len(v)) + v for n, v in named)
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    message = prelude + struct.pack(">I", crc32(prelude)) + head + payload
    return message + struct.pack(">I", crc32(message))


def chunk(event: object) -> bytes:
    payload = {"bytes": base64.b64encode(json.dumps(event).encode()).decode(), "p": "abcdef"}
    return frame(
        json.dumps(payload).encode(), event_type="chunk", content_type="application/json", message_type="event"
    )


def converse(name: str, **event: object) -> bytes:
    return frame(json.dumps(event).encode(), event_type=name, message_type="event")


def of_body(body: bytes, *, size: int = 10) -> Reply | None:
    reader = reply_reader("bedrock")
    for i in range(0, len(body), size):
        reader.feed(body[i : i + size])
    return reader.finish()


EVENTS = (
    {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 5, "output_tokens": 1}}},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 5}},
)
REPLY = Reply(
    Message("assistant", (Block("tool_call", '{"a": 1}', "f", "t1"),)),
    stop_reason="tool_use",
    complete=True,
    id="msg_1",
    usage=Usage(input=5, output=9),
)


class TestFrames:
    def test_a_known_frame_byte_by_byte(self) -> None:
        """The empty message and one header, as drawn in the specification's test vectors: total 16, no header."""
        assert frame(b"").hex() == "000000100000000005c248eb7d98c8ff"
        assert Decoder().feed(bytes.fromhex("000000100000000005c248eb7d98c8ff")) == [Frame({}, b"")]

    @given(st.lists(st.binary(max_size=40), max_size=4), st.integers(1, 30))
    def test_any_split_gives_the_same_frames(self, payloads: list[bytes], size: int) -> None:
        body = b"".join(frame(p, event_type="x") for p in payloads)
        decoder = Decoder()
        got = [f for i in range(0, len(body), size) for f in decoder.feed(body[i : i + size])]
        assert got == [Frame({":event-type": "x"}, p) for p in payloads]
        assert decoder.error == ""

    @pytest.mark.parametrize("at", [0, 5, 9, 14, 25, 36])
    def test_damage_is_found_by_the_checksums_and_ends_the_stream(self, at: int) -> None:
        body = bytearray(frame(b"payload", event_type="x") * 3)
        size = len(body) // 3
        body[size + at] ^= 1
        decoder = Decoder()
        assert decoder.feed(bytes(body)) == [Frame({":event-type": "x"}, b"payload")]
        assert decoder.error.startswith("expected a frame")
        assert decoder.feed(frame(b"more")) == []

    def test_headers_of_other_types_are_passed_over(self) -> None:
        head = b"\x01a\x00" + b"\x01b\x04\x00\x00\x00\x01" + b"\x01c\x06\x00\x02xy" + b"\x01d\x07\x00\x01z"
        prelude = struct.pack(">II", 16 + len(head), len(head))
        message = prelude + struct.pack(">I", crc32(prelude)) + head
        assert Decoder().feed(message + struct.pack(">I", crc32(message))) == [Frame({"d": "z"}, b"")]

    @given(st.binary(max_size=80))
    def test_no_bytes_raise(self, body: bytes) -> None:
        Decoder().feed(b"\0" + body)
        of_body(b"\0" + body)


class TestInvokeModel:
    @pytest.mark.parametrize("size", [1, 10, 10**6])
    def test_anthropics_events_come_out_of_their_frames(self, size: int) -> None:
        assert of_body(b"".join(map(chunk, EVENTS)), size=size) == REPLY

    def test_a_cut_stream_keeps_whole_frames(self) -> None:
        reply = of_body(b"".join(map(chunk, EVENTS))[:-150])
        assert reply is not None
        assert (reply.message, reply.complete) == (REPLY.message, False)

    def test_an_exception_frame_is_an_error(self) -> None:
        said = frame(b'{"message":"Too many"}', exception_type="throttlingException", message_type="exception")
        reply = of_body(b"".join(map(chunk, EVENTS[:3])) + said)
        assert reply is not None
        assert (reply.error, reply.complete) == ("throttlingException: Too many", False)

    def test_a_call_is_read_with_the_model_of_its_address(self) -> None:
        call = Call(
            method="POST",
            url="https://bedrock-runtime.us-east-1.amazonaws.com/model/arn%3Aaws%3Abedrock%3Ainference-profile%2Fx/"
            "invoke-with-response-stream",
            status=200,
            outcome=Outcome.COMPLETE,
            request_headers=(),
            response_headers=(),
            request_body=b'{"anthropic_version":"bedrock-2023-05-31","messages":[{"role":"user","content":"hi"}]}',
            response_body=b"".join(map(chunk, EVENTS)),
            started_at_utc=0.0,
        )
        got = read(call)
        assert isinstance(got, Exchange)
        assert (got.wire, got.head.model) == ("bedrock", "arn:aws:bedrock:inference-profile/x")
        assert got.messages == (Message("user", (Block("text", "hi"),)),)
        assert got.reply == REPLY

    def test_a_whole_reply(self) -> None:
        reply = of_body(b'{"id":"msg_2","content":[{"type":"text","text":"x"}],"stop_reason":"end_turn"}')
        assert reply is not None
        assert (reply.id, reply.message.plain, reply.complete) == ("msg_2", "x", True)


class TestConverse:
    def test_a_request(self) -> None:
        body: dict[str, object] = {
            "system": [{"text": "You are"}, {"cachePoint": {"type": "default"}}],
            "messages": [
                {"role": "user", "content": [{"text": "hi"}, {"cachePoint": {"type": "default"}}]},
                {
                    "role": "assistant",
                    "content": [
                        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "x"}}},
                        {"toolUse": {"toolUseId": "t1", "name": "f", "input": {"b": 1, "a": 2}}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "toolResult": {
                                "toolUseId": "t1",
                                "content": [{"text": "x"}, {"json": {"k": 1}}],
                                "status": "error",
                            }
                        }
                    ],
                },
            ],
            "toolConfig": {
                "tools": [
                    {"toolSpec": {"name": "f", "description": "d", "inputSchema": {"json": {"type": "object"}}}},
                    {"cachePoint": {"type": "default"}},
                ]
            },
        }
        head = bedrock.head(body, model="m")
        assert (head.model, head.system) == ("m", (Block("text", "You are"),))
        assert head.tools == (Tool("f", "d", '{"type":"object"}'),)
        parts = (Block("text", "x"), Block("text", '{"k":1}'))
        assert bedrock.messages(body) == (
            Message("user", (Block("text", "hi"),)),
            Message("assistant", (Block("thinking", "hm"), Block("tool_call", '{"a":2,"b":1}', "f", "t1"))),
            Message("user", (Block("tool_result", id="t1", parts=parts, is_error=True),)),
        )

    def test_a_stream(self) -> None:
        body = b"".join(
            (
                converse("messageStart", role="assistant"),
                converse("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"text": "hm"}}),
                converse("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"signature": "x"}}),
                converse("contentBlockDelta", contentBlockIndex=1, delta={"text": "Hi "}),
                converse("contentBlockDelta", contentBlockIndex=1, delta={"text": "there"}),
                converse("contentBlockStart", contentBlockIndex=2, start={"toolUse": {"toolUseId": "t1", "name": "f"}}),
                converse("contentBlockDelta", contentBlockIndex=2, delta={"toolUse": {"input": '{"a"'}}),
                converse("contentBlockDelta", contentBlockIndex=2, delta={"toolUse": {"input": ": 1}"}}),
                converse("messageStop", stopReason="tool_use"),
                converse("metadata", usage={"inputTokens": 5, "outputTokens": 9, "cacheReadInputTokens": 3}),
            )
        )
        assert of_body(body) == Reply(
            Message(
                "assistant",
                (Block("thinking", "hm"), Block("text", "Hi there"), Block("tool_call", '{"a": 1}', "f", "t1")),
            ),
            stop_reason="tool_use",
            complete=True,
            usage=Usage(input=5, output=9, cache_read=3),
        )

    def test_a_whole_reply(self) -> None:
        message = {"role": "assistant", "content": [{"text": "x"}]}
        body = {
            "output": {"message": message},
            "stopReason": "end_turn",
            "usage": {"inputTokens": 1, "outputTokens": 2},
        }
        assert of_body(json.dumps(body).encode()) == Reply(
            Message("assistant", (Block("text", "x"),)), "end_turn", complete=True, usage=Usage(input=1, output=2)
        )
