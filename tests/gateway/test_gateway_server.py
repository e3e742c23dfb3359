"""The gateway over real loopback HTTP: what a harness meets."""

import gzip
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import zstandard

from proxy.gateway.script import Script, parse
from proxy.gateway.server import Gateway
from recorder.errors import LaunchError, ScriptError
from recorder.message import Block
from recorder.wire import reply_reader

PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
}

HTTP = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def script(*turns: object, **rest: object) -> Script:
    return parse(json.dumps({"turns": list(turns), **rest}))


def body(wire: str, *users: str, stream: bool = True) -> dict[str, object]:
    """A request whose user and assistant messages take turns."""
    items = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(users)]
    key = "input" if wire == "openai_responses" else "messages"
    return {"model": "any-model", key: items, "stream": stream}


def ask(
    gateway: Gateway,
    wire: str,
    *users: str,
    session: str = "",
    stream: bool = True,
    rest: dict[str, object] | None = None,
) -> httpx.Response:
    headers = {"x-session-id": session} if session else {}
    sent = {**body(wire, *users, stream=stream), **(rest or {})}
    return HTTP.post(gateway.url + PATHS[wire], json=sent, headers=headers)


def said(response: httpx.Response, wire: str = "anthropic") -> str:
    """Text of a reply, as the recorder reads it."""
    return " ".join(block.text for block in blocks(response, wire))


def blocks(response: httpx.Response, wire: str = "anthropic") -> tuple[Block, ...]:
    reader = reply_reader(wire)
    reader.feed(response.content)
    reply = reader.finish()
    assert reply is not None
    return reply.message.blocks


@pytest.fixture
def three() -> Iterator[Gateway]:
    with Gateway(script({"text": "one"}, {"text": "two"}, {"text": "three"})) as gateway:
        yield gateway


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", PATHS)
def test_turns_are_played_in_order_on_every_wire(three: Gateway, wire: str, stream: bool) -> None:
    assert said(ask(three, wire, "a", stream=stream), wire) == "one"
    assert said(ask(three, wire, "a", "one", "b", stream=stream), wire) == "two"
    assert three.requests == 2


def test_a_stream_says_so_in_its_headers(three: Gateway) -> None:
    response = ask(three, "anthropic", "a")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.headers["request-id"].startswith("req_011")
    assert "server" not in response.headers
    assert ask(three, "openai_chat", "a").headers["x-request-id"].startswith("req_011")


def test_ids_are_fresh_for_each_reply() -> None:
    tool = {"name": "Read", "input": {}}
    with Gateway(script({"tools": [tool], "repeat": 2})) as gateway:
        replies = [ask(gateway, "anthropic", "a", stream=False) for _ in range(2)]
    assert len({r.json()["id"] for r in replies}) == 2
    assert len({r.json()["content"][0]["id"] for r in replies}) == 2
    assert len({r.headers["request-id"] for r in replies}) == 2


def test_a_used_up_script_says_done(three: Gateway) -> None:
    assert [said(ask(three, "anthropic", "a")) for _ in range(5)] == ["one", "two", "three", "Done.", "Done."]


def test_a_strict_script_refuses_when_it_is_used_up() -> None:
    with Gateway(script({"text": "one"}, strict=True)) as gateway:
        ask(gateway, "anthropic", "a")
        response = ask(gateway, "anthropic", "a")
    assert response.status_code == 400
    assert response.json()["error"] == {
        "type": "invalid_request_error",
        "message": "the script's 1 turns are used up",
    }
    assert response.json()["request_id"] == response.headers["request-id"]


