"""Which calls are read, what hints they give, and that no bytes make `read` raise."""

import json
import zlib

import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.call import Call, Outcome
from recorder.message import Block, Exchange, Hints, Message
from recorder.wire import Opaque, classify, hints, read

MESSAGES = "https://api.anthropic.com/v1/messages"
RESPONSES = "https://api.openai.com/v1/responses"
CHAT = "https://api.openai.com/v1/chat/completions"


def call(
    request: object,
    response: bytes = b"",
    *,
    url: str = MESSAGES,
    method: str = "POST",
    status: int | None = 200,
    headers: tuple[tuple[str, str], ...] = (),
    response_headers: tuple[tuple[str, str], ...] = (),
) -> Call:
    return Call(
        method=method,
        url=url,
        status=status,
        outcome=Outcome.COMPLETE,
        request_headers=headers,
        response_headers=response_headers,
        request_body=request if isinstance(request, bytes) else orjson.dumps(request),
        response_body=response,
        started_at_utc=0.0,
    )


def exchange(of: Call) -> Exchange:
    got = read(of)
    assert isinstance(got, Exchange), got
    return got


class TestClassify:
    @pytest.mark.parametrize(
        ("url", "wire"),
        [
            ("https://api.anthropic.com/v1/messages", "anthropic"),
            ("https://api.anthropic.com:443/v1/messages?beta=true", "anthropic"),
            ("https://api.anthropic.com/v1/messages/count_tokens?beta=true", "anthropic"),
            ("http://127.0.0.1:8000/messages", "anthropic"),
            ("http://127.0.0.1:8000/a/b/v1/messages/", "anthropic"),
            ("https://me.services.ai.azure.com/anthropic/v1/messages", "anthropic"),
            (
                "https://aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/anthropic/models/"
                "claude-sonnet-4-5@20250929:streamRawPredict",
                "anthropic",
            ),
            ("https://api.openai.com/v1/chat/completions", "openai_chat"),
            ("http://127.0.0.1:9000/chat/completions?x=1", "openai_chat"),
            ("https://me.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=1", "openai_chat"),
            ("https://api.openai.com/v1/responses", "openai_responses"),
            ("wss://api.openai.com/v1/responses", "openai_responses"),
            ("https://chatgpt.com/backend-api/codex/responses", "openai_responses"),
            ("https://chatgpt.com/backend-api/codex/responses/compact", "openai_responses"),
            ("https://api.anthropic.com/v1/messages/batches", ""),
            ("https://api.openai.com/v1/threads/thread_1/messages", ""),
            ("https://api.openai.com/v1/responses/resp_1", ""),
            ("https://api.openai.com/v1/embeddings", ""),
            ("https://api.anthropic.com/api/event_logging/v2/batch", ""),
            ("https://example.com/my-messages", ""),
            ("not a url", ""),
            ("http://[bad", ""),
        ],
    )
    def test_the_end_of_the_path_tells(self, url: str, wire: str) -> None:
        assert classify("POST", url) == wire

    def test_get_is_a_model_call_only_as_the_handshake_of_responses(self) -> None:
        assert classify("GET", MESSAGES) == ""
        assert classify("GET", CHAT) == ""
        assert classify("GET", RESPONSES) == "openai_responses"
        assert classify("DELETE", RESPONSES) == ""


