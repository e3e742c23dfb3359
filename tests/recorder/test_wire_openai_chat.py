"""Chat completions: what OpenAI, vLLM and the vendors who speak it really send."""

import json

import pytest

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Block, Message, Reply, Served, Tool, Usage
from recorder.wire import openai_chat, reply_reader


def of_body(body: bytes, *, size: int = 11) -> Reply | None:
    reader = reply_reader("openai_chat")
    for i in range(0, len(body), size):
        reader.feed(body[i : i + size])
    return reader.finish()


def stream(*chunks: object, done: bool = True) -> Reply | None:
    body = b"".join(f"data: {json.dumps(c)}\n\n".encode() for c in chunks)
    return of_body(body + (b"data: [DONE]\n\n" if done else b""))


def chunk(finish: str | None = None, index: int = 0, **delta: object) -> dict[str, object]:
    return {"id": "chatcmpl-1", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def call(index: int | None, arguments: object, **more: object) -> dict[str, object]:
    function = {"arguments": arguments, **{k: v for k, v in more.items() if k == "name"}}
    at = {} if index is None else {"index": index}
    return {**at, "function": function, **{k: v for k, v in more.items() if k != "name"}}


class TestRequests:
    def test_every_role_has_its_message(self) -> None:
        wire = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"b": 1, "a": 2}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "data"},
        ]
        assert openai_chat.messages({"messages": wire}) == (
            Message("system", (Block("text", "be brief"),)),
            Message("user", (Block("text", "look"),)),
            Message("assistant", (Block("thinking", "hm"), Block("tool_call", '{"a":2,"b":1}', "read", "c1"))),
            Message("tool", (Block("tool_result", id="c1", parts=(Block("text", "data"),)),)),
        )

    def test_the_system_prompt_is_a_message_and_not_the_head(self) -> None:
        head = openai_chat.head({"model": "m", "messages": [{"role": "system", "content": "s"}]})
        assert (head.model, head.system, head.tools) == ("m", (), ())

    def test_tools_are_read_in_all_their_shapes(self) -> None:
        function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
        custom = {"type": "custom", "custom": {"name": "patch", "description": "p", "format": {"type": "text"}}}
        assert openai_chat.head({"tools": [{"type": "function", "function": function}, custom]}).tools == (
            Tool("f", "d", '{"type":"object"}'),
            Tool("patch", "p", '{"format":{"type":"text"}}'),
        )
        assert openai_chat.head({"functions": [function]}).tools == (Tool("f", "d", '{"type":"object"}'),)

    def test_qwen_agents_tool_messages_and_old_function_calls(self) -> None:
        wire = [
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
            {"role": "tool", "content": "r", "name": "f", "extra": {"function_id": "1"}, "id": "x"},
        ]
        assert openai_chat.messages({"messages": wire}) == (
            Message("assistant", (Block("tool_call", "{}", "f"),)),
            Message("tool", (Block("tool_result", name="f", id="x", parts=(Block("text", "r"),)),)),
        )

    def test_inline_images_and_audio_stand_as_hashes(self) -> None:
        parts = [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD", "detail": "low"}},
            {"type": "image_url", "image_url": "https://a/b.png"},
            {"type": "input_audio", "input_audio": {"data": "A" * 999, "format": "wav"}},
        ]
        blocks = openai_chat.messages({"messages": [{"role": "user", "content": parts}]})[0].blocks
        assert blocks[:2] == (
            Block("image", canonical.data_hash("QUJD"), "image/png"),
            Block("image", "https://a/b.png"),
        )
        assert canonical.data_hash("A" * 999) in blocks[2].text

    def test_a_wrong_role_is_said_with_its_place(self) -> None:
        with pytest.raises(
            WireError, match=r"^messages\[1\]\.role: expected system, user, assistant or tool, got None$"
        ):
            openai_chat.messages({"messages": [{"role": "user", "content": "a"}, {}]})


