"""What may not be stored is replaced wherever it stands, the same text by the same mark; all else stays as it was."""

import gzip
import json
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from storecalls import CALL, anthropic, stream

from recorder.call import Call
from recorder.errors import FilterError
from recorder.message import Exchange
from recorder.redact import FAILED, Redactor, Rule, redactor, rules, secret
from recorder.store import Store
from recorder.wire import read

EMAIL = Redactor(rules(["email"]))


def asking(text: str) -> Call:
    return replace(CALL, request_body=anthropic(text))


def words(call: Call) -> tuple[str, str]:
    """What was asked and what was answered."""
    meaning = read(call)
    assert isinstance(meaning, Exchange)
    assert meaning.reply is not None
    return meaning.messages[-1].plain, meaning.reply.message.plain


def test_the_same_text_gets_the_same_mark_and_the_call_says_so() -> None:
    call = EMAIL(asking("Write to ann@example.org, not to bob@example.org; ann@example.org!"))
    asked, _ = words(call)
    first, second, third = (asked[m : m + 25] for m in range(len(asked)) if asked.startswith("[redacted:", m))
    assert first == third != second
    assert b"example.org" not in call.request_body
    assert call.request_header("x-memorywalker-redacted") == "email=3"


def test_what_holds_nothing_stays_byte_for_byte() -> None:
    call = replace(CALL, request_body=b'{ "model" : "m", "messages":[ ] , "x": 1.0 }')
    assert EMAIL(call) == call


def test_a_secret_that_a_stream_cuts_in_pieces_is_found() -> None:
    call = EMAIL(replace(CALL, response_body=stream("Mail ann@", "exam", "ple.org", " today.")))
    assert b"ple.org" not in call.response_body
    assert words(call)[1].startswith("Mail [redacted:email:")
    assert words(call)[1].endswith("] today.")
    assert call.response_body.count(b"event: content_block_delta") == 4


def test_the_mark_in_the_reply_is_the_mark_in_the_next_request() -> None:
    reply = EMAIL(replace(CALL, response_body=stream("ann@exam", "ple.org")))
    asked, _ = words(EMAIL(asking("ann@example.org")))
    assert words(reply)[1] == asked