class TestRead:
    def test_counting_tokens_is_not_generating(self) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        got = exchange(call(body, b'{"input_tokens": 7}', url=MESSAGES + "/count_tokens"))
        assert got.kind == "count_tokens"
        assert got.reply is not None
        assert got.reply.usage.input == 7

    def test_generate_false_is_a_warmup(self) -> None:
        frame = {"type": "response.create", "generate": False, "model": "m", "input": []}
        got = exchange(call(frame, url=RESPONSES, method="GET", status=101))
        assert (got.kind, got.wire, got.messages) == ("warmup", "openai_responses", ())

    def test_a_websocket_turn_is_read_from_its_frames(self) -> None:
        frame = {
            "type": "response.create",
            "previous_response_id": "resp_0",
            "input": [{"role": "user", "content": "x"}],
        }
        item = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
        sent = [
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "resp_1", "status": "completed"}},
        ]
        frames = b"".join(b"\x1e" + orjson.dumps(e) + b"\n" for e in sent)
        got = exchange(call(frame, frames, url=RESPONSES, method="GET", status=101))
        assert got.hints.previous_id == "resp_0"
        assert got.reply is not None
        assert got.reply.message == Message("assistant", (Block("text", "Hi"),))
        assert got.reply.complete

    def test_a_refused_handshake_is_opaque(self) -> None:
        assert read(call(b"", url=RESPONSES, method="GET", status=426)) == Opaque(
            "openai_responses", "handshake: expected status 101, got 426: no model call was made on it"
        )

    def test_compressed_bodies_are_undone_both_ways(self) -> None:
        body = zstandard.ZstdCompressor().compress(b'{"messages":[{"role":"user","content":"hi"}]}')
        answer = zlib.compressobj(wbits=31)
        events = answer.compress(b'data: {"type":"message_start","message":{"id":"msg_1"}}\n\n') + answer.flush(2)
        got = exchange(
            call(
                body, events, headers=(("content-encoding", "zstd"),), response_headers=(("content-encoding", "gzip"),)
            )
        )
        assert got.messages == (Message("user", (Block("text", "hi"),)),)
        assert got.reply is not None
        assert (got.reply.id, got.reply.complete) == ("msg_1", False)

    def test_the_model_named_in_the_address_serves_when_the_body_names_none(self) -> None:
        body = {"anthropic_version": "vertex-2023-10-16", "messages": []}
        url = "https://h/v1/projects/p/locations/l/publishers/anthropic/models/claude-x:rawPredict"
        assert exchange(call(body, url=url)).head.model == "claude-x"
        azure = "https://h/openai/deployments/gpt-x/chat/completions"
        assert exchange(call({"messages": []}, url=azure)).head.model == "gpt-x"
        assert exchange(call({"model": "m", "messages": []}, url=azure)).head.model == "m"

    def test_a_call_without_an_answer_has_no_reply(self) -> None:
        assert exchange(call({"messages": []}, status=None)).reply is None

    def test_a_prefix_that_holds_a_compaction_is_not_what_the_model_saw(self) -> None:
        block = {"type": "compaction", "content": "summary"}
        reply = b'{"type":"message","content":[],"stop_reason":"end_turn"}'
        got = exchange(call({"messages": [{"role": "assistant", "content": [block]}]}, reply))
        assert got.reply is not None
        assert got.reply.server_edits == ("compaction",)
        failed = exchange(call({"messages": [{"role": "assistant", "content": [{**block, "content": None}]}]}, reply))
        assert failed.reply is not None
        assert failed.reply.server_edits == ()

    def test_equal_messages_of_two_calls_are_one_object(self) -> None:
        plain = {"role": "user", "content": "the same words"}
        marked = {
            "role": "user",
            "content": [{"type": "text", "text": "the same words", "cache_control": {"type": "ephemeral"}}],
        }
        a, b = (exchange(call({"messages": [m]})).messages[0] for m in (plain, marked))
        assert a is b

    def test_the_same_json_means_in_each_format_what_it_means_there(self) -> None:
        use = {"type": "tool_use", "id": "t1", "name": "only-here", "input": {}}
        body = {"messages": [{"role": "assistant", "content": [use]}]}
        assert [b.kind for b in exchange(call(body)).messages[0].blocks] == ["tool_call"]
        assert [b.kind for b in exchange(call(body, url=CHAT)).messages[0].blocks] == ["other"]

    def test_json_deeper_than_python_walks_is_opaque(self) -> None:
        deep = b'{"type":"file","file":' * 990 + b"1" + b"}" * 990
        got = read(call(b'{"messages":[{"role":"user","content":[' + deep + b"]}]}", url=CHAT))
        assert got == Opaque("openai_chat", "expected JSON of sane depth, got more than Python can walk")

    def test_equal_heads_of_two_calls_are_one_object(self) -> None:
        body = {"model": "m", "system": "You are", "messages": []}
        a, b, c = (exchange(call(x)).head for x in (body, {**body, "max_tokens": 9}, {**body, "model": "n"}))
        assert a is b
        assert a is not c
        assert a.digest == c.digest

    def test_a_reply_that_cannot_be_read_does_not_hide_the_request(self) -> None:
        got = exchange(
            call(
                {"messages": []},
                b'{"content": [{"type": "image", "source": 1}, {"type": "tool_result", "content": 3}]}',
            )
        )
        assert got.reply is not None
        assert (got.reply.complete, got.reply.error) == (False, "content.content: expected an array, got int")

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"[]", "request: expected an object, got list"),
            (b'{"messages": {}}', "messages: expected an array, got dict"),
            (b"{", "request: expected a JSON object, got 1 bytes that do not parse"),
            (b"\xff\xfe", "request: expected a JSON object, got 2 bytes that do not parse"),
            (b'{"messages":' + b"[" * 100_000, "request: expected a JSON object, got 100012 bytes that do not parse"),
        ],
    )
    def test_a_body_that_cannot_be_read_is_opaque_with_the_reason(self, body: bytes, reason: str) -> None:
        got = read(call(body))
        assert isinstance(got, Opaque)
        assert got.wire == "anthropic"
        assert got.reason.startswith(reason)

    def test_what_is_no_model_call_is_opaque_without_a_wire(self) -> None:
        assert read(call({}, url="https://h/v1/models?key=s")) == Opaque(
            "", "expected a model call, got POST https://h/v1/models"
        )

    def test_lone_surrogates_are_kept_and_hashed(self) -> None:
        got = exchange(call(b'{"messages":[{"role":"user","content":"\\ud83d x"}]}'))
        assert got.messages[0].plain == "\ud83d x"
        assert len(got.messages[0].digest) == 16