class TestStreams:
    def test_text_usage_and_done(self) -> None:
        usage = {"prompt_tokens": 20, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 15}}
        assert stream(
            chunk(role="assistant", content=""),
            chunk(content="Hi "),
            chunk(content="there"),
            chunk("stop"),
            {"id": "chatcmpl-1", "choices": [], "usage": usage},
        ) == Reply(
            Message("assistant", (Block("text", "Hi there"),)),
            stop_reason="stop",
            complete=True,
            id="chatcmpl-1",
            usage=Usage(input=5, output=2, cache_read=15),
        )

    def test_id_and_name_of_a_call_come_once_and_calls_interleave(self) -> None:
        reply = stream(
            chunk(tool_calls=[call(0, "", id="c0", name="read")]),
            chunk(tool_calls=[call(1, "", id="c1", name="grep")]),
            chunk(tool_calls=[call(0, '{"p": '), call(1, '{"q": 1}')]),
            chunk(tool_calls=[call(0, "2}", id="", name="")]),
            chunk("tool_calls"),
        )
        assert reply is not None
        assert reply.message.blocks == (
            Block("tool_call", '{"p": 2}', "read", "c0"),
            Block("tool_call", '{"q": 1}', "grep", "c1"),
        )

    def test_a_name_repeated_in_each_chunk_is_not_joined(self) -> None:
        reply = stream(*(chunk(tool_calls=[call(0, a, id="c0", name="read")]) for a in ('{"a"', ": 1}")))
        assert reply is not None
        assert reply.message.blocks == (Block("tool_call", '{"a": 1}', "read", "c0"),)

    def test_calls_without_index_are_told_apart_by_id(self) -> None:
        reply = stream(
            chunk(tool_calls=[call(None, {"b": 1, "a": 2}, id="c0", name="f")]),
            chunk(tool_calls=[call(None, "{", id="c1", name="g")]),
            chunk(tool_calls=[call(None, "}"), call(None, None)]),
        )
        assert reply is not None
        assert [(b.id, b.text) for b in reply.message.blocks] == [("c0", '{"a":2,"b":1}'), ("c1", "{}")]

    @pytest.mark.parametrize(
        "deltas",
        [
            [{"reasoning_content": "h"}, {"reasoning_content": "m"}],
            [{"reasoning": "h"}, {"reasoning": "m"}],
            [{"reasoning": "h", "reasoning_content": "h"}, {"reasoning": "m", "reasoning_content": "m"}],
            [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}],
        ],
    )
    def test_reasoning_comes_in_the_fields_of_several_vendors(self, deltas: list[dict[str, object]]) -> None:
        reply = stream(*({"choices": [{"index": 0, "delta": d}]} for d in deltas), chunk(content="ok"))
        assert reply is not None
        assert reply.message.blocks == (Block("thinking", "hm"), Block("text", "ok"))

    def test_of_several_choices_the_first_is_the_reply_and_the_rest_is_noted(self) -> None:
        reply = stream(chunk(content="a"), chunk(index=1, content="b"), chunk("stop", 1), chunk("length"))
        assert reply is not None
        assert reply.message.blocks == (Block("text", "a"),)
        assert reply.stop_reason == "length"
        assert reply.notes == ("1 more choices of this request were left out",)

    def test_a_stream_cut_before_its_finish_reason_is_not_complete(self) -> None:
        reply = stream(chunk(content="a"), done=False)
        assert reply is not None
        assert (reply.complete, reply.stop_reason, reply.usage) == (False, "", Usage())

    def test_a_stream_that_lost_only_usage_and_done_is_complete(self) -> None:
        reply = stream(chunk(content="a"), chunk("stop"), done=False)
        assert reply is not None
        assert reply.complete

    def test_an_error_chunk_ends_completeness(self) -> None:
        reply = stream(chunk(content="a"), {"error": {"code": 500, "message": "boom"}})
        assert reply is not None
        assert (reply.error, reply.complete) == ("500: boom", False)

    def test_usage_in_every_chunk_is_cumulative(self) -> None:
        counted = [{**chunk(content="a"), "usage": {"prompt_tokens": 9, "completion_tokens": n}} for n in (1, 2)]
        reply = stream(*counted, {"choices": [], "usage": None})
        assert reply is not None
        assert reply.usage == Usage(input=9, output=2)

    def test_a_refusal_is_kept(self) -> None:
        reply = stream(chunk(refusal="I "), chunk(refusal="won't"), chunk("stop"))
        assert reply is not None
        echoed = openai_chat.messages({"messages": [{"role": "assistant", "content": None, "refusal": "I won't"}]})
        assert reply.message == echoed[0] == Message("assistant", (Block("other", '"I won\'t"', "refusal"),))

    def test_the_same_reply_comes_out_of_chunks_of_every_size(self) -> None:
        body = b"".join(
            f"data: {json.dumps(chunk(content=t), ensure_ascii=False)}\r\n\r\n".encode() for t in "é😀\u2028"
        )
        whole = of_body(body, size=10**6)
        assert whole is not None
        assert whole.message.plain == "é😀\u2028"
        assert all(of_body(body, size=n) == whole for n in (1, 2, 3, 5))


