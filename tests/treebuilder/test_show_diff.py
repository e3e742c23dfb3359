"""What `diff` tells: the wire key by key, the model's view span by span, and which is which."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
from simulate import CAPTURES, call

from recorder.call import Call
from recorder.importing import read_har
from treebuilder.build import build
from treebuilder.show_diff import Difference, Key, difference, render_diff


def body(seq: int, **keys: Any) -> Call:
    one = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **keys}
    headers = (("content-type", "application/json"),)
    return replace(call(seq), seq=seq, request_body=orjson.dumps(one), request_headers=headers)


def told_of(first: Call, second: Call) -> Difference:
    return difference(first, second, tree=lambda: build([]))


def test_the_wire_is_told_from_what_the_model_sees() -> None:
    calls = list(read_har(CAPTURES / "opencode" / "prune_anthropic.har"))
    told = told_of(calls[6], calls[7])
    assert told.raw.bytes == (417419, 126253)
    assert Key("changed", "messages[2].content[0].content") in told.raw.keys
    assert Key("added", "messages[11:13]") in told.raw.keys
    assert told.canonical
    assert (told.canonical.messages, told.canonical.kept) == ((11, 13), 2)
    assert [part.message for part in told.canonical.evicted] == [2, 2, 2, 4, 4, 6]
    assert told.canonical.evicted_chars == sum(part.chars for part in told.canonical.evicted)
    assert told.canonical.inserted[0].text == "[Old tool result content cleared]"
    said = render_diff(told).plain
    assert "2 of 11 leading messages kept; 286.1k characters left, 220 came" in said
    assert "- message 2 user tool_result [1:47612] 47.6k: <path>" in said


def test_what_the_model_cannot_see_differs_on_the_wire_alone() -> None:
    marked = [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]
    told = told_of(body(1), body(2, messages=[{"role": "user", "content": marked}], temperature=0.5))
    assert told.raw.keys == (Key("changed", "messages[0].content"), Key("added", "temperature"))
    assert told.canonical
    assert (told.canonical.evicted, told.canonical.inserted, told.canonical.head) == ((), (), ())
    assert render_diff(told).plain.splitlines()[-1] == "  the same"


def test_a_changed_head_is_named() -> None:
    tools = [{"name": "read", "description": "", "input_schema": {}}]
    told = told_of(body(1, system="a"), body(2, system="b", tools=tools))
    assert told.canonical
    assert told.canonical.head == ("system text", "tools: +read")


def test_equal_bytes_are_said_to_be() -> None:
    told = told_of(body(1), body(2))
    assert told.raw.equal
    assert "equal byte for byte" in render_diff(told).plain


def test_other_bytes_of_the_same_json_are_said_to_be() -> None:
    first = body(1)
    told = told_of(first, replace(first, request_body=first.request_body.replace(b",", b", ")))
    assert (told.raw.equal, told.raw.keys) == (False, ())
    assert "other bytes, the same JSON" in render_diff(told).plain


def test_a_message_taken_out_of_the_middle_is_one_key() -> None:
    history = [{"role": "user", "content": str(i)} for i in range(5)]
    told = told_of(body(1, messages=history), body(2, messages=[*history[:2], *history[3:]]))
    assert told.raw.keys == (Key("removed", "messages[2:3]"),)


def test_a_moved_block_says_whence_and_whither() -> None:
    a, b, c = ({"role": "user", "content": f"{name} {name * 30}"} for name in "abc")
    told = told_of(body(1, messages=[a, b, c]), body(2, messages=[b, c, a]))
    assert told.canonical
    ((was, now),) = told.canonical.moved
    assert (was.message, now.message) == (0, 2)
    assert "> message 0 to 2" in render_diff(told).plain


def test_a_call_that_cannot_be_read_is_told_with_its_reason() -> None:
    told = told_of(body(1), replace(body(2), request_body=b"{"))
    assert told.canonical is None
    assert told.unreadable.startswith("call 2 cannot be read: ")
    assert told.raw.unreadable == "the body of call 2 is no JSON"
    assert "call 2 cannot be read" in render_diff(told).plain


def test_a_call_that_sends_only_what_is_new_is_told_with_all_that_stands_in_front() -> None:
    """Codex over a websocket: each request names the reply before and holds only what came since."""
    har = CAPTURES / "codex" / "codex_proxy_websocket.har"
    calls = [replace(one, seq=i + 1) for i, one in enumerate(read_har(har))]
    made = build(calls)
    a, b = next((x, y) for x, y in pairwise(made.turns) if y.parent == x.index and y.kind == "append")
    told = difference(calls[a.index], calls[b.index], tree=lambda: made)
    assert told.canonical
    assert told.canonical.messages == (len(a.messages), len(b.messages))
    assert told.canonical.kept == len(a.messages)
    assert not told.canonical.evicted


def test_earlier_items_that_nobody_recorded_are_said_to_be_missing() -> None:
    one = replace(body(1, input="hello", previous_response_id="resp_1"), url="http://127.0.0.1/v1/responses")
    told = difference(one, one, tree=lambda: build([one]))
    assert told.canonical is None
    assert told.unreadable.startswith("call 1 cannot be read: earlier items unknown")


def test_many_keys_are_cut_in_the_terminal_and_whole_in_json() -> None:
    told = told_of(body(1), body(2, metadata={f"k{i}": i for i in range(5)}, **{f"x{i}": i for i in range(40)}))
    assert len(told.raw.keys) == 41
    assert "and 17 more; --json has them all" in render_diff(told).plain
    assert orjson.loads(orjson.dumps(told))["raw"]["keys"][40] == {"change": "added", "key": "x39"}
