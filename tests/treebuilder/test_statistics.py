"""The numbers of a session, worked out by hand on small ones."""

from recording import Recording, asks, result, said
from simulate import CAPTURES, text

from recorder.importing import read_har
from recorder.message import Block, Message
from treebuilder.build import build
from treebuilder.statistics import statistics
from treebuilder.tree import Kind


def test_a_cleared_result_counts_once_and_shifts_what_was_sampled_behind_it() -> None:
    r = Recording()
    u = text("user", "0123456789")  # 10
    long = Message("user", (Block("tool_result", id="t1", parts=(Block("text", "x" * 100),)),))
    r.send(u, reply=asks("t1", "{}"))
    r.send(u, asks("t1", "{}"), long, reply=said("first answer"))
    r.send(u, asks("t1", "{}"), result("t1", "[gone]"), said("first answer"), text("user", "go on"), reply=said("end"))
    s = statistics(r.tree)
    # spans are characters of plain text: result 1 + 100, then "[gone]" in place of 100
    assert s.evicted_chars == {Kind.CLEARED: 100}
    assert s.rendered_chars == 10 + (2 + 101) + (6 + 12 + 5)
    assert s.compression_depth == 100 / 136
    assert (s.replies, s.replies_lost, s.replies_shifted) == (3, 0, 1)


def test_a_session_that_only_grew_lost_nothing() -> None:
    s = statistics(build(read_har(CAPTURES / "opencode" / "tools_anthropic.har")))
    assert (s.calls, s.threads, s.branches, s.evicted_chars, s.compression_frequency) == (10, 1, 1, {}, 0.0)
    assert (s.replies, s.replies_lost, s.replies_shifted) == (9, 0, 0)


def test_after_a_summary_the_final_transcript_holds_none_of_the_replies_before_it() -> None:
    s = statistics(build(read_har(CAPTURES / "opencode" / "compact_auto_anthropic.har")))
    assert s.compression_frequency == 1.0
    assert (s.replies, s.replies_lost) == (7, 5)
