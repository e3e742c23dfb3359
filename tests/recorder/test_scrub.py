"""A scrubbed recording shows the same tree and none of the words."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from storecalls import CALL, anthropic, stream

from recorder.call import Call, Outcome
from recorder.errors import StoreError
from recorder.har_writing import write_har
from recorder.importing import read_har
from recorder.message import Exchange
from recorder.scrub import Scrubber, scrub_calls, write
from recorder.store import Store
from recorder.wire import read

CAPTURES = sorted((Path(__file__).parents[1] / "captures").glob("*/*.har"))
NAMES = [f"{p.parent.name}/{p.stem}" for p in CAPTURES]
SALT = b"salt"


def scrub(call: Call) -> Call:
    return Scrubber(salt=SALT).call(call)


def words(call: Call) -> tuple[str, str]:
    """What was asked and what was answered."""
    meaning = read(call)
    assert isinstance(meaning, Exchange)
    return meaning.messages[-1].plain, meaning.reply.message.plain if meaning.reply else ""


def asking(text: str) -> Call:
    return replace(CALL, request_body=anthropic(text))


def test_equal_lines_stay_equal_and_keep_their_shape() -> None:
    asked, _ = words(scrub(asking("  Read the FILE, 12 times.\nelse\n\tRead the FILE, 12 times.\n\nelse!")))
    first, second, third, empty, last = asked.split("\n")
    assert re.fullmatch(r"  [A-Z][a-z]{3} [a-z]{3} [A-Z]{4}, \d\d [a-z]{5}\.", first)
    assert (first.strip(), empty) == (third.strip(), "")
    assert third[0] == "\t"
    assert "Read" not in asked
    assert "12" not in asked
    assert last != second + "!"


def test_the_words_depend_on_a_salt_that_is_new_each_time() -> None:
    one, two = (words(next(scrub_calls([asking("a whole sentence to hide")])))[0] for _ in range(2))
    assert one != two


def test_a_reply_cut_in_pieces_becomes_what_its_echo_becomes() -> None:
    reply = scrub(replace(CALL, response_body=stream("The fi", "rst line\nand the ", "second", " one.")))
    echo = scrub(asking("The first line\nand the second one."))
    assert words(reply)[1] == words(echo)[0]
    assert reply.response_body.count(b"event: content_block_delta") == 4


def test_keys_ids_names_numbers_and_markers_stay() -> None:
    body = {
        "model": "claude-opus-5-5",
        "max_tokens": 4096,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; secret"}],
        "tools": [
            {
                "name": "Read",
                "description": "Reads a secret.",
                "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
            }
        ],
        "messages": [
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "tool_use",
                        "id": "toolu_1",
                        "name": "Read",
                        "input": {"path": "/secret/x", "type": "secret", "limit": 7},
                    }
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": "<system-reminder>\nsecret\n</system-reminder>",
                    }
                ],
            },
            {"role": "user", "content": "Keep This Phrase, secret"},
        ],
        "metadata": {"user_id": '{"device_id":"secret0","account_uuid":"secret1","session_id":"5f0c-1"}'},
    }
    made = json.loads(
        Scrubber(keep=["Keep This Phrase"], salt=SALT)
        .call(replace(CALL, request_body=json.dumps(body).encode()))
        .request_body
    )
    assert "secret" not in json.dumps(made)
    assert (made["model"], made["max_tokens"]) == ("claude-opus-5-5", 4096)
    assert made["system"][0]["text"].startswith("x-anthropic-billing-header: ")
    assert made["tools"][0]["name"] == "Read"
    assert made["tools"][0]["input_schema"] == body["tools"][0]["input_schema"]  # type: ignore[index]
    call, result, said = made["messages"]
    assert {k: call["content"][0][k] for k in ("type", "id", "name")} == {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "Read",
    }
    assert set(call["content"][0]["input"]) == {"path", "type", "limit"}
    assert call["content"][0]["input"]["limit"] == 7
    assert result["content"][0]["tool_use_id"] == "toolu_1"
    assert re.fullmatch(r"<system-reminder>\n[a-z]{6}\n</system-reminder>", result["content"][0]["content"])
    assert said["content"].startswith("Keep This Phrase, ")
    assert json.loads(made["metadata"]["user_id"])["session_id"] == "5f0c-1"


def test_headers_that_the_tree_does_not_need_are_left_out() -> None:
    headers = (("user-agent", "codex"), ("x-codex-turn-metadata", "/home/ann"), ("session-id", "s1"))
    assert scrub(replace(CALL, request_headers=headers)).request_headers == (
        ("user-agent", "codex"),
        ("session-id", "s1"),
    )


def test_an_error_in_a_stream_is_told_in_pseudo_words() -> None:
    body = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"No room for Ann"}}\n\n'
    call = scrub(
        replace(CALL, response_body=body, outcome=Outcome.STREAM_ERROR, error="overloaded_error: No room for Ann")
    )
    assert call.outcome is Outcome.STREAM_ERROR
    assert re.fullmatch(r"overloaded_error: [A-Z][a-z] [a-z]{4} [a-z]{3} [A-Z][a-z]{2}", call.error)
    assert "Ann" not in call.error


def prose(call: Call) -> str:
    meaning = read(call)
    assert isinstance(meaning, Exchange)
    texts = [b.plain for b in meaning.head.system] + [t.description for t in meaning.head.tools]
    texts += [m.plain for m in meaning.messages] + ([meaning.reply.message.plain] if meaning.reply else [])
    return "\n".join(texts)


def runs(text: str) -> set[tuple[str, ...]]:
    """Five words in a row; tags and keys are no words."""
    found = re.findall(r"[A-Za-z]{2,}", re.sub(r'</?[A-Za-z][\w:-]*>|\\?"[\w-]+\\?":', " ", text))
    return set(zip(*(found[i:] for i in range(5)), strict=False))


@pytest.mark.parametrize("path", CAPTURES, ids=NAMES)
def test_no_five_words_in_a_row_survive(path: Path) -> None:
    before = list(read_har(path))
    known = set().union(*(runs(prose(c)) for c in before))
    assert len(known) > 30
    for call in scrub_calls(before, salt=SALT):
        raw = (call.request_body + b"\n" + call.response_body).decode("utf-8", "replace")
        assert (runs(prose(call)) | runs(raw)) & known == set()


def test_a_har_of_calls_is_read_back_as_the_same_calls(tmp_path: Path) -> None:
    for path in CAPTURES:
        before = list(read_har(path))
        out = tmp_path / path.name
        assert write_har(out, before) == len(before)
        after = list(read_har(out))
        assert [replace(c, run="", first_byte_s=None, duration_s=None) for c in after if c.status != 101] == [
            replace(c, run="", first_byte_s=None, duration_s=None) for c in before if c.status != 101
        ]
        assert [(c.request_body, c.response_body, c.outcome) for c in after] == [
            (c.request_body, c.response_body, c.outcome) for c in before
        ]
        assert out.stat().st_mode & 0o777 == 0o600


def test_bytes_whose_encoding_holds_are_kept_as_bytes(tmp_path: Path) -> None:
    call = replace(CALL, response_headers=(("content-encoding", "br"),), response_body=b"ascii by chance", source="x#1")
    write_har(tmp_path / "x.har", [call])
    (again,) = read_har(tmp_path / "x.har")
    assert (again.response_body, again.response_headers) == (call.response_body, call.response_headers)


@pytest.mark.parametrize("name", ["out.db", "out.har"])
def test_a_scrubbed_recording_is_a_recording(tmp_path: Path, name: str) -> None:
    calls = list(read_har(CAPTURES[0]))
    assert write(calls, tmp_path / name, salt=SALT) == len(calls)
    wanted = [Scrubber(salt=SALT).call(c).request_body for c in calls]
    if name.endswith(".har"):
        assert [c.request_body for c in read_har(tmp_path / name)] == wanted
    else:
        with Store.open(tmp_path / name, create=False) as store:
            assert [c.request_body for c in store.calls()] == wanted
            assert store.verify() == []
    with pytest.raises(StoreError, match=r"^scrub: expected a name for a new file, got one that exists, at "):
        write(calls, tmp_path / name)


def test_a_har_that_fails_on_the_way_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> object:
        yield CALL
        raise StoreError("call 2: damaged")

    with pytest.raises(StoreError):
        write_har(tmp_path / "x.har", broken())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_lines_keep_their_order_of_difference() -> None:
    texts = ["alpha beta", "alpha beta gamma", "alpha beta"]
    made = [words(scrub(asking(t)))[0] for t in texts]
    assert [a == b for a, b in pairwise(made)] == [False, False]
    assert made[0] == made[2]


def test_json_too_deep_to_walk_costs_the_bodies_and_not_the_rest() -> None:
    """How deep Python walks depends on its version: what it cannot walk is left out and said."""
    deep = b'{"messages":' + b"[" * 900 + b'"near the limit"' + b"]" * 900 + b"}"
    call = scrub(replace(CALL, request_body=deep))
    assert b"near the limit" not in call.request_body
    assert (call.request_body == b"") == (call.error == "recorder: too deep to be scrubbed")
