"""Conversations as text: every reply stands with weight 1 once, in the context it was sampled in."""

import json
from pathlib import Path
from typing import Any

from chats import READ, assistant, head, renderer, reply, thinking, tool_call, tool_result, turn, user
from roundtrip import forked

from trainer.export import export
from treebuilder.tree import Kind, Trajectory


def lines(folder: Path, trajectory: Trajectory) -> list[dict[str, Any]]:
    export([trajectory], renderer("qwen3"), out=folder / "d", format="messages")
    return [json.loads(line) for line in (folder / "d" / "train.jsonl").read_text().splitlines()]


def said(row: dict[str, Any]) -> list[tuple[object, ...]]:
    return [(m["role"], m.get("weight"), m["content"] or m["tool_calls"][0]["function"]) for m in row["messages"]]


CALL = {"name": "read", "arguments": '{"path": "a"}'}


def test_each_reply_is_trained_once_in_its_own_context(tmp_path: Path) -> None:
    rows = lines(tmp_path, forked())
    system = ("system", None, "rules")
    asked, seen = ("user", None, "fix it"), ("tool", None, "broken")
    compact = ("user", None, "so far: it was broken")
    assert [said(row) for row in rows] == [
        [system, asked, ("assistant", 1, CALL), seen, ("assistant", 1, "fixed")],
        [system, ("user", None, "look"), ("assistant", 1, "ok")],
        [system, ("user", None, "look"), ("assistant", 1, "ok")],
        [system, ("user", None, "look"), ("assistant", 1, "ok then")],
        [system, compact, ("assistant", 1, "done"), ("user", None, "more"), ("assistant", 1, "no")],
    ]
    assert [row["id"] for row in rows] == ["s:0", "s:1", "s:1.1", "s:2", "s:3"]


def test_a_reply_that_an_edit_kept_is_context_in_the_new_branch(tmp_path: Path) -> None:
    read, seen = assistant(tool_call('{"path":"a"}')), user(tool_result("broken"))
    tail = Trajectory(
        (
            turn(0, user("fix it"), reply=reply(tool_call(), stop="tool_use"), kind=Kind.ROOT),
            turn(1, user("so far: nothing"), read, seen, reply=reply("ok"), kind=Kind.SUMMARIZED, parent=0),
        )
    )
    first, second = lines(tmp_path, tail)
    assert [m["weight"] for m in first["messages"] if m["role"] == "assistant"] == [1]
    assert [m["weight"] for m in second["messages"] if m["role"] == "assistant"] == [0, 1]


def test_arguments_are_the_text_that_was_sampled(tmp_path: Path) -> None:
    sampled = '{"path":  "a", "at": 1.0}'
    call = Trajectory((turn(0, user("hi"), reply=reply(tool_call(sampled), stop="tool_use"), kind=Kind.ROOT),))
    (row,) = lines(tmp_path, call)
    (made,) = row["messages"][-1]["tool_calls"]
    assert made == {"type": "function", "id": "t1", "function": {"name": "read", "arguments": sampled}}


def test_thinking_tools_and_half_a_surrogate_pair_come_along(tmp_path: Path) -> None:
    from dataclasses import replace

    one = turn(0, user("hi \ud83d"), reply=reply(thinking("so"), "well"), kind=Kind.ROOT)
    (row,) = lines(tmp_path, Trajectory((replace(one, head=head("rules", tools=(READ,))),)))
    assert row["messages"][1:] == [
        {"role": "user", "content": "hi \ud83d"},
        {"role": "assistant", "content": "well", "reasoning_content": "so", "weight": 1},
    ]
    assert row["tools"] == [
        {
            "type": "function",
            "function": {"name": "read", "description": "reads", "parameters": json.loads(READ.schema)},
        }
    ]


def test_the_manifest_says_that_token_identity_is_lost(tmp_path: Path) -> None:
    manifest = export([forked()], renderer("qwen3"), out=tmp_path / "d", format="messages")
    lost = json.loads((tmp_path / "d" / "manifest.json").read_text())["lost"]
    assert lost[0] == "token identity: it is text, which its trainer tokenises anew"
    assert manifest.counts.owned_tokens == manifest.counts.trained_tokens
