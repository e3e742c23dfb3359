"""Responses: items, events and websocket frames, and what is left of a stream that was cut."""

import json

import pytest

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Block, Message, Reply, Tool, Usage
from recorder.wire import openai_responses, reply_reader


def of_body(body: bytes, *, size: int = 13) -> Reply | None:
    reader = reply_reader("openai_responses")
    for i in range(0, len(body), size):
        reader.feed(body[i : i + size])
    return reader.finish()


def stream(*events: dict[str, object]) -> Reply | None:
    return of_body(b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events))


def added(index: int, **item: object) -> dict[str, object]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, **item: object) -> dict[str, object]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(kind: str, index: int, text: str, **more: object) -> dict[str, object]:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": text, **more}


def ended(how: str = "completed", **response: object) -> dict[str, object]:
    return {"type": f"response.{how}", "response": {"id": "resp_1", "status": how, "output": [], **response}}


CREATED: dict[str, object] = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"b": 1, "a": 2}'}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "x",
}


LOOK: dict[str, object] = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}}
MORE: dict[str, object] = {"type": "additional_tools", "role": "developer", "tools": [LOOK]}


class TestAdditionalTools:
    """Codex gives its tools as an input item, with no `tools` at all."""

    def test_those_before_anything_is_said_are_tools(self) -> None:
        body: dict[str, object] = {"model": "m", "input": [MORE, {"role": "user", "content": "hi"}]}
        assert openai_responses.head(body).tools == (Tool("look", "Look.", '{"type":"object"}'),)
        assert openai_responses.messages(body) == (Message("user", (Block("text", "hi"),)),)

    def test_they_stand_behind_the_others(self) -> None:
        body: dict[str, object] = {"tools": [{**LOOK, "name": "first"}], "input": [MORE]}
        assert [t.name for t in openai_responses.head(body).tools] == ["first", "look"]

    def test_later_ones_stay_where_the_model_reads_them(self) -> None:
        body: dict[str, object] = {"input": [{"role": "user", "content": "hi"}, MORE]}
        assert openai_responses.head(body).tools == ()
        assert [(m.role, m.blocks[0].name) for m in openai_responses.messages(body)] == [
            ("user", ""),
            ("system", "additional_tools"),
        ]

    def test_what_goes_on_from_an_earlier_response_is_no_beginning(self) -> None:
        body: dict[str, object] = {"previous_response_id": "resp_1", "input": [MORE]}
        assert openai_responses.head(body).tools == ()
        assert len(openai_responses.messages(body)) == 1

    def test_one_that_is_none_is_told(self) -> None:
        with pytest.raises(WireError, match=r"input\[0\]\.tools\[0\]"):
            openai_responses.head({"input": [{"type": "additional_tools", "tools": ["look"]}]})


