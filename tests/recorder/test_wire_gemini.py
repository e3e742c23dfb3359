"""Gemini: contents, and chunks as events, as an array, wrapped and alone."""

import json

import pytest

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Block, Message, Reply, Tool, Usage
from recorder.wire import classify, gemini, reply_reader
from recorder.wire.routes import Route, route


def of_body(body: bytes, *, size: int = 9) -> Reply | None:
    reader = reply_reader("gemini")
    for i in range(0, len(body), size):
        reader.feed(body[i : i + size])
    return reader.finish()


def events(*chunks: object) -> bytes:
    return b"".join(f"data: {json.dumps(c)}\r\n\r\n".encode() for c in chunks)


def chunk(*parts: object, finish: str = "", index: int = 0, **more: object) -> dict[str, object]:
    candidate: dict[str, object] = {"index": index, "content": {"role": "model", "parts": list(parts)}}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "responseId": "r1", **more}


CHUNKS = (
    chunk({"text": "h", "thought": True}),
    chunk({"text": "m", "thought": True}, usageMetadata={"promptTokenCount": 20, "candidatesTokenCount": 1}),
    chunk({"text": "Hi "}),
    chunk({"text": "there"}),
    chunk({"functionCall": {"id": "c1", "name": "f", "args": {"b": 1, "a": 2}}, "thoughtSignature": "x"}),
    chunk(
        {"text": "", "thoughtSignature": "y"},
        finish="STOP",
        usageMetadata={
            "promptTokenCount": 20,
            "cachedContentTokenCount": 15,
            "candidatesTokenCount": 3,
            "thoughtsTokenCount": 4,
        },
    ),
)
REPLY = Reply(
    Message(
        "assistant",
        (Block("thinking", "hm"), Block("text", "Hi there"), Block("tool_call", '{"a":2,"b":1}', "f", "c1")),
    ),
    stop_reason="STOP",
    complete=True,
    id="r1",
    usage=Usage(input=5, output=7, cache_read=15),
)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://h/v1beta/models/gemini-x:generateContent?key=k", Route("gemini", "generate", "gemini-x")),
        ("https://h/v1beta/models/gemini-x:streamGenerateContent?alt=sse", Route("gemini", "generate", "gemini-x")),
        (
            "https://h/v1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent",
            Route("gemini", model="g"),
        ),
        ("https://cloudcode-pa.googleapis.com/v1internal:streamGenerateContent?alt=sse", Route("gemini")),
        ("https://h/v1beta/models/gemini-x:countTokens", Route("gemini", "count_tokens", "gemini-x")),
        ("https://h/v1beta/models/gemini-x:embedContent", Route("")),
    ],
)
def test_addresses(url: str, found: Route) -> None:
    assert route("POST", url) == found
    assert classify("POST", url) == found.wire


def test_one_message_stands_for_each_content() -> None:
    contents = [
        {"role": "user", "parts": [{"text": "hi"}, {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}]},
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True, "thoughtSignature": "x"},
                {"functionCall": {"name": "f", "args": {"b": 1, "a": 2}}, "thoughtSignature": "y"},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "id": "c1", "response": {"output": "o"}}}]},
        {"parts": [{"executableCode": {"code": "1"}}, {"thoughtSignature": "z"}]},
    ]
    result = Block("tool_result", name="f", id="c1", parts=(Block("text", '{"output":"o"}'),))
    expected = (
        Message("user", (Block("text", "hi"), Block("image", canonical.data_hash("QUJD"), "image/png"))),
        Message("assistant", (Block("thinking", "hm"), Block("tool_call", '{"a":2,"b":1}', "f"))),
        Message("user", (result,)),
        Message("user", (Block("other", '{"executableCode":{"code":"1"}}', "executableCode"),)),
    )
    assert gemini.messages({"contents": contents}) == expected
    assert gemini.messages({"model": "m", "request": {"contents": contents}}) == expected
    assert gemini.messages({"contents": {"parts": {"text": "hi"}}}) == (Message("user", (Block("text", "hi"),)),)


def test_head() -> None:
    declared = {"name": "f", "description": "d", "parametersJsonSchema": {"type": "object"}}
    body: dict[str, object] = {
        "systemInstruction": {"role": "user", "parts": [{"text": "You are"}]},
        "tools": [{"functionDeclarations": [declared]}, {"googleSearch": {}}],
    }
    made = gemini.head(body, model="gemini-x")
    assert made.model == "gemini-x"
    assert made.system == (Block("text", "You are"),)
    assert made.tools == (Tool("f", "d", '{"type":"object"}'), Tool("googleSearch", "", "{}"))
    assert gemini.head({"model": "g", "request": body}).digest == made.digest


def test_a_wrong_role_is_said_with_its_place() -> None:
    with pytest.raises(WireError, match=r"^contents\[0\]\.role: expected user or model, got 'robot'$"):
        gemini.messages({"contents": [{"role": "robot"}]})


def test_a_stream_of_events() -> None:
    assert of_body(events(*CHUNKS)) == REPLY


def test_gemini_clis_wrapped_events() -> None:
    assert of_body(events(*({"response": c} for c in CHUNKS))) == REPLY


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_a_stream_as_a_json_array(size: int) -> None:
    assert of_body(json.dumps(CHUNKS, indent=2).encode(), size=size) == REPLY


def test_an_array_that_was_cut_keeps_the_chunks_that_came() -> None:
    reply = of_body(("[" + ",\r\n".join(map(json.dumps, CHUNKS))).encode()[:-60])
    assert reply is not None
    assert reply.message == REPLY.message
    assert not reply.complete


def test_one_body() -> None:
    parts = [p for c in CHUNKS for p in c["candidates"][0]["content"]["parts"]]  # type: ignore[index]
    whole = {**CHUNKS[-1], "candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    assert of_body(json.dumps(whole).encode()) == REPLY


def test_a_blocked_prompt_ends_with_its_reason_and_a_cut_stream_with_none() -> None:
    blocked = of_body(events({"promptFeedback": {"blockReason": "SAFETY"}}))
    assert blocked is not None
    assert (blocked.stop_reason, blocked.complete, blocked.message.blocks) == ("SAFETY", True, ())
    cut = of_body(events(*CHUNKS[:3]))
    assert cut is not None
    assert (cut.complete, cut.message.plain) == (False, "hm\nHi ")


def test_further_candidates_are_noted() -> None:
    reply = of_body(events(chunk({"text": "a"}), chunk({"text": "b"}, index=1), chunk(finish="STOP")))
    assert reply is not None
    assert reply.message.plain == "a"
    assert reply.notes == ("1 more choices of this request were left out",)


@pytest.mark.parametrize(
    "form", [lambda e: json.dumps(e).encode(), lambda e: json.dumps([e]).encode(), lambda e: events(e)]
)
def test_errors_as_body_in_an_array_and_as_event(form: object) -> None:
    assert callable(form)
    reply = of_body(form({"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}}))
    assert reply == Reply(Message("assistant", ()), "", complete=False, error="429: slow")


def test_counted_tokens_are_usage_alone() -> None:
    assert of_body(b'{"totalTokens": 31}') == Reply(Message("assistant", ()), "", complete=True, usage=Usage(input=31))


def test_a_part_that_breaks_the_format_costs_its_own_chunk_only_and_is_noted() -> None:
    reply = of_body(events(chunk({"text": "a"}), chunk(7), chunk({"text": "b"}, finish="STOP")))
    assert reply is not None
    assert (reply.message.plain, reply.complete) == ("ab", True)
    assert reply.notes == ("an event was left out: candidates[0].content.parts[0]: expected an object, got int",)
