"""Anthropic Messages: one test for each thing that live streams do and recorders get wrong."""

import json

import pytest

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Block, Message, Reply, Served, Tool, Usage
from recorder.wire import anthropic, reply_reader


def stream(*events: object, size: int = 7) -> Reply | None:
    body = b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events if isinstance(e, dict))
    return of_body(body, size=size)


def of_body(body: bytes, *, size: int = 7) -> Reply | None:
    reader = reply_reader("anthropic")
    for i in range(0, len(body), size):
        reader.feed(body[i : i + size])
    return reader.finish()


def start(**usage: int) -> dict[str, object]:
    return {"type": "message_start", "message": {"id": "msg_1", "content": [], "usage": usage}}


def opens(index: int, **block: object) -> dict[str, object]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **what: object) -> dict[str, object]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **what}}


def ends(stop: str, **more: object) -> dict[str, object]:
    return {"type": "message_delta", "delta": {"stop_reason": stop}, **more}


STOP: dict[str, object] = {"type": "message_stop"}
TEXT = (opens(0, type="text", text=""), delta(0, "text_delta", text="Hi "), delta(0, "text_delta", text="there"))


def blocks(*wire: object, role: str = "user") -> tuple[Block, ...]:
    return anthropic.messages({"messages": [{"role": role, "content": list(wire)}]})[0].blocks


class TestRequests:
    def test_a_bare_string_and_one_text_block_are_the_same_message(self) -> None:
        listed = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
        made = anthropic.messages({"messages": [{"role": "user", "content": "hi"}, listed]})
        assert made[0] == made[1] == Message("user", (Block("text", "hi"),))
        assert made[0].digest == made[1].digest

    def test_one_message_stands_for_each_message_of_the_wire(self) -> None:
        wire = [
            {"role": "user", "content": []},
            {"role": "user", "content": "a"},
            {"role": "system", "content": "reminder", "output_config": {"effort": "high"}},
            {"role": "user", "content": None},
        ]
        assert [m.role for m in anthropic.messages({"messages": wire})] == ["user", "user", "system", "user"]
        assert anthropic.messages({"messages": wire})[0] == Message("user", ())

    def test_tool_input_is_canonical_json_whatever_the_order_of_keys(self) -> None:
        call = blocks({"type": "tool_use", "id": "t1", "name": "Read", "input": {"b": 1.0, "a": "é"}}, role="assistant")
        assert call == (Block("tool_call", '{"a":"é","b":1}', "Read", "t1"),)

    def test_a_tool_result_keeps_its_text_images_and_error_flag(self) -> None:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
        content = [{"type": "text", "text": "x"}, image]
        result = {"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": True}
        parts = (Block("text", "x"), Block("image", canonical.data_hash("QUJD"), "image/png"))
        assert blocks(result) == (Block("tool_result", id="t1", parts=parts, is_error=True),)

    def test_a_tool_result_as_string_as_list_and_without_content(self) -> None:
        said = {"type": "tool_result", "tool_use_id": "t1", "content": "x", "is_error": False}
        listed = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}]}
        assert blocks(said) == blocks(listed)
        assert blocks({"type": "tool_result", "tool_use_id": "t1"}) == (Block("tool_result", id="t1"),)

    def test_signatures_are_invisible_and_hidden_thinking_is_not_empty_thinking(self) -> None:
        a = blocks({"type": "thinking", "thinking": "hm", "signature": "A"}, role="assistant")
        b = blocks({"type": "thinking", "thinking": "hm", "signature": "B"}, role="assistant")
        assert a == b == (Block("thinking", "hm"),)
        hidden = blocks({"type": "redacted_thinking", "data": "xx"}, role="assistant")
        assert hidden != blocks({"type": "thinking", "thinking": "", "signature": ""}, role="assistant")

    def test_a_block_without_a_word_here_is_kept_as_json(self) -> None:
        wire = {"type": "tool_reference", "tool_name": "Write", "cache_control": {"type": "ephemeral"}}
        assert blocks(wire) == (Block("other", '{"tool_name":"Write","type":"tool_reference"}', "tool_reference"),)

    def test_documents_and_images_by_url_stand_without_their_data(self) -> None:
        document = {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "A" * 999},
        }
        assert blocks(document)[0].size_chars < 200
        assert blocks({"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}) == (
            Block("image", "https://a/b.png"),
        )

    def test_the_billing_block_is_no_part_of_the_system(self) -> None:
        billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=abc;"}
        head = anthropic.head({"model": "m", "system": [billing, {"type": "text", "text": "You are"}]})
        assert head.system == (Block("text", "You are"),)
        assert head.digest == anthropic.head({"model": "other", "system": "You are"}).digest

    def test_tools_keep_what_the_model_reads(self) -> None:
        schema = {"type": "object", "properties": {"b": {}, "a": {}}}
        mine = {"name": "T", "description": "d", "input_schema": schema, "eager_input_streaming": True}
        theirs = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
        assert anthropic.head({"tools": [mine, theirs]}).tools == (
            Tool("T", "d", '{"properties":{"a":{},"b":{}},"type":"object"}'),
            Tool("web_search", "", '{"max_uses":3,"type":"web_search_20250305"}'),
        )

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({}, "messages: expected an array, got NoneType"),
            ({"messages": ["hi"]}, "messages[0]: expected an object, got str"),
            ({"messages": [{"role": "robot"}]}, "messages[0].role: expected user, assistant or system, got 'robot'"),
            ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content: expected an array, got int"),
            ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]: expected an object, got int"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_place(self, body: dict[str, object], said: str) -> None:
        with pytest.raises(WireError) as error:
            anthropic.messages(body)
        assert str(error.value) == said