class TestRequests:
    def test_one_message_stands_for_each_item(self) -> None:
        items = [
            {"role": "developer", "content": "be brief"},
            {"type": "message", "role": "user", "id": "msg_0", "content": [{"type": "input_text", "text": "look"}]},
            THOUGHT,
            SAID,
            CALL,
            {"type": "function_call_output", "id": "fco", "call_id": "c1", "output": "data", "status": "completed"},
        ]
        assert openai_responses.messages({"input": items}) == (
            Message("system", (Block("text", "be brief"),)),
            Message("user", (Block("text", "look"),)),
            Message("assistant", (Block("thinking", "hm"),)),
            Message("assistant", (Block("text", "Hi"),)),
            Message("assistant", (Block("tool_call", '{"a":2,"b":1}', "f", "c1"),)),
            Message("tool", (Block("tool_result", id="c1", parts=(Block("text", "data"),)),)),
        )

    def test_a_string_is_one_user_message_and_nothing_new_is_no_message(self) -> None:
        assert openai_responses.messages({"input": "hi"}) == (Message("user", (Block("text", "hi"),)),)
        assert openai_responses.messages({"previous_response_id": "resp_0"}) == ()

    def test_instructions_are_the_head(self) -> None:
        function = {
            "type": "function",
            "name": "f",
            "description": "d",
            "strict": False,
            "parameters": {"type": "object"},
        }
        search = {"type": "web_search", "external_web_access": False}
        group = {"type": "namespace", "name": "multi", "description": "m", "tools": [function]}
        head = openai_responses.head({"model": "m", "instructions": "You are", "tools": [function, search, group]})
        assert head.system == (Block("text", "You are"),)
        assert [t.name for t in head.tools] == ["f", "web_search", "multi"]
        assert head.tools[0] == Tool("f", "d", '{"type":"object"}')
        assert head.tools[1] == Tool("web_search", "", '{"external_web_access":false,"type":"web_search"}')

    def test_item_ids_and_status_are_invisible_call_ids_are_not(self) -> None:
        search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}}
        a, b = openai_responses.messages({"input": [search, {**search, "id": "ws_2"}]})
        assert (
            a
            == b
            == Message(
                "assistant", (Block("other", '{"action":{"query":"q"},"type":"web_search_call"}', "web_search_call"),)
            )
        )
        c, d = openai_responses.messages({"input": [CALL, {**CALL, "call_id": "c2"}]})
        assert c != d

    def test_references_to_items_keep_the_id_they_consist_of(self) -> None:
        a, b = openai_responses.messages({"input": [{"type": "item_reference", "id": x} for x in ("r1", "r2")]})
        assert a != b

    def test_shell_and_custom_calls_are_tool_calls_and_their_outputs_results(self) -> None:
        items = [
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]},
            {
                "type": "local_shell_call",
                "id": "l",
                "call_id": "c2",
                "status": "completed",
                "action": {"command": ["ls"]},
            },
            {"type": "local_shell_call_output", "call_id": "c2", "output": "a b"},
        ]
        assert openai_responses.messages({"input": items}) == (
            Message("assistant", (Block("tool_call", "*** Begin Patch", "patch", "c1"),)),
            Message("tool", (Block("tool_result", id="c1", parts=(Block("text", "ok"),)),)),
            Message("assistant", (Block("tool_call", '{"action":{"command":["ls"]}}', "local_shell", "c2"),)),
            Message("tool", (Block("tool_result", id="c2", parts=(Block("text", "a b"),)),)),
        )

    def test_a_frame_that_creates_nothing_is_refused(self) -> None:
        assert openai_responses.unframed({"type": "response.create", "input": []}) == {
            "type": "response.create",
            "input": [],
        }
        assert openai_responses.unframed({"type": "response.create", "response": {"input": "x"}}) == {"input": "x"}
        with pytest.raises(WireError, match=r"^frame: expected response.create, got 'response.cancel'$"):
            openai_responses.unframed({"type": "response.cancel"})