class TestConversationsDoNotMix:
    def test_told_apart_by_session(self, three: Gateway) -> None:
        assert said(ask(three, "anthropic", "a", session="s1")) == "one"
        assert said(ask(three, "anthropic", "a", session="s2")) == "one"
        assert said(ask(three, "anthropic", "b", session="s1")) == "two"
        assert said(ask(three, "openai_chat", "c", session="s2"), "openai_chat") == "two"

    def test_told_apart_by_their_first_messages(self, three: Gateway) -> None:
        assert said(ask(three, "anthropic", "a")) == "one"
        assert said(ask(three, "anthropic", "b")) == "one"
        assert said(ask(three, "anthropic", "a", "one", "more")) == "two"
        assert said(ask(three, "anthropic", "b", "one", "more")) == "two"

    def test_a_subagent_is_a_conversation_of_its_own(self, three: Gateway) -> None:
        main = {"x-claude-code-session-id": "s"}
        agent = {**main, "x-claude-code-agent-id": "a1"}
        url = three.url + PATHS["anthropic"]
        texts = [said(HTTP.post(url, json=body("anthropic", "a"), headers=h)) for h in (main, agent, main, agent)]
        assert texts == ["one", "one", "two", "two"]

    def test_followed_along_previous_response_ids(self, three: Gateway) -> None:
        first = ask(three, "openai_responses", "a", stream=False)
        second = ask(three, "openai_responses", "b", rest={"previous_response_id": first.json()["id"]})
        assert said(second, "openai_responses") == "two"

    def test_one_lane_for_all_when_the_script_says_so(self) -> None:
        with Gateway(script({"text": "one"}, {"text": "two"}, lanes="one")) as gateway:
            assert said(ask(gateway, "anthropic", "a", session="s1")) == "one"
            assert said(ask(gateway, "anthropic", "b", session="s2")) == "two"


TOOL = {"name": "Read", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("when", "fitting", "other"),
    [
        ({"wire": "anthropic"}, ("anthropic", {}), ("openai_chat", {})),
        ({"model": "any"}, ("anthropic", {}), ("anthropic", {"model": "that"})),
        ({"has_tools": True}, ("anthropic", {"tools": [TOOL]}), ("anthropic", {})),
        ({"has_tools": False}, ("anthropic", {}), ("anthropic", {"tools": [TOOL]})),
        ({"agent": False}, ("anthropic", {}), None),
        ({"system": "title"}, ("anthropic", {"system": "a title generator"}), ("anthropic", {"system": "an agent"})),
        ({"first_user": "first"}, ("anthropic", {}), None),
        ({"first_user": "last"}, None, ("anthropic", {})),
        ({"last_user": "last"}, ("anthropic", {}), None),
        ({"last_user": "first"}, None, ("anthropic", {})),
        ({"min_messages": 3}, ("anthropic", {}), None),
        ({"min_messages": 4}, None, ("anthropic", {})),
        ({"max_messages": 3}, ("anthropic", {}), None),
        ({"max_messages": 2}, None, ("anthropic", {})),
    ],
)
def test_a_rule_answers_what_fits_it_and_nothing_else(
    when: dict[str, object], fitting: tuple[str, dict[str, object]] | None, other: tuple[str, dict[str, object]] | None
) -> None:
    ruled = script({"text": "main"}, rules=[{"when": when, "turns": [{"text": "ruled"}]}])
    with Gateway(ruled) as gateway:
        for case, expected in ((fitting, "ruled"), (other, "main")):
            if case is not None:
                wire, rest = case
                assert said(ask(gateway, wire, "first", "middle", "last", rest=rest), wire) == expected


def test_a_rule_can_be_for_subagents_alone() -> None:
    ruled = script({"text": "main"}, rules=[{"when": {"agent": True}, "turns": [{"text": "agent"}]}])
    main = {"x-claude-code-session-id": "s"}
    with Gateway(ruled) as gateway:
        url = gateway.url + PATHS["anthropic"]
        texts = [
            said(HTTP.post(url, json=body("anthropic", "a"), headers=headers))
            for headers in ({**main, "x-claude-code-agent-id": "a1"}, main)
        ]
    assert texts == ["agent", "main"]


def test_a_system_message_of_chat_counts_as_system() -> None:
    ruled = script({"text": "main"}, rules=[{"when": {"system": "title"}, "turns": [{"text": "ruled"}]}])
    sent = {"model": "m", "messages": [{"role": "system", "content": "title"}, {"role": "user", "content": "a"}]}
    with Gateway(ruled) as gateway:
        response = HTTP.post(gateway.url + PATHS["openai_chat"], json=sent)
        assert response.json()["choices"][0]["message"]["content"] == "ruled"


def test_rules_use_up_their_own_turns_and_repeat_the_last() -> None:
    rule = {"when": {"last_user": "sum up"}, "turns": [{"text": "first summary"}, {"text": "next summary"}]}
    with Gateway(script({"text": "one"}, {"text": "two"}, rules=[rule])) as gateway:
        texts = [
            said(ask(gateway, "anthropic", text, session="s")) for text in ("go", "sum up", "sum up", "sum up", "go on")
        ]
    assert texts == ["one", "first summary", "next summary", "next summary", "two"]


