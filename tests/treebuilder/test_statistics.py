"""The numbers of a session, worked out by hand on small ones."""

from dataclasses import replace

from recording import Recording, asks, result, said
from simulate import CAPTURES, HEAD, call, text

from recorder.importing import read_har
from recorder.message import Block, Exchange, Hints, Message, Reply, Usage
from treebuilder.arrival import prepare
from treebuilder.build import Builder, build
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


ONE = Hints(session="one")


def words(letters: str) -> Message:
    """A reply of one block a token, as METHOD.md's running example counts them: a, b, c = 10, 11, 12, z = ans."""
    return Message("assistant", tuple(Block("text", letter) for letter in letters))


def test_the_running_example_loses_three_of_thirteen_and_shifts_five() -> None:
    r = Recording()
    r.send(reply=words("1234567"), hints=ONE)
    r.send(words("123467"), reply=words("89a"), hints=ONE)
    r.send(words("123467"), words("9a"), reply=words("bc"), hints=ONE)
    r.send(words("123467"), words("9a"), words("c"), reply=words("z"), hints=ONE)
    s = statistics(r.tree)
    # lost 5 8 b; behind another prefix 6 7 9 a c; right 1 2 3 4 z
    assert (s.sampled_chars, s.lost_chars, s.shifted_chars) == (13, 3, 5)
    assert (s.lost_share, s.shifted_share) == (3 / 13, 5 / 13)
    assert (s.replies, s.replies_lost, s.replies_shifted) == (4, 0, 3)


def test_what_was_sampled_and_never_stood_in_a_prompt_is_no_evicted_context() -> None:
    r = Recording()
    ask = text("user", "0123456789")
    r.send(ask, reply=said("cut off"), whole=False)
    r.send(ask, reply=said("whole"))
    s = statistics(r.tree)
    assert (s.rendered_chars, s.evicted_chars, s.compression_depth) == (10, {}, 0.0)
    assert (s.replies, s.replies_lost, s.sampled_chars) == (1, 0, len("whole"))


def test_what_only_moved_is_not_evicted_but_shifts_what_stands_behind() -> None:
    r = Recording()
    r.send(text("user", "reminder", "hello"), reply=said("hi"), hints=ONE)
    r.send(text("user", "hello"), said("hi"), text("user", "reminder", "bye"), reply=said("so long"), hints=ONE)
    s = statistics(r.tree)
    assert (s.rendered_chars, s.evicted_chars) == (8 + 5 + 2 + 3, {})
    assert (s.sampled_chars, s.lost_chars, s.shifted_chars) == (9, 0, 2)


def test_another_head_shifts_every_reply_before_it() -> None:
    r = Recording()
    r.send(text("user", "hello"), reply=said("hi"), hints=ONE)
    other = replace(HEAD, tools=HEAD.tools[:1])
    r.send(text("user", "hello"), said("hi"), text("user", "bye"), reply=said("so long"), head=other, hints=ONE)
    assert statistics(r.tree).shifted_chars == 2


def test_a_summary_request_is_a_leg_whose_words_are_evicted_by_the_summary() -> None:
    r = Recording(structural=True)
    talk = [text("user", "count the files"), said("three files here"), text("user", "and in the folder below?")]
    r.send(talk[0], reply=talk[1])
    r.send(*talk, reply=said("five more of them"))
    asked = text("user", "and in the folder below?", "Write down what happened so far.")
    r.send(*talk[:2], asked, reply=said("<note>\nThree files, then five more were counted.\n</note>"))
    r.send(text("user", "Earlier:\nThree files, then five more were counted.\n\nGo on."), reply=said("going on"))
    s = statistics(r.tree)
    prompts = len("count the files") + len("three files here") + len("and in the folder below?")
    assert s.evicted_chars == {Kind.SUMMARIZED: prompts + len("Write down what happened so far.")}
    assert s.rendered_chars == sum(s.evicted_chars.values()) + len(
        "Earlier:\nThree files, then five more were counted.\n\nGo on."
    )
    assert (s.replies, s.replies_lost) == (4, 3)


def test_tokens_are_told_by_the_servers_own_count_of_the_prompts() -> None:
    builder = Builder()
    ask, answer = text("user", "x" * 60), said("ok")
    head = replace(HEAD, system=(Block("text", "y" * 40),), tools=())
    for i, (prefix, usage) in enumerate(
        (((ask,), Usage(20, 1, 5)), ((ask, answer, text("user", "z" * 48)), Usage(50)))
    ):
        reply = Reply(answer, "end_turn", True, usage=usage)
        builder.place(prepare(call(i), Exchange("anthropic", "generate", head, prefix, reply, ONE)))
    trajectory = builder.trajectory()
    # 40 + 60 characters in 25 tokens, 40 + 60 + 2 + 48 in 50
    assert statistics(trajectory).chars_per_token == 250 / 75
    assert statistics(trajectory).evicted_tokens == {}
    cleared = replace(statistics(trajectory), evicted_chars={Kind.CLEARED: 100})
    assert cleared.evicted_tokens == {Kind.CLEARED: 30}


def test_tokens_are_not_known_where_the_server_counted_none() -> None:
    r = Recording()
    r.send(text("user", "hello"), reply=said("hi"))
    assert statistics(r.tree).evicted_tokens is None
