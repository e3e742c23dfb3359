"""The page: one file that asks for nothing, holds each content once, and lets no content become markup."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from recording import Recording, result, said
from simulate import CAPTURES, call, text

from recorder import canonical
from recorder.call import Call
from recorder.errors import PageError
from recorder.importing import read_har
from recorder.message import Block, Head, Message, Tool
from treebuilder.build import Builder, build
from treebuilder.page import html, page, write
from treebuilder.page_data import Tables, dumps
from treebuilder.page_images import images
from treebuilder.page_live import LivePage


def pieces_in(document: str) -> list[dict[str, Any]]:
    """What the page's script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert found
    told: list[dict[str, Any]] = json.loads(found[1])
    return told


def walk(tables: dict[str, Any], node: int) -> list[list[Any]]:
    found = []
    while node >= 0:
        node, message = tables["nodes"][node]
        found.append(tables["messages"][message])
    return found[::-1]


def two_calls() -> Recording:
    made = Recording()
    made.send(text("user", "hello"), reply=said("hi"))
    made.send(text("user", "hello"), said("hi"), text("user", "bye"), reply=said("hi"))
    return made


def test_a_prefix_is_told_as_what_each_call_adds() -> None:
    (told,) = pieces_in(page(two_calls().tree))
    assert told["nodes"] == [[-1, 0], [0, 1], [1, 2]]
    assert told["messages"] == [["user", [1]], ["assistant", [2]], ["user", [3]]]  # block 0 is the system text
    assert [b["text"] for b in told["blocks"]][1:] == ["hello", "hi", "bye"]
    assert [(t["node"], t["reply"]["message"]) for t in told["turns"]] == [(0, 1), (2, 1)]


def test_every_walk_is_the_prefix_that_was_sent() -> None:
    tree = build(read_har(CAPTURES / "claude-code" / "autocompact.har"))
    (told,) = pieces_in(page(tree))
    for turn, row in zip(tree, told["turns"], strict=True):
        sent = [[m.role, [b.text for b in m.blocks]] for m in turn.messages]
        walked = [[role, [told["blocks"][b]["text"] for b in blocks]] for role, blocks in walk(told, row["node"])]
        assert walked == sent


def test_the_page_grows_with_what_is_new_and_not_with_what_is_sent_again() -> None:
    made = Recording()
    history = [text("user", "x" * 5000)]
    sizes = []
    for i in range(40):
        reply = said(f"answer {i}")
        made.send(*history, reply=reply)
        history += [reply, text("user", f"question {i}")]
        sizes.append(len(page(made.tree)))
    steps = [b - a for a, b in pairwise(sizes)]
    assert max(steps) < 1200  # far less than the 5,000 characters that each call carries
    assert max(steps) - min(steps) < 100


def test_tools_shared_by_two_heads_are_told_once() -> None:
    made = Recording()
    tool = Tool("read", "reads", "{}")
    made.send(text("user", "a"), reply=said("b"), head=Head("m", (), (tool,)))
    made.send(text("user", "a"), said("b"), text("user", "c"), head=Head("m", (), (tool, Tool("run", "runs", "{}"))))
    (told,) = pieces_in(page(made.tree))
    assert told["tools"] == [["read", "reads", "{}"], ["run", "runs", "{}"]]
    assert [head["tools"] for head in told["heads"]] == [[0], [0, 1]]


def test_an_edit_says_what_left_and_what_came_and_on_what_evidence() -> None:
    tree = build(read_har(CAPTURES / "claude-code" / "autocompact.har"))
    (told,) = pieces_in(page(tree))
    (row,) = [t for t in told["turns"] if t["kind"] == "summarized"]
    assert told["turns"][row["quotes"]]["kind"] == "summary_request"
    assert row["confidence"] > 0.9
    assert any(e.startswith("header:") for e in row["evidence"])
    assert sum(stop - start for *_, start, stop in row["edit"]["evicted"]) == row["edit"]["evicted_chars"]
    assert row["edit"]["evicted_chars"] == tree.turns[row["index"]].edit.evicted_chars


def test_sessions_come_with_their_statistics() -> None:
    (told,) = pieces_in(page(two_calls().tree))
    (session,) = told["sessions"]
    assert (session["statistics"]["calls"], session["statistics"]["replies_lost"]) == (2, 0)


HOSTILE = "</script><script>document.title='taken'</script><!-- \u2028 \u2029 \ud83d <img src=x onerror=alert(1)>"


def test_no_content_can_end_the_script_element_or_break_a_line() -> None:
    made = Recording()
    made.send(text("user", HOSTILE), result("</style>", HOSTILE), reply=said(HOSTILE))
    document = page(made.tree)
    (told,) = pieces_in(document)
    assert [b["text"] for b in told["blocks"]][1] == HOSTILE
    assert document.count("</script>") == 2  # the data's and the script's own
    assert "\u2028" not in document
    assert "taken" in document
    document.encode()  # half a surrogate pair has become an escape


def test_a_line_of_data_is_one_line() -> None:
    assert dumps({"a": "1\n2\r3</b>"}) == '{"a":"1\\n2\\r3\\u003c/b>"}'


def test_the_page_may_run_its_own_script_and_style_and_ask_for_nothing() -> None:
    document = page(two_calls().tree)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', document)
    assert policy
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].replace("&#39;", "'").split(";"))

    def source(tag: str) -> str:
        inside = document.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"

    assert rules == {
        "default-src": "'none'",
        "script-src": source("script"),
        "style-src": source("style"),
        "img-src": "data:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
    }
    inside = document.split("<body>")[0] + document.split("<script>")[1]
    assert set(re.findall(r"https?://[^'\"\s)]+", inside)) == {"http://www.w3.org/2000/svg"}
    assert "connect-src 'self'" in html([], live=True).replace("&#39;", "'")