def test_variables_fill_texts_and_tool_inputs() -> None:
    turn = {"text": "In {cwd}, {other}.", "tools": [{"name": "Read", "input": {"file_path": "{cwd}/a.txt"}}]}
    with Gateway(script(turn, variables=["cwd"]), variables={"cwd": 'C:\\my "dir"', "other": "x"}) as gateway:
        text, call = blocks(ask(gateway, "anthropic", "a"))
    assert text.text == 'In C:\\my "dir", {other}.'
    assert json.loads(call.text) == {"file_path": 'C:\\my "dir"/a.txt'}


def test_a_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(ScriptError, match=r"^script: expected a value for each variable, got none for cwd$"):
        Gateway(script(variables=["cwd"]))


def test_counted_usage_grows_with_the_request() -> None:
    sized = script({"text": "12345678"}, usage={"input": "size", "factor": 10})
    with Gateway(sized) as gateway:
        usage = ask(gateway, "anthropic", "a" * 400, stream=False).json()["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (1000, 2)


@pytest.mark.parametrize("wire", PATHS)
class TestAReplyCanBeCut:
    def test_after_some_events_of_a_stream(self, wire: str) -> None:
        with Gateway(script({"text": "a long text", "chunk": 1, "cut_after": 4}, {"text": "again"})) as gateway:
            got = b""
            sent = body(wire, "a")
            with HTTP.stream("POST", gateway.url + PATHS[wire], json=sent) as response:
                assert response.status_code == 200
                chunks = response.iter_raw()
                while got.count(b"\n\n") < 4:
                    got += next(chunks)
                with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
                    next(chunks)
            assert got.count(b"\n\n") == 4
            assert got.endswith(b"\n\n")
            assert said(ask(gateway, wire, "a"), wire) == "again"
            assert gateway.counts.cut == 1

    def test_before_the_first_event(self, wire: str) -> None:
        with (
            Gateway(script({"text": "a", "cut_after": 0})) as gateway,
            pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
        ):
            ask(gateway, wire, "a")

    def test_in_the_middle_of_a_body(self, wire: str) -> None:
        with (
            Gateway(script({"text": "a", "cut_after": 4})) as gateway,
            pytest.raises(httpx.RemoteProtocolError, match=r"received .* bytes, expected"),
        ):
            ask(gateway, wire, "a", stream=False)


@pytest.mark.parametrize("wire", PATHS)
class TestAReplyCanFail:
    def test_with_a_status(self, wire: str) -> None:
        error = {"status": 529, "type": "overloaded_error", "message": "Overloaded", "retry_after_s": 0.5}
        with Gateway(script({"error": error}, {"text": "better"})) as gateway:
            response = ask(gateway, wire, "a")
            assert response.status_code == 529
            assert response.headers["retry-after"] == "0.5"
            told = response.json()["error"]
            assert (told["type"], told["message"]) == ("overloaded_error", "Overloaded")
            assert said(ask(gateway, wire, "a"), wire) == "better"
            assert gateway.counts.refused == 1

    def test_inside_the_stream(self, wire: str) -> None:
        error = {"type": "overloaded_error", "message": "Overloaded", "after": 3}
        with Gateway(script({"text": "abcd", "chunk": 2, "stream_error": error})) as gateway:
            response = ask(gateway, wire, "a")
        assert response.status_code == 200
        assert "overloaded_error" in response.text.split("\n\n")[-2]
        assert said(response, wire) == "ab"

    def test_as_a_whole_where_no_stream_was_asked_for(self, wire: str) -> None:
        with Gateway(script({"text": "abcd", "stream_error": {"type": "api_error"}})) as gateway:
            response = ask(gateway, wire, "a", stream=False)
        assert (response.status_code, response.json()["error"]["type"]) == (500, "api_error")


def test_delays_come_before_the_head_and_between_the_events() -> None:
    turn = {"text": "ab", "chunk": 1, "first_delay_s": 0.2, "delay_s": 0.05}
    with Gateway(script(turn)) as gateway:
        start = time.monotonic()
        with HTTP.stream("POST", gateway.url + PATHS["anthropic"], json=body("anthropic", "a")) as response:
            head_s = time.monotonic() - start
            chunks = list(response.iter_raw())
        whole_s = time.monotonic() - start
    assert head_s >= 0.2
    assert len(chunks) == 8
    assert whole_s - head_s >= 7 * 0.05 - 0.01


def test_a_client_that_leaves_is_counted_and_hurts_nobody() -> None:
    with Gateway(script({"text": "abcdefgh", "chunk": 1, "delay_s": 0.05}, {"text": "next"})) as gateway:
        with HTTP.stream("POST", gateway.url + PATHS["anthropic"], json=body("anthropic", "a")) as response:
            next(response.iter_raw())
        for _ in range(100):
            if gateway.counts.left:
                break
            time.sleep(0.02)
        assert gateway.counts.left == 1
        assert said(ask(gateway, "anthropic", "a")) == "next"


def test_sixteen_conversations_at_once() -> None:
    turns = [{"text": f"turn {n}", "chunk": 1, "delay_s": 0.005} for n in range(4)]

    def talk(number: int) -> list[str]:
        return [said(ask(gateway, "anthropic", "a", session=f"s{number}")) for _ in range(4)]

    with Gateway(script(*turns)) as gateway, ThreadPoolExecutor(16) as pool:
        talks = list(pool.map(talk, range(16)))
        assert gateway.requests == 64
    assert talks == [["turn 0", "turn 1", "turn 2", "turn 3"]] * 16


@pytest.mark.parametrize(
    ("encoding", "encode"), [("zstd", zstandard.ZstdCompressor().compress), ("gzip", gzip.compress)]
)
def test_compressed_requests_are_read(three: Gateway, encoding: str, encode: object) -> None:
    assert callable(encode)
    sent = encode(json.dumps(body("openai_responses", "a")).encode())
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    response = HTTP.post(three.url + PATHS["openai_responses"], content=sent, headers=headers)
    assert said(response, "openai_responses") == "one"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "request: expected a JSON object"),
        (b"[]", "request: expected an object, got list"),
        (b"{}", "messages: expected an array, got NoneType"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused(three: Gateway, content: bytes, message: str) -> None:
    response = HTTP.post(three.url + PATHS["anthropic"], content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["message"].startswith(message)


def test_tokens_are_counted_without_using_up_a_turn(three: Gateway) -> None:
    sent = body("anthropic", "a" * 80)
    assert HTTP.post(three.url + "/v1/messages/count_tokens", json=sent).json() == {"input_tokens": 20}
    sent = body("openai_responses", "a" * 80)
    counted = HTTP.post(three.url + "/v1/responses/input_tokens", json=sent).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": 20}
    assert three.requests == 0


def test_models_are_listed_in_the_words_of_who_asks() -> None:
    with Gateway(script(models=["a", "b"])) as gateway:
        openai = HTTP.get(gateway.url + "/v1/models").json()
        anthropic = HTTP.get(gateway.url + "/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert [(m["id"], m["object"]) for m in openai["data"]] == [("a", "model"), ("b", "model")]
    assert [(m["id"], m["type"]) for m in anthropic["data"]] == [("a", "model"), ("b", "model")]
    assert (anthropic["first_id"], anthropic["last_id"], anthropic["has_more"]) == ("a", "b", False)


def test_other_paths_are_not_found_in_json(three: Gateway) -> None:
    response = HTTP.get(three.url + "/api/claude_code/settings")
    assert response.status_code == 404
    assert response.json()["error"] == {
        "type": "not_found_error",
        "message": "no GET /api/claude_code/settings here",
    }
    assert HTTP.head(three.url + "/").status_code == 404


def test_a_websocket_is_declined_so_that_clients_fall_back(three: Gateway) -> None:
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "YQ==",
        "sec-websocket-version": "13",
    }
    assert HTTP.get(three.url + "/v1/responses", headers=headers).status_code == 426


def test_it_listens_on_loopback_alone(three: Gateway) -> None:
    assert three.url.startswith("http://127.0.0.1:")


def test_a_port_in_use_is_named_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"^gateway: expected a free port, got .* on 127.0.0.1:{port}$"):
            Gateway(script(), port=port)


def test_a_closed_gateway_frees_its_port_even_with_a_stream_open() -> None:
    with Gateway(script({"text": "abc", "chunk": 1, "delay_s": 5})) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        client = httpx.Client()
        stream = client.stream("POST", gateway.url + PATHS["anthropic"], json=body("anthropic", "a"))
        stream.__enter__()
        start = time.monotonic()
    assert time.monotonic() - start < 4
    client.close()
    socket.create_server(("127.0.0.1", port)).close()
