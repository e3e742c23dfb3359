"""An edit says what left and what came, and makes the new prefix of the old one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.message import Block, Message
from treebuilder.diff import Edit, Hunk, Span, apply, diff


def user(*texts: str) -> Message:
    return Message("user", tuple(Block("text", t) for t in texts))


def said(text: str) -> Message:
    return Message("assistant", (Block("text", text),))


def result(id_: str, text: str) -> Message:
    return Message("user", (Block("tool_result", id=id_, parts=(Block("text", text),)),))


def test_growing_at_the_end_is_one_hunk_and_evicts_nothing() -> None:
    old, new = [user("hello")], [user("hello"), said("hi"), user("bye")]
    edit = diff(old, new)
    assert edit == Edit(kept=1, hunks=(Hunk(1, (), 1, (said("hi"), user("bye"))),))
    assert (edit.evicted, edit.inserted, edit.moved) == ((), (Span(1, 0, 0, 2), Span(2, 0, 0, 3)), ())


def test_a_replaced_tool_result_is_named_by_message_block_and_characters() -> None:
    old = [user("go"), result("c1", "alpha beta"), said("done")]
    new = [user("go"), result("c1", "[gone]"), said("done")]
    edit = diff(old, new)
    assert edit.kept == 1
    assert edit.hunks == (Hunk(1, (result("c1", "alpha beta"),), 1, (result("c1", "[gone]"),)),)
    # a result's plain text begins with a newline, before its first part
    assert edit.evicted == (Span(1, 0, 1, 11),)
    assert edit.inserted == (Span(1, 0, 1, 7),)


def test_inside_a_block_only_the_characters_that_differ_count() -> None:
    edit = diff([user("the date is Monday, work on")], [user("the date is Friday, work on")])
    assert edit.evicted == (Span(0, 0, 12, 15),)  # "Mon", for both end in "day"
    assert edit.inserted == (Span(0, 0, 12, 15),)


def test_a_block_that_stands_elsewhere_has_moved_and_is_neither_evicted_nor_inserted() -> None:
    old = [user("reminder: be brief", "first"), said("ok")]
    new = [user("first"), said("ok"), user("reminder: be brief", "second")]
    edit = diff(old, new)
    assert edit.moved == ((Span(0, 0, 0, 18), Span(2, 0, 0, 18)),)
    assert edit.evicted == ()
    assert edit.inserted == (Span(2, 1, 0, 6),)


def test_messages_dropped_from_the_middle_leave_the_tail_kept() -> None:
    old = [user("a"), said("b"), user("c"), said("d"), user("e")]
    edit = diff(old, [user("a"), said("d"), user("e")])
    assert edit.hunks == (Hunk(1, (said("b"), user("c")), 1, ()),)
    assert edit.evicted == (Span(1, 0, 0, 1), Span(2, 0, 0, 1))


def test_equal_messages_on_both_sides_of_a_change_are_matched_as_anchors() -> None:
    old = [user("a"), said("b"), user("c"), said("d"), user("e")]
    new = [user("A"), said("b"), user("C"), said("d"), user("E")]
    assert [(h.old_start, h.old_stop) for h in diff(old, new).hunks] == [(0, 1), (2, 3), (4, 5)]


MESSAGES = st.lists(
    st.builds(
        Message,
        st.sampled_from(["user", "assistant"]),
        st.lists(
            st.one_of(
                st.builds(Block, st.just("text"), st.sampled_from(["a", "b", "ab", "abc", "xyz"])),
                st.builds(
                    Block, st.just("tool_result"), id=st.sampled_from(["1", "2"]), parts=st.just((Block("text", "r"),))
                ),
            ),
            max_size=3,
        ).map(tuple),
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(MESSAGES, MESSAGES)
def test_applying_the_edit_to_the_old_prefix_gives_the_new_one(old: list[Message], new: list[Message]) -> None:
    assert apply(diff(old, new), old) == tuple(new)


@settings(max_examples=200, deadline=None)
@given(MESSAGES, MESSAGES)
def test_what_is_neither_evicted_nor_moved_adds_up(old: list[Message], new: list[Message]) -> None:
    edit = diff(old, new)
    size_old = sum(len(b.plain) for m in old for b in m.blocks)
    size_new = sum(len(b.plain) for m in new for b in m.blocks)
    moved = sum(a.chars for a, _ in edit.moved)
    assert size_old - edit.evicted_chars - moved == size_new - edit.inserted_chars - moved


@settings(max_examples=200, deadline=None)
@given(MESSAGES, MESSAGES)
def test_each_character_of_a_hunk_left_moved_or_stayed_and_what_stayed_is_equal_and_in_order(
    old: list[Message], new: list[Message]
) -> None:
    edit = diff(old, new)
    inside = sum(len(b.plain) for hunk in edit.hunks for m in hunk.removed for b in m.blocks)
    moved = sum(a.chars for a, _ in edit.moved)
    assert inside == edit.evicted_chars + moved + sum(a.chars for a, _ in edit.stayed)
    for a, b in edit.stayed:
        text = old[a.message].blocks[a.block].plain[a.start : a.stop]
        assert text == new[b.message].blocks[b.block].plain[b.start : b.stop] != ""
    places = [(b.message, b.block, b.start) for _, b in edit.stayed]
    assert places == sorted(places)
