"""Branches are what training sees as rows: a view that only grew stays on one, every edit opens another."""

import orjson
from recording import Recording, asks, result, said
from simulate import CAPTURES, text

from recorder.importing import read_har
from recorder.message import Block, Message
from treebuilder.build import build
from treebuilder.node import Trie
from treebuilder.rows import rows

U = text("user", "count the files")


def test_clearing_a_result_opens_a_branch_although_the_reply_stands_where_it_stood() -> None:
    r = Recording()
    grown = [U, asks("t1", "{}"), result("t1", "alpha " * 20)]
    r.send(U, reply=asks("t1", "{}"))
    r.send(*grown, reply=said("twenty"))
    r.send(U, asks("t1", "{}"), result("t1", "[gone]"), said("twenty"), text("user", "sure?"), reply=said("yes"))
    assert [b.turns for b in r.tree.branches] == [(0, 1), (2,)]
    assert r.tree.branches[0].leaf == 1


def test_a_retry_is_a_branch_of_its_own_and_the_thread_goes_on_from_it() -> None:
    r = Recording()
    r.send(U, reply=said("there"), whole=False)
    r.send(U, reply=said("there are three"))
    r.send(U, said("there are three"), text("user", "sure?"), reply=said("yes"))
    assert [b.turns for b in r.tree.branches] == [(0,), (1, 2)]


def test_a_reply_that_the_next_view_lacks_ends_its_branch() -> None:
    r = Recording()
    r.send(U, reply=said("there are three"))
    r.send(U, text("user", "never mind"), reply=said("fine"))
    assert [b.turns for b in r.tree.branches] == [(0,), (1,)]


def test_equal_prefixes_share_their_nodes() -> None:
    r = Recording()
    r.send(U, reply=said("three"))
    r.send(U, said("three"), text("user", "sure?"), reply=said("yes"))
    first, second = r.tree.turns
    assert first.node is not None
    assert second.node is not None
    assert second.node.parent is not None
    assert second.node.parent.parent is first.node
    assert second.messages == (U, said("three"), text("user", "sure?"))


def test_a_prefix_of_a_thousand_messages_prints_as_its_last_one() -> None:
    node = Trie().grow(None, [Message("user", (Block("text", text=f"word {i}"),)) for i in range(1000)])
    assert node is not None
    assert "word 999" in repr(node)
    assert "word 998" not in repr(node)


def test_a_row_has_the_promised_names_and_is_json() -> None:
    trajectory = build(read_har(CAPTURES / "opencode" / "prune_anthropic.har"))
    row = orjson.loads(orjson.dumps(list(rows(trajectory))[7]))
    assert list(row) == [
        "seq", "source", "session", "thread", "lane", "kind", "prefix",
        "evicted", "inserted", "confidence", "evidence", "opaque", "details", "quotes", "survivors",
    ]  # fmt: skip
    assert (row["source"], row["lane"], row["kind"], row["prefix"]) == ("prune_anthropic.har#008", "main", "cleared", 2)
    assert row["thread"] == "ses_dd19~m1S19t/main"
    assert row["details"] == ["tool result replaced by a notice"]
    assert row["evicted"]["blocks"] == 6
    assert row["inserted"]["blocks"] == 8  # six placeholders, the echo, the new prompt