class TestHints:
    def test_claude_codes_headers(self) -> None:
        headers = (
            ("user-agent", "claude-cli/2.1.332 (external, sdk-cli)"),
            ("x-claude-code-session-id", "s1"),
            ("x-claude-code-agent-id", "a1"),
            ("x-claude-code-parent-agent-id", "a0"),
            ("x-claude-code-request-class", "compaction"),
            ("x-claude-code-compaction", "auto"),
            ("x-claude-code-context-compacted", "manual"),
        )
        body = {"messages": [], "diagnostics": {"previous_message_id": "msg_0"}}
        assert hints(call(body, headers=headers)) == Hints(
            harness="claude-code",
            session="s1",
            agent="a1",
            parent_agent="a0",
            request_class="compaction",
            compaction="auto",
            context_compacted="manual",
            previous_id="msg_0",
        )

    def test_opencodes_headers(self) -> None:
        headers = (
            ("user-agent", "opencode/1.18.33 ai-sdk/provider-utils/4.0.23"),
            ("x-session-affinity", "ses_1"),
            ("x-parent-session-id", "ses_0"),
        )
        assert hints(call({}, headers=headers)) == Hints(harness="opencode", session="ses_1", parent_session="ses_0")
        assert hints(call({}, headers=(*headers, ("x-session-id", "ses_2")))).session == "ses_2"

    def test_codexs_headers_and_its_link_to_the_reply_before(self) -> None:
        headers = (("originator", "codex_exec"), ("session-id", "s"), ("thread-id", "s"))
        body = {"type": "response.create", "previous_response_id": "resp_0", "input": []}
        of = call(body, url=RESPONSES, method="GET", status=101, headers=headers)
        assert hints(of) == Hints(harness="codex", session="s", previous_id="resp_0")
        other = hints(call({}, url=RESPONSES, headers=(("session-id", "s"), ("thread-id", "t"))))
        assert (other.session, other.agent) == ("s", "t")

    @pytest.mark.parametrize(
        ("body", "session"),
        [
            ({"metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s1"}'}}, "s1"),
            ({"metadata": {"user_id": "user_ab_account_cd_session_s2"}}, "s2"),
            ({"metadata": {"user_id": "{broken"}}, ""),
            ({"metadata": {"user_id": "somebody"}}, ""),
            ({"prompt_cache_key": "s3"}, "s3"),
            ({}, ""),
        ],
    )
    def test_the_session_in_the_body_serves_when_no_header_names_it(
        self, body: dict[str, object], session: str
    ) -> None:
        assert hints(call(body)).session == session
        assert hints(call(body, headers=(("x-session-id", "h"),))).session == "h"

    def test_headers_speak_even_when_the_body_cannot_be_read(self) -> None:
        headers = (("user-agent", "QwenCode/0.24.4 (linux; x64)"), ("x-session-id", "s"))
        assert hints(call(b"\x00", headers=headers)) == Hints(harness="qwen-code", session="s")

    def test_an_sdk_is_no_harness(self) -> None:
        assert hints(call({}, headers=(("user-agent", "OpenAI/Python 3.57.0"),))).harness == ""


URLS = st.sampled_from(
    [
        MESSAGES,
        MESSAGES + "/count_tokens",
        CHAT,
        RESPONSES,
        "https://h/v1beta/models/g:generateContent",
        "https://h/model/m/converse-stream",
        "https://h/model/m/invoke",
        "https://h/x",
    ]
)
STATUS = st.sampled_from([None, 101, 200, 400, 529])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
WORDS = [
    "messages",
    "input",
    "role",
    "content",
    "type",
    "text",
    "tool_use",
    "tool_result",
    "tool_calls",
    "function",
    "arguments",
    "id",
    "call_id",
    "index",
    "delta",
    "item",
    "choices",
    "usage",
    "error",
    "message",
    "response",
    "output",
    "system",
    "tools",
    "source",
    "data",
    "thinking",
    "summary",
    "image_url",
    "output_index",
    "content_block",
    "partial_json",
    "context_management",
    "applied_edits",
    "logprobs",
    "token_ids",
    "prompt_token_ids",
    "metadata",
    "user_id",
    "user",
    "assistant",
    "message_start",
    "content_block_delta",
    "content_block_start",
    "message_delta",
    "input_json_delta",
    "reasoning",
    "function_call",
    "response.completed",
    "response.output_item.done",
    "response.output_text.delta",
    "response.create",
    "base64",
    "contents",
    "parts",
    "candidates",
    "functionCall",
    "functionResponse",
    "args",
    "functionDeclarations",
    "toolUse",
    "toolResult",
    "toolUseId",
    "toolConfig",
    "toolSpec",
    "inputSchema",
    "json",
    "bytes",
    "contentBlockDelta",
    "reasoningContent",
    "compaction",
    "tool_reference",
    "input_audio",
]
SHAPED = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.sampled_from(WORDS) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=25,
)