class TestStreams:
    def test_text_and_a_tool_call_come_together_from_their_deltas(self) -> None:
        reply = stream(
            start(input_tokens=5, cache_read_input_tokens=100, cache_creation_input_tokens=7, output_tokens=1),
            {"type": "ping"},
            *TEXT,
            {"type": "content_block_stop", "index": 0},
            opens(1, type="tool_use", id="t1", name="Read", input={}),
            delta(1, "input_json_delta", partial_json=""),
            delta(1, "input_json_delta", partial_json='{"b": 1,'),
            delta(1, "input_json_delta", partial_json=' "a": 2}'),
            ends("tool_use", usage={"output_tokens": 42}),
            STOP,
        )
        assert reply == Reply(
            Message("assistant", (Block("text", "Hi there"), Block("tool_call", '{"b": 1, "a": 2}', "Read", "t1"))),
            stop_reason="tool_use",
            complete=True,
            id="msg_1",
            usage=Usage(input=5, output=42, cache_read=100, cache_write=7),
        )

    def test_arguments_stay_as_sampled_and_their_echo_is_canonical(self) -> None:
        reply = stream(
            start(),
            opens(0, type="tool_use", id="t1", name="T", input={}),
            delta(0, "input_json_delta", partial_json='{"b": 1.0, "a": "x"}'),
            STOP,
        )
        assert reply is not None
        (sampled,) = reply.message.blocks
        echoed = blocks({"type": "tool_use", "id": "t1", "name": "T", "input": {"a": "x", "b": 1}}, role="assistant")
        assert sampled.text == '{"b": 1.0, "a": "x"}'
        assert (canonical.echo(sampled),) == echoed

    def test_empty_arguments_stay_empty_and_echo_as_an_empty_object(self) -> None:
        reply = stream(
            start(),
            opens(0, type="tool_use", id="t1", name="T", input={}),
            delta(0, "input_json_delta", partial_json=""),
            STOP,
        )
        assert reply is not None
        assert reply.message.blocks == (Block("tool_call", "", "T", "t1"),)
        assert canonical.echo(reply.message.blocks[0]).text == "{}"

    def test_arguments_that_end_invalid_are_kept_as_they_came(self) -> None:
        reply = stream(
            start(),
            opens(0, type="tool_use", id="t1", name="T", input={}),
            delta(0, "input_json_delta", partial_json='{"path": "/a'),
            ends("max_tokens"),
            STOP,
        )
        assert reply is not None
        assert reply.message.blocks == (Block("tool_call", '{"path": "/a', "T", "t1"),)
        assert (reply.stop_reason, reply.complete) == ("max_tokens", True)

    def test_usage_is_cumulative_and_not_added_up(self) -> None:
        counts = [{"output_tokens": n} for n in (10, 25)]
        reply = stream(start(input_tokens=3, output_tokens=1), *(ends("", usage=u) for u in counts), STOP)
        assert reply is not None
        assert reply.usage == Usage(input=3, output=25)

    def test_signature_deltas_change_nothing(self) -> None:
        reply = stream(
            start(),
            opens(0, type="thinking", thinking="", signature=""),
            delta(0, "thinking_delta", thinking="hm"),
            delta(0, "signature_delta", signature="A"),
            delta(0, "signature_delta", signature="B"),
            STOP,
        )
        assert reply is not None
        assert reply.message.blocks == (Block("thinking", "hm"),)

    def test_blocks_that_arrive_whole_in_their_start_event_are_kept(self) -> None:
        result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result"}]}
        reply = stream(
            start(),
            opens(0, type="redacted_thinking", data="xx"),
            opens(1, type="server_tool_use", id="s1", name="web_search", input={}),
            delta(1, "input_json_delta", partial_json='{"query": "q"}'),
            {"type": "content_block_start", "index": 2, "content_block": result},
            opens(3, type="fallback", model="m2"),
            STOP,
        )
        assert reply is not None
        assert reply.message.blocks == (
            Block("thinking", name="redacted"),
            Block(
                "other",
                '{"id":"s1","input":{"query":"q"},"name":"web_search","type":"server_tool_use"}',
                "server_tool_use",
            ),
            Block(
                "other",
                '{"content":[{"type":"web_search_result"}],"tool_use_id":"s1","type":"web_search_tool_result"}',
                "web_search_tool_result",
            ),
            Block("other", '{"model":"m2","type":"fallback"}', "fallback"),
        )

    def test_citations_leave_the_text_alone(self) -> None:
        reply = stream(start(), *TEXT, delta(0, "citations_delta", citation={"type": "char_location"}), STOP)
        assert reply is not None
        assert reply.message.blocks == (Block("text", "Hi there"),)

    def test_a_compaction_block_is_an_edit_by_the_server(self) -> None:
        reply = stream(
            start(), opens(0, type="compaction"), delta(0, "compaction_delta", content="sum"), ends("compaction"), STOP
        )
        assert reply is not None
        assert reply.message.blocks == (Block("other", '{"content":"sum","type":"compaction"}', "compaction"),)
        assert reply.server_edits == ("compaction",)

    def test_a_compaction_that_failed_is_none(self) -> None:
        reply = stream(start(), opens(0, type="compaction", content=None), STOP)
        assert reply is not None
        assert reply.server_edits == ()

    def test_applied_edits_are_reported_unless_they_cleared_nothing(self) -> None:
        edits = [
            {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 8, "cleared_input_tokens": 50000},
            {"type": "clear_thinking_20251015", "cleared_thinking_turns": 0, "cleared_input_tokens": 0},
        ]
        reply = stream(start(), *TEXT, ends("end_turn", context_management={"applied_edits": edits}), STOP)
        assert reply is not None
        assert reply.server_edits == ("clear_tool_uses_20250919",)

    def test_an_error_event_inside_status_200_is_an_error(self) -> None:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        reply = stream(start(), *TEXT, error)
        assert reply is not None
        assert (reply.error, reply.complete) == ("overloaded_error: Overloaded", False)
        assert reply.message.blocks == (Block("text", "Hi there"),)

    def test_an_error_event_counts_though_the_stream_then_ends_as_usual(self) -> None:
        error = {"type": "error", "error": {"type": "api_error", "message": "boom"}}
        reply = stream(start(), *TEXT, error, ends("end_turn"), STOP)
        assert reply is not None
        assert (reply.error, reply.complete) == ("api_error: boom", False)

    def test_a_stream_that_stops_before_message_stop_is_not_complete(self) -> None:
        reply = stream(start(), *TEXT, ends("end_turn"))
        assert reply is not None
        assert (reply.complete, reply.stop_reason, reply.error) == (False, "end_turn", "")

    def test_a_stream_cut_inside_an_event_keeps_what_was_whole(self) -> None:
        body = b"".join(f"data: {json.dumps(e)}\n\n".encode() for e in (start(), *TEXT))
        reply = of_body(body + b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_del')
        assert reply is not None
        assert reply.message.blocks == (Block("text", "Hi there"),)
        assert not reply.complete

    def test_a_second_message_start_gives_up_the_first_sample(self) -> None:
        again = {"type": "message_start", "message": {"id": "msg_2", "usage": {"input_tokens": 9}}}
        half = opens(1, type="tool_use", id="t1", name="T", input={})
        new = opens(0, type="text", text="new")
        reply = stream(start(input_tokens=1), *TEXT, half, again, new, ends("end_turn"), STOP)
        assert reply is not None
        assert reply.message.blocks == (Block("text", "new"),)
        assert (reply.id, reply.usage.input, reply.complete) == ("msg_2", 9, True)
        assert reply.notes == ("the stream started again: msg_1 was given up for the next one",)

    def test_unknown_events_and_comments_anywhere_are_passed_over(self) -> None:
        body = b': hello\n\nevent: novelty\ndata: {"type": "novelty"}\n\ndata: no json\n\n'
        assert of_body(body) is None
        reply = of_body(body + f"data: {json.dumps(start())}\n\n: x\n\ndata: {json.dumps(STOP)}\n\n".encode())
        assert reply is not None
        assert reply.complete

    @pytest.mark.parametrize("word", ["pause_turn", "compaction", "refusal", "model_context_window_exceeded"])
    def test_stop_reasons_are_the_wires_own_words(self, word: str) -> None:
        reply = stream(start(), *TEXT, ends(word), STOP)
        assert reply is not None
        assert (reply.stop_reason, reply.complete) == (word, True)

    def test_the_same_reply_comes_out_of_chunks_of_every_size(self) -> None:
        events = (start(input_tokens=5), *TEXT, delta(0, "text_delta", text="é😀\u2028"), ends("end_turn"), STOP)
        whole = stream(*events, size=10**6)
        assert all(stream(*events, size=n) == whole for n in (1, 2, 3, 5, 64))


class TestWholeReplies:
    def test_a_json_body_is_a_reply_too(self) -> None:
        body = {
            "id": "msg_9",
            "type": "message",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "t", "name": "T", "input": {"b": 1, "a": 2}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 4, "output_tokens": 2},
            "context_management": {"applied_edits": [{"type": "clear_thinking_20251015", "cleared_thinking_turns": 1}]},
        }
        assert of_body(json.dumps(body, indent=1).encode()) == Reply(
            Message("assistant", (Block("text", "a"), Block("tool_call", '{"a":2,"b":1}', "T", "t"))),
            stop_reason="tool_use",
            complete=True,
            id="msg_9",
            usage=Usage(input=4, output=2),
            server_edits=("clear_thinking_20251015",),
        )

    def test_an_error_body_says_its_type_and_message(self) -> None:
        reply = of_body(b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}')
        assert reply == Reply(Message("assistant", ()), "", complete=False, error="rate_limit_error: slow down")

    def test_an_error_body_of_a_gateway_is_no_reply(self) -> None:
        reply = of_body(b'{"message": "Too many tokens"}')
        assert reply == Reply(Message("assistant", ()), "", complete=False, error="Too many tokens")

    def test_a_count_of_tokens_is_usage_alone(self) -> None:
        reply = of_body(b'{"input_tokens": 2095}')
        assert reply == Reply(Message("assistant", ()), "", complete=True, usage=Usage(input=2095))

    @pytest.mark.parametrize("body", [b"", b" \n", b"<html>502</html>", b'{"id": "msg', b"[1]"])
    def test_a_body_that_nobody_can_read_is_no_reply(self, body: bytes) -> None:
        assert of_body(body) is None