def test_no_script_of_the_page_makes_markup_of_a_string() -> None:
    script = page(two_calls().tree).split("<script>")[1]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


def test_pieces_put_together_are_what_one_piece_would_tell() -> None:
    """Whatever a later call shows about an earlier one is told again."""
    calls = list(read_har(CAPTURES / "claude-code" / "autocompact.har"))
    tables, builder, turns = Tables(), Builder(), dict[int, Any]()
    grown: dict[str, list[Any]] = {}
    for one in calls:
        builder.add(one)
        piece = tables.piece(builder.trajectory())
        assert piece is not None
        for name, some in json.loads(piece).items():
            grown.setdefault(name, []).extend(some)
    (whole,) = pieces_in(page(build(calls)))
    turns = {turn["index"]: turn for turn in grown["turns"]}

    def as_text(told: dict[str, Any], turn: dict[str, Any]) -> object:
        context = [[role, [told["blocks"][b] for b in blocks]] for role, blocks in walk(told, turn["node"])]
        return context, {k: v for k, v in turn.items() if k not in ("node", "head", "reply")}

    assert [as_text(grown, turns[i]) for i in range(10)] == [as_text(whole, t) for t in whole["turns"]]
    assert grown["sessions"][-1] == whole["sessions"][0]


def test_statistics_of_a_long_session_are_not_made_anew_for_every_call() -> None:
    """They look at all of it: at 40 calls they wait for two more."""
    made, tables = Recording(), Tables()
    history = [text("user", "start")]
    told = []
    for i in range(44):
        made.send(*history, reply=said(f"answer {i}"))
        history += [said(f"answer {i}"), text("user", f"question {i}")]
        piece = json.loads(tables.piece(made.tree) or "{}")
        told += [len(piece["turns"]) and session["statistics"]["calls"] for session in piece["sessions"]]
    assert told == [*range(1, 22), 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 44]


def test_a_piece_without_news_is_none() -> None:
    made = two_calls()
    tables = Tables()
    assert tables.piece(made.tree) is not None
    assert tables.piece(made.tree) is None


def test_a_live_page_keeps_its_numbers_when_calls_are_told_again() -> None:
    calls = [replace(c, seq=i + 1) for i, c in enumerate(read_har(CAPTURES / "opencode" / "tools_chat.har"))]
    live = LivePage()
    for one in calls[:3]:
        live.add(one)
    live.publish()
    live.restart()
    for one in calls:
        live.add(one)
    live.publish()
    first, second = map(json.loads, live.pieces)
    assert [t["index"] for t in first["turns"]] == [0, 1, 2]
    assert 3 in [t["index"] for t in second["turns"]]
    assert not [block for block in second["blocks"] if block in first["blocks"]]
    assert len(pieces_in(live.html())) == 2


def test_a_live_page_of_one_session_shows_no_other() -> None:
    live = LivePage(sessions=("8f42102a-33ff-4414-b9b6-92a70b4f493f",))
    for name in ("claude-code/autocompact", "opencode/tools_chat"):
        for one in read_har(CAPTURES / f"{name}.har"):
            live.add(one)
    live.publish()
    (told,) = map(json.loads, live.pieces)
    assert {t["session"] for t in told["turns"]} == {"8f42102a-33ff-4414-b9b6-92a70b4f493f"}
    assert len(told["turns"]) == 10


PIXEL = "iVBORw0KGgo="


def with_body(body: object) -> Call:
    return replace(call(0), request_body=orjson.dumps(body))


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"inlineData": {"mimeType": "image/png", "data": PIXEL}},
    ],
    ids=["anthropic", "openai", "gemini"],
)
def test_images_are_found_by_the_hash_that_stands_for_them(block: object) -> None:
    found = images(with_body({"messages": [{"content": [block]}]}))
    assert found == {canonical.data_hash(PIXEL): f"data:image/png;base64,{PIXEL}"}


@pytest.mark.parametrize("kind", ["image/svg+xml", "text/html"])
def test_only_pixels_are_shown(kind: str) -> None:
    source = {"type": "base64", "media_type": kind, "data": PIXEL}
    assert images(with_body({"content": [{"source": source}, {"x": "image/png"}]})) == {}


def test_what_is_no_base64_is_not_shown() -> None:
    assert images(with_body({"url": 'data:image/png;base64,"><b>'})) == {}
    assert images(replace(call(0), request_body=b"image/png {")) == {}


def test_an_image_stands_in_the_page_where_its_hash_stood() -> None:
    made = Recording()
    block = Block("image", canonical.data_hash(PIXEL), "image/png")
    made.send(Message("user", (block,)), reply=said("a pixel"))
    (told,) = pieces_in(page(made.tree, images={block.text: f"data:image/png;base64,{PIXEL}"}))
    assert told["blocks"][1]["data"] == f"data:image/png;base64,{PIXEL}"


def test_a_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    write(two_calls().tree, tmp_path / "tree.html")
    assert (tmp_path / "tree.html").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    where = tmp_path / "no" / "tree.html"
    with pytest.raises(PageError, match=f"expected a file that can be written, got No such file.*, at {where}"):
        write(two_calls().tree, where)
