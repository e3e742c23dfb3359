import json
from pathlib import Path

import pytest

from proxy.gateway.completion import Fault, Pace, Refusal
from proxy.gateway.script import Rule, ToolUse, Turn, UsageRule, When, counted, load, parse
from recorder.errors import ScriptError
from recorder.message import Usage


def test_a_turn_takes_the_defaults_of_its_script() -> None:
    script = parse(
        json.dumps({"turns": [{"text": "a"}], "chunk": 5, "delay_s": 0.5, "usage": {"input": 7, "cache_read": 2}})
    )
    assert script.turns == (
        Turn(text="a", chunk_chars=5, pace=Pace(0.0, 0.5, None), usage=UsageRule(input=7, cache_read=2)),
    )


def test_a_turn_with_tools_stops_for_them_unless_it_says_otherwise() -> None:
    tools = [{"name": "Read", "input": {"file_path": "a.txt", "limit": 3}}]
    script = parse(json.dumps({"turns": [{"tools": tools}, {"tools": tools, "stop": "max_tokens"}]}))
    call = ToolUse("Read", '{"file_path": "a.txt", "limit": 3}')
    assert script.turns == (Turn(tools=(call,), stop="tool_use"), Turn(tools=(call,), stop="max_tokens"))


def test_arguments_given_as_a_string_are_kept_though_they_are_no_json() -> None:
    script = parse('{"turns": [{"tools": [{"name": "Read", "input": "{\\"file_pa"}]}]}')
    assert script.turns[0].tools == (ToolUse("Read", '{"file_pa'),)


def test_repeat_writes_a_turn_out() -> None:
    script = parse('{"turns": [{"text": "a", "repeat": 2}, {"text": "b"}]}')
    assert [t.text for t in script.turns] == ["a", "a", "b"]


def test_errors_are_refusals_and_faults() -> None:
    script = parse(
        json.dumps(
            {
                "turns": [
                    {"error": {"status": 529, "type": "overloaded_error", "retry_after_s": 1}, "first_delay_s": 0.25},
                    {"stream_error": {"type": "overloaded_error", "message": "Overloaded", "after": 3}},
                ]
            }
        )
    )
    refused, broken = script.turns
    assert refused.error == Refusal(529, "overloaded_error", "overloaded_error", 1, 0.25)
    assert (broken.stream_error, broken.stream_error_after) == (Fault("overloaded_error", "Overloaded"), 3)


def test_rules_keep_their_conditions() -> None:
    script = parse('{"turns": [], "rules": [{"when": {"has_tools": false}, "turns": [{"text": "Title"}]}]}')
    assert script.rules == (Rule(When(has_tools=False), (Turn(text="Title"),)),)


def test_counted_input_is_four_characters_a_token_times_the_factor_less_the_cached_share() -> None:
    rule = UsageRule(factor=2.0, cache_read=100)
    assert counted(rule, prompt_chars=4000, reply_chars=80) == Usage(
        input=1900, output=20, cache_read=100, cache_write=0
    )


def test_fixed_usage_is_reported_as_it_is() -> None:
    rule = UsageRule(input=190000, output=5)
    assert counted(rule, prompt_chars=4, reply_chars=4) == Usage(input=190000, output=5, cache_read=0, cache_write=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "script x.json: expected JSON, got Expecting property name enclosed in double quotes: line 1 column 2"),
        ('{"turns": [{"txt": "a"}]}', 'script x.json: at turns.0.txt: Extra inputs are not permitted, got "a"'),
        ("[]", "script x.json: at top level: Input should be a valid dictionary or instance of _Script, got []"),
        ('{"turns": [{"repeat": 0}]}', "script x.json: at turns.0.repeat: Input should be greater than or equal to 1"),
        ('{"turns": [], "rules": [{"when": {}, "turns": []}]}', "script x.json: at rules.0.turns: List should have at"),
    ],
)
def test_a_script_that_cannot_be_played_is_named_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ScriptError) as e:
        parse(text, where="x.json")
    assert str(e.value).startswith(message)
    assert "\n" not in str(e.value)


def test_a_script_that_is_not_there_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"^script .*none\.json: expected a readable file, got No such file"):
        load(tmp_path / "none.json")