def test_token_ids_that_an_engine_put_into_its_events_are_kept() -> None:
    first = start()
    message = first["message"]
    assert isinstance(message, dict)
    message["prompt_token_ids"] = [1, 2, 3]
    reply = stream(
        first, *TEXT, {**ends("end_turn"), "token_ids": [7, 8], "logprobs": [-0.5, -1]}, {**STOP, "token_ids": None}
    )
    assert reply is not None
    assert reply.served == Served((1, 2, 3), (7, 8), (-0.5, -1.0))


@pytest.mark.parametrize(("input", "text"), [({"b": 1}, '{"b":1}'), ({}, ""), (None, "")])
def test_a_call_without_deltas_has_the_arguments_of_its_start_event(input: object, text: str) -> None:
    reply = stream(start(), opens(0, type="tool_use", id="t1", name="T", input=input), opens(1, type="tool_use"))
    assert reply is not None
    assert reply.message.blocks == (Block("tool_call", text, "T", "t1"), Block("tool_call"))


def test_a_whole_reply_without_arguments_has_an_empty_object() -> None:
    reply = of_body(b'{"content":[{"type":"tool_use","id":"t1","name":"T","input":{}}]}')
    assert reply is not None
    assert reply.message.blocks == (Block("tool_call", "{}", "T", "t1"),)
