"""What real clients change from request to request without the model noticing: each such change, on a whole request.

The list is that of the wire facts, word for word; every named rule of `recorder.canonical` is seen at work once.
"""

import base64
import copy
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from recorder import canonical
from recorder.call import Call, Outcome
from recorder.message import Exchange
from recorder.wire import read

Body = dict[str, Any]
PICTURE = base64.b64encode(b"not a picture").decode()

MESSAGES: Body = {
    "model": "claude-test",
    "max_tokens": 64,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=11111;"},
        {"type": "text", "text": "You are careful.", "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [{"name": "read", "description": "reads", "input_schema": {"type": "object", "properties": {}}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "where?", "signature": "AAAA"},
                {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a", "limit": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "alpha"}]},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
            ],
        },
    ],
}
RESPONSES: Body = {
    "model": "gpt-test",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]},
        {"type": "reasoning", "summary": [], "id": "rs_1", "encrypted_content": "AAAA"},
        {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "alpha"},
    ],
}


def meaning(body: Body) -> tuple[object, ...]:
    path = "messages" if "messages" in body else "responses"
    call = Call(
        "POST", f"https://model.example/v1/{path}", 200, Outcome.UNANSWERED, (), (), orjson.dumps(body), b"", 0.0
    )
    exchange = read(call)
    assert isinstance(exchange, Exchange)
    return exchange.head.digest, tuple(m.digest for m in exchange.messages)


def changed(body: Body, change: Callable[[Body], object]) -> Body:
    made = copy.deepcopy(body)
    change(made)
    assert orjson.dumps(made) != orjson.dumps(body)  # the bytes differ
    return made


def _move_cache_control(body: Body) -> None:
    del body["system"][1]["cache_control"]
    body["messages"][0]["content"][0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}


def _reorder(body: Body) -> None:
    call = body["messages"][1]["content"][1]
    call["input"] = dict(reversed(call["input"].items()))
    schema = body["tools"][0]["input_schema"]
    body["tools"][0]["input_schema"] = dict(reversed(schema.items()))


def _mask_picture(body: Body) -> None:
    """The same data, spelled by another serialiser."""
    source = body["messages"][2]["content"][1]["source"]
    body["messages"][2]["content"][1]["source"] = dict(reversed(source.items()))


SETTINGS = {
    "diagnostics": {"previous_message_id": "msg_1"},
    "metadata": {"user_id": "someone"},
    "betas": ["context-1m"],
    "fallbacks": [{"model": "claude-other"}],
    "context_hint": {"enabled": True},
    "safeguards": {"enabled": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
    "output_config": {"effort": "low"},
    "stream": True,
}

COSMETIC: list[tuple[str, Body, Callable[[Body], object]]] = [
    ("cache_control", MESSAGES, _move_cache_control),
    ("bare_string", MESSAGES, lambda b: b["messages"][0].update(content="look")),
    ("bare_string", MESSAGES, lambda b: b["messages"][2]["content"][0].update(content="alpha")),
    ("billing_block", MESSAGES, lambda b: b["system"][0].update(text="x-anthropic-billing-header: cch=22222;")),
    ("billing_block", MESSAGES, lambda b: b["system"].pop(0)),
    *[("request_settings", MESSAGES, lambda b, k=k, v=v: b.update({k: v})) for k, v in SETTINGS.items()],
    ("key_order", MESSAGES, _reorder),
    ("key_order", MESSAGES, lambda b: b["messages"][1]["content"][1]["input"].update(limit=2.0)),
    ("signature", MESSAGES, lambda b: b["messages"][1]["content"][0].update(signature="BBBB")),
    ("citations", MESSAGES, lambda b: b["messages"][0]["content"][0].update(citations=[])),
    ("tool_flags", MESSAGES, lambda b: b["tools"][0].update(defer_loading=True, strict=True)),
    ("extra_keys", MESSAGES, lambda b: b["messages"][0].update(output_config={"effort": "low"})),
    ("empty_text", MESSAGES, lambda b: b["messages"][0]["content"].append({"type": "text", "text": ""})),
    ("image_bytes", MESSAGES, _mask_picture),
    ("item_id", RESPONSES, lambda b: b["input"][3].pop("id")),
    ("item_status", RESPONSES, lambda b: b["input"][3].pop("status")),
    ("encrypted_reasoning", RESPONSES, lambda b: b["input"][2].update(encrypted_content="BBBB")),
    ("passthrough", RESPONSES, lambda b: b["input"][1].update(internal_chat_message_metadata_passthrough={"a": 1})),
    ("developer_role", RESPONSES, lambda b: b["input"][0].update(role="system")),
]


@pytest.mark.parametrize(("rule", "body", "change"), COSMETIC, ids=[f"{c[0]}-{i}" for i, c in enumerate(COSMETIC)])
def test_a_change_that_the_model_cannot_see_leaves_the_meaning_as_it_was(
    rule: str, body: Body, change: Callable[[Body], object]
) -> None:
    assert rule in {r.name for r in canonical.RULES}
    assert meaning(changed(body, change)) == meaning(body)


def test_every_rule_is_seen_at_work() -> None:
    assert {rule for rule, _, _ in COSMETIC} == {rule.name for rule in canonical.RULES}


VISIBLE: list[tuple[str, Body, Callable[[Body], object]]] = [
    ("a newline at the end of a text", MESSAGES, lambda b: b["messages"][0]["content"][0].update(text="look\n")),
    ("a tool more", MESSAGES, lambda b: b["tools"].append({"name": "w", "description": "", "input_schema": {}})),
    ("a tool less", MESSAGES, lambda b: b["tools"].pop()),
    ("a default in an echo", MESSAGES, lambda b: b["messages"][1]["content"][1]["input"].update(replace_all=False)),
    ("a call to a tool renamed", MESSAGES, lambda b: b["messages"][1]["content"][1].update(name="invalid")),
    ("another system text", MESSAGES, lambda b: b["system"][1].update(text="You are bold.")),
    ("reasoning left out", MESSAGES, lambda b: b["messages"][1]["content"].pop(0)),
    ("an empty message", MESSAGES, lambda b: b["messages"].insert(1, {"role": "system", "content": []})),
    ("another picture", MESSAGES, lambda b: b["messages"][2]["content"][1]["source"].update(data="QUJD")),
    ("another call id", RESPONSES, lambda b: b["input"][3].update(call_id="c2")),
]


@pytest.mark.parametrize(("name", "body", "change"), VISIBLE, ids=[v[0] for v in VISIBLE])
def test_a_small_change_that_the_model_can_see_changes_the_meaning(
    name: str, body: Body, change: Callable[[Body], object]
) -> None:
    assert meaning(changed(body, change)) != meaning(body)