def test_arguments_of_a_tool_stay_json_though_a_rule_eats_quotes() -> None:
    greedy = Redactor([Rule("pass", re.compile("password.*"))])
    arguments = json.dumps({"command": 'login "password hunter2"', "n": 1})
    body = {"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}]}
    made = greedy(
        replace(CALL, url="https://api.openai.com/v1/chat/completions", request_body=json.dumps(body).encode())
    )
    again = json.loads(json.loads(made.request_body)["messages"][0]["tool_calls"][0]["function"]["arguments"])
    assert again["command"].startswith('login "[redacted:pass:')
    assert again["n"] == 1
    assert b"hunter2" not in made.request_body


def test_json_in_a_tool_result_stays_json_too() -> None:
    greedy = Redactor([Rule("pass", re.compile("password.*"))])
    asked, _ = words(greedy(asking('{"said": "password hunter2", "n": 1}')))
    assert json.loads(asked)["n"] == 1
    assert "hunter2" not in asked


def test_a_second_redaction_leaves_the_word_of_the_first() -> None:
    once = EMAIL(asking("ann@example.org"))
    assert EMAIL(once) == once


def test_escapes_and_keys_hide_nothing() -> None:
    body = b'{"model":"m","messages":[],"a\\u0040b.org":"ann\\u0040example.org"}'
    made = EMAIL(replace(CALL, request_body=body))
    assert made.request_header("x-memorywalker-redacted") == "email=2"
    assert b"example" not in made.request_body


def test_a_compressed_body_is_opened_and_stays_open_if_it_changed() -> None:
    zipped = gzip.compress(anthropic("ann@example.org"))
    headers = (*CALL.request_headers, ("content-encoding", "gzip"))
    made = EMAIL(replace(CALL, request_headers=headers, request_body=zipped))
    assert made.request_header("content-encoding") == ""
    assert words(made)[0].startswith("[redacted:email:")
    clean = replace(CALL, request_headers=headers, request_body=gzip.compress(anthropic("no one")))
    assert EMAIL(clean) == clean


def test_a_stream_that_was_cut_inside_an_event_is_redacted_to_its_end() -> None:
    cut = stream("Hello")[:-150] + b'data: {"type":"content_block_delta","delta":{"text":"ann@example.org'
    assert b"example" not in EMAIL(replace(CALL, response_body=cut)).response_body


def test_a_body_that_is_no_json_is_redacted_too() -> None:
    made = EMAIL(replace(CALL, request_body=b"\xff ann@example.org"))
    assert made.request_body.startswith(b"\xff [redacted:email:")


def test_headers_and_errors_are_redacted() -> None:
    headers = (("x-codex-turn-metadata", '{"author":"ann@example.org"}'),)
    made = EMAIL(replace(CALL, request_headers=headers, error="no such user ann@example.org"))
    assert "example" not in repr((made.request_headers, made.error))


@pytest.mark.parametrize(
    "text",
    [
        "sk-ant-api03-abcdefghijklmnop",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_keys_are_known_by_their_form(text: str) -> None:
    asked, _ = words(Redactor(rules(["key"]))(asking(f"Use {text} here.")))
    assert asked.startswith("Use [redacted:key:")
    assert asked.endswith("] here.")


def test_a_text_that_was_clean_is_known_again_and_one_that_was_not_is_redacted_again() -> None:
    redact = Redactor(rules(["email"]))
    long = "word " * 100
    for _ in range(2):
        assert redact(asking(long)) == asking(long)
        assert "example" not in words(redact(asking(long + "ann@example.org")))[0]


def test_home_and_ip_are_known(tmp_path: Path) -> None:
    redact = Redactor(rules(["home", "ip"]))
    asked, _ = words(redact(asking("/home/ann/x on 10.1.2.3, not 127.0.0.1")))
    assert asked.startswith("/home/[redacted:home:")
    assert "10.1.2.3" not in asked
    assert "127.0.0.1" in asked


def test_rules_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules"
    file.write_text("# ours\n\nproject = Project [A-Z]\\w+\n")
    asked, _ = words(Redactor(rules([str(file), "email"]))(asking("Project Manhattan")))
    assert asked.startswith("[redacted:project:")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no rule", r"redact: expected NAME = REGEX, got 'no rule' at line 1 of .*rules"),
        ("a = (", r"redact: expected a regular expression, got .* at line 1 of .*rules"),
        ("a = x*", r"redact: expected a regular expression that needs text, .* at line 1 of .*rules"),
    ],
)
def test_a_rule_that_cannot_be_one_is_one_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "rules").write_text(line)
    with pytest.raises(FilterError, match=f"^{said}$"):
        rules([str(tmp_path / "rules")])
    with pytest.raises(FilterError, match=r"^redact: expected email, .*, got No such file or directory at emial$"):
        rules(["emial"])


def test_a_rule_that_fails_costs_the_bodies_and_not_the_secret() -> None:
    class Bad:
        def search(self, text: str) -> None:
            raise RecursionError

        sub = search

    made = Redactor([Rule("bad", Bad())])(asking("ann@example.org"))  # type: ignore[arg-type]
    assert (made.request_body, made.response_body, made.error) == (b"", b"", FAILED)


def test_marks_depend_on_a_key_that_is_private(tmp_path: Path) -> None:
    key = secret(tmp_path / "home")
    assert key == secret(tmp_path / "home")
    assert stat.S_IMODE((tmp_path / "home/redact.key").stat().st_mode) == 0o600
    call = asking("ann@example.org")
    assert words(Redactor(rules(["email"]), key=key)(call))[0] != words(EMAIL(call))[0]


def test_the_mark_survives_the_store(tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.db") as store:
        (seq,) = [store.put(EMAIL(asking("ann@example.org")))]
        assert store.call(seq).request_header("x-memorywalker-redacted") == "email=1"
        assert store.verify() == []
    assert b"ann@example" not in (tmp_path / "t.db").read_bytes()


def test_no_words_ask_for_no_redaction(tmp_path: Path) -> None:
    assert redactor([], home=tmp_path) is None
    made = redactor(["email"], home=tmp_path)
    assert made is not None
    assert words(made(asking("ann@example.org")))[0].startswith("[redacted:email:")