class TestStreams:
    def test_a_reply_is_all_its_output_items_in_order(self) -> None:
        usage = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 15}, "output_tokens": 4}
        assert stream(CREATED, done(1, **SAID), done(0, **THOUGHT), done(2, **CALL), ended(usage=usage)) == Reply(
            Message(
                "assistant",
                (Block("thinking", "hm"), Block("text", "Hi"), Block("tool_call", '{"b": 1, "a": 2}', "f", "c1")),
            ),
            stop_reason="completed",
            complete=True,
            id="resp_1",
            usage=Usage(input=5, output=4, cache_read=15),
        )

    def test_the_done_item_wins_over_its_deltas(self) -> None:
        reply = stream(CREATED, added(0, type="message"), delta("output_text", 0, "H"), done(0, **SAID), ended())
        assert reply is not None
        assert reply.message.blocks == (Block("text", "Hi"),)

    def test_the_output_of_the_last_event_serves_when_no_item_came(self) -> None:
        reply = stream(CREATED, ended(output=[SAID]))
        assert reply is not None
        assert reply.message.blocks == (Block("text", "Hi"),)
        both = stream(CREATED, done(0, **SAID), ended(output=[SAID, SAID]))
        assert both is not None
        assert both.message.blocks == (Block("text", "Hi"),)

    def test_a_cut_stream_keeps_what_its_deltas_said(self) -> None:
        reply = stream(
            CREATED,
            added(0, type="reasoning", summary=[]),
            delta("reasoning_summary_text", 0, "one", summary_index=0),
            delta("reasoning_summary_text", 0, "two", summary_index=1),
            added(1, type="message", content=[]),
            delta("output_text", 1, "Hel", content_index=0),
            delta("output_text", 1, "lo", content_index=0),
            added(2, type="function_call", call_id="c1", name="f", arguments=""),
            delta("function_call_arguments", 2, '{"a'),
        )
        assert reply is not None
        assert reply.message.blocks == (
            Block("thinking", "one\n\ntwo"),
            Block("text", "Hello"),
            Block("tool_call", '{"a', "f", "c1"),
        )
        assert (reply.complete, reply.stop_reason) == (False, "")

    def test_open_reasoning_is_taken_before_its_summary(self) -> None:
        item = {**THOUGHT, "content": [{"type": "reasoning_text", "text": "all of it"}]}
        reply = stream(CREATED, done(0, **item), ended())
        assert reply is not None
        assert reply.message.blocks == (Block("thinking", "all of it"),)

    def test_too_few_tokens_is_an_end_and_failure_is_not(self) -> None:
        cut = stream(CREATED, done(0, **SAID), ended("incomplete", incomplete_details={"reason": "max_output_tokens"}))
        assert cut is not None
        assert (cut.stop_reason, cut.complete) == ("max_output_tokens", True)
        failed = stream(CREATED, ended("failed", error={"code": "server_error", "message": "boom"}))
        assert failed is not None
        assert (failed.error, failed.complete) == ("server_error: boom", False)

    @pytest.mark.parametrize(
        "event",
        [
            {"type": "error", "code": "rate_limit_exceeded", "message": "slow"},
            {"type": "error", "status": 429, "error": {"type": "rate_limit_exceeded", "message": "slow"}},
        ],
    )
    def test_error_events_of_both_shapes(self, event: dict[str, object]) -> None:
        reply = stream(CREATED, event)
        assert reply is not None
        assert (reply.error, reply.complete) == ("rate_limit_exceeded: slow", False)

    def test_websocket_frames_carry_the_same_events(self) -> None:
        events = (CREATED, done(0, **SAID), ended())
        frames = b"".join(b"\x1e" + json.dumps(e).encode() + b"\n" for e in events)
        assert of_body(frames) == stream(*events)
        assert of_body(frames, size=1) == stream(*events)

    def test_a_compaction_item_is_a_summary_that_only_the_server_can_read(self) -> None:
        reply = stream(CREATED, done(0, type="compaction", id="cmp_1", encrypted_content="x"), ended())
        assert reply is not None
        assert reply.server_edits == ("compaction",)


class TestWholeReplies:
    def test_a_json_body_is_a_reply_too(self) -> None:
        body = {"id": "resp_2", "status": "completed", "error": None, "output": [THOUGHT, CALL]}
        reply = of_body(json.dumps(body).encode())
        assert reply is not None
        assert (reply.id, reply.complete, reply.error, reply.stop_reason) == ("resp_2", True, "", "completed")
        assert [canonical.echo(block).text for block in reply.message.blocks] == ["hm", '{"a":2,"b":1}']

    def test_error_bodies(self) -> None:
        for body, said in (
            ({"error": {"code": "x", "message": "no"}}, "x: no"),
            ({"detail": "Unauthorized"}, "Unauthorized"),
        ):
            reply = of_body(json.dumps(body).encode())
            assert reply == Reply(Message("assistant", ()), "", complete=False, error=said)