class TestServedIds:
    def test_vllm_streams_prompt_ids_once_and_token_ids_by_choice(self) -> None:
        def served(ids: list[int], *logprobs: float, **more: object) -> dict[str, object]:
            entries = [{"token": "x", "logprob": p, "top_logprobs": []} for p in logprobs]
            choice = {"index": 0, "delta": {"content": "x"}, "token_ids": ids, "logprobs": {"content": entries}}
            return {"choices": [choice], **more}

        first: dict[str, object] = {**chunk(role="assistant", content=""), "prompt_token_ids": [1, 2, 3]}
        reply = stream(first, served([7], -0.5), served([8, 9], -1.0, -0.25), {"choices": [], "usage": {}})
        assert reply is not None
        assert reply.served == Served((1, 2, 3), (7, 8, 9), (-0.5, -1.0, -0.25))

    def test_vllm_whole_reply(self) -> None:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "x"},
            "token_ids": [7],
            "finish_reason": "stop",
        }
        reply = of_body(json.dumps({"choices": [choice], "prompt_token_ids": [1, 2]}).encode())
        assert reply is not None
        assert reply.served == Served((1, 2), (7,), None)

    def test_ids_named_in_the_logprobs_serve_when_there_are_no_others(self) -> None:
        entries = [{"token": "token_id:17", "logprob": -0.5}, {"token": "token_id:4", "logprob": -2.0}]
        reply = stream({"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": entries}}]})
        assert reply is not None
        assert reply.served == Served(None, (17, 4), (-0.5, -2.0))

    def test_logprobs_that_do_not_match_the_ids_are_none_and_logprobs_alone_serve_nothing(self) -> None:
        logprobs = {"content": [{"token": "x", "logprob": -0.5}]}
        reply = stream({"choices": [{"index": 0, "delta": {}, "token_ids": [1, 2], "logprobs": logprobs}]})
        assert reply is not None
        assert reply.served == Served(None, (1, 2), None)
        alone = stream({"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": logprobs}]})
        assert alone is not None
        assert alone.served is None


class TestWholeReplies:
    def test_a_json_body_is_a_reply_too(self) -> None:
        message = {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1}'}}],
        }
        body = {
            "id": "chatcmpl-2",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        }
        assert of_body(json.dumps(body).encode()) == Reply(
            Message("assistant", (Block("thinking", "hm"), Block("tool_call", '{"b": 1}', "f", "c1"))),
            stop_reason="tool_calls",
            complete=True,
            id="chatcmpl-2",
            usage=Usage(input=3, output=4),
        )

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({"error": {"type": "invalid_request_error", "message": "no"}}, "invalid_request_error: no"),
            ({"object": "error", "type": "BadRequestError", "message": "too long"}, "BadRequestError: too long"),
            ({"detail": "Not Found"}, "Not Found"),
            ({"error": "model not found"}, "model not found"),
            ({}, "expected choices, got none"),
        ],
    )
    def test_error_bodies_of_several_servers(self, body: dict[str, object], said: str) -> None:
        reply = of_body(json.dumps(body).encode())
        assert reply == Reply(Message("assistant", ()), "", complete=False, error=said)