def raw(value: object) -> bytes:
    return json.dumps(value).encode()


@settings(max_examples=200, deadline=None)
@given(URLS, STATUS, st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_make_read_raise(url: str, status: int | None, request: bytes, response: bytes) -> None:
    check(call(request, response, url=url, status=status))


@settings(max_examples=150, deadline=None)
@given(
    URLS,
    STATUS,
    st.dictionaries(
        st.sampled_from(["messages", "input", "contents", "tools", "system", "toolConfig"]),
        st.lists(SHAPED, max_size=3) | SHAPED,
    ),
    st.lists(SHAPED | JSON, max_size=5),
    st.booleans(),
)
def test_no_json_makes_read_raise(
    url: str, status: int | None, request: dict[str, object], events: list[object], whole: bool
) -> None:
    reply = raw(events[0]) if whole and events else b"".join(b"data: " + raw(e) + b"\n\n" for e in events)
    check(call(raw(request), reply, url=url, status=status))


def check(of: Call) -> None:
    got = read(of)
    assert isinstance(hints(of), Hints)
    if isinstance(got, Opaque):
        assert got.reason
        assert "\n" not in got.reason
    else:
        assert len(got.head.digest) == 16
        assert all(len(m.digest) == 16 for m in got.messages)
        assert got.reply is None or len(got.reply.message.digest) == 16
