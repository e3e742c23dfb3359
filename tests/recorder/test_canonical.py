"""The rules of what a model cannot see: each is named once, and each is seen at work."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Block
from recorder.wire import anthropic, openai_chat, openai_responses


def test_every_rule_has_a_name_of_its_own_and_one_line_of_reason() -> None:
    names = [rule.name for rule in canonical.RULES]
    assert len(set(names)) == len(names)
    assert all(rule.reason and "\n" not in rule.reason for rule in canonical.RULES)


def test_the_list_is_versioned_so_that_a_new_rule_is_noticed() -> None:
    """A new rule changes content hashes: raise VERSION with it, then this literal."""
    assert (canonical.VERSION, len(canonical.RULES)) == (1, 16)


USER = {"type": "text", "text": "a"}
USE = {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1, "b": [1.5]}}
THINKS = {"type": "thinking", "thinking": "x"}
TOOL = {"name": "T", "description": "d", "input_schema": {"type": "object"}}
ITEM = {"type": "web_search_call", "action": {"query": "q"}}
REASONS = {"type": "reasoning", "summary": []}


@pytest.mark.parametrize(
    ("rule", "one", "other"),
    [
        ("cache_control", [USER], [{**USER, "cache_control": {"type": "ephemeral"}}]),
        ("signature", [{**THINKS, "signature": "A"}], [{**THINKS, "signature": "B"}]),
        ("citations", [USER], [{**USER, "citations": [{"type": "char_location"}]}]),
        ("bare_string", "a", [USER]),
        ("empty_text", [USER, {"type": "text", "text": ""}], [USER]),
        ("empty_text", "", []),
        ("key_order", [USE], [{**USE, "input": {"b": [1.5], "a": 1.0}}]),
    ],
)
def test_rules_for_anthropic_content(rule: str, one: object, other: object) -> None:
    assert rule in {r.name for r in canonical.RULES}
    a, b = (anthropic.messages({"messages": [{"role": "user", "content": c}]})[0].digest for c in (one, other))
    assert a == b


def test_rules_for_messages_as_a_whole() -> None:
    plain = {"role": "system", "content": "a"}
    noted = {"role": "system", "content": "a", "output_config": {"effort": "low"}}
    assert anthropic.messages({"messages": [plain]}) == anthropic.messages({"messages": [noted]})  # extra_keys
    chat = openai_chat.messages({"messages": [plain, {**plain, "role": "developer"}]})
    assert chat[0] == chat[1]  # developer_role


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TOOL, {**TOOL, "eager_input_streaming": True, "cache_control": {}, "defer_loading": True, "strict": True}),
        (TOOL, {**TOOL, "input_schema": dict(reversed(TOOL["input_schema"].items()))}),  # type: ignore[attr-defined]
    ],
)
def test_rules_for_tools_and_settings(one: object, other: object) -> None:
    a, b = (
        anthropic.head({"tools": [t], "max_tokens": i, "metadata": {"user_id": str(i)}})
        for i, t in enumerate((one, other))
    )
    assert a.digest == b.digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({**ITEM, "id": "ws_1", "status": "completed"}, ITEM),
        ({**REASONS, "encrypted_content": "x", "id": "rs_1"}, REASONS),
        ({**ITEM, "internal_chat_message_metadata_passthrough": {"turn_id": "t"}}, ITEM),
    ],
)
def test_rules_for_responses_items(one: object, other: object) -> None:
    a, b = openai_responses.messages({"input": [one, other]})
    assert a.digest == b.digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([USER], [{**USER, "text": "a\n"}]),
        ([USE], [{**USE, "id": "t2"}]),
        ([USE], [{**USE, "input": {"a": 2, "b": [1.5]}}]),
        ([USER, USE], [USE, USER]),
        (
            [{"type": "tool_result", "tool_use_id": "t"}],
            [{"type": "tool_result", "tool_use_id": "t", "is_error": True}],
        ),
    ],
)
def test_what_the_model_sees_is_never_folded(one: object, other: object) -> None:
    a, b = (anthropic.messages({"messages": [{"role": "user", "content": c}]})[0].digest for c in (one, other))
    assert a != b


@pytest.mark.parametrize(
    ("sampled", "echoed"),
    [
        ('{"b": 1, "a": "é"}', '{"a":"é","b":1}'),
        ('{"n": 1.0, "m": [2.0, 2.5, -0.0], "s": "3.0]"}', '{"m":[2,2.5,0],"n":1,"s":"3.0]"}'),
        ("", "{}"),
        ("  ", "{}"),
        ('{"path": "/a', '{"path": "/a'),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"s": "\\ud83d"}', '{"s":"\ud83d"}'),
        ('{"big": 1e400}', '{"big":null}'),
    ],
)
def test_arguments_as_a_client_echoes_them(sampled: str, echoed: str) -> None:
    call = Block("tool_call", sampled, "T", "t1")
    assert canonical.echo(call) == Block("tool_call", echoed, "T", "t1")


def test_only_calls_change_in_their_echo() -> None:
    text = Block("text", '{"b": 1, "a": 2}')
    assert canonical.echo(text) is text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_the_canonical_form_is_stable_and_says_the_same(value: object) -> None:
    text = canonical.dumps(value)
    assert canonical.dumps(canonical.loads(text)) == text
    assert json.loads(text) == json.loads(json.dumps(value))


def test_depth_beyond_reason_is_an_error_of_ours() -> None:
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(WireError, match="sane depth"):
        canonical.dumps(deep)
    with pytest.raises(ValueError, match=r"deep|recursion"):
        canonical.loads("[" * 100_000 + "]" * 100_000)
