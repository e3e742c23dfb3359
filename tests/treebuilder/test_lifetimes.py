"""Every piece of a thread's text once, in the order of time, with the span of time it was alive."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Recording, asks, result, said
from simulate import CAPTURES, EDITS, simulate, text, tree_of

from recorder.importing import read_har
from recorder.message import Hints, Message
from treebuilder.build import build
from treebuilder.lifetimes import Stream, lifetimes
from treebuilder.lineage import as_messages
from treebuilder.tree import Trajectory, Turn

ONE = Hints(session="one")


def only(trajectory: Trajectory) -> Stream:
    (thread,) = trajectory.threads
    return lifetimes(trajectory, thread)


def letters(words: str, *, sampled: str) -> list[Message]:
    """One message a letter; a letter is a token of METHOD.md's running example: a, b, c = 10, 11, 12, z = ans."""
    return [text("assistant" if letter in sampled else "user", letter) for letter in words]


def running_example() -> Trajectory:
    r = Recording()
    for prefix, reply in (("123456", "7"), ("12346789", "a"), ("1234679ab", "c"), ("1234679ac", "z")):
        r.send(*letters(prefix, sampled="7acz"), reply=said(reply), hints=ONE)
    return r.tree


def test_the_running_example_as_a_stream_with_lifetimes() -> None:
    stream = only(running_example())
    assert stream.text == "123456789abcz"
    assert {p.text: (p.tau, p.omega) for p in stream.pieces if p.omega is not None} == {
        "5": (4, 7),
        "8": (7, 10),
        "b": (10, 12),
    }
    assert stream.born == (0, 7, 10, 12)
    assert stream.views == (
        ((0, 7),),
        ((0, 4), (5, 10)),
        ((0, 4), (5, 7), (8, 12)),
        ((0, 4), (5, 7), (8, 10), (11, 13)),
    )
    assert "".join(stream.text[a:b] for a, b in stream.final) == "1234679acz"
    assert [p.text for p in stream.pieces if p.sampled] == ["7", "a", "c", "z"]


def test_a_result_cleared_in_place_leaves_and_its_placeholder_comes_at_the_end_of_time() -> None:
    r = Recording()
    r.send(text("user", "go"), reply=asks("t1", "{}"))
    r.send(text("user", "go"), asks("t1", "{}"), result("t1", "alpha"), reply=said("done"))
    r.send(text("user", "go"), asks("t1", "{}"), result("t1", "[gone]"), said("done"), text("user", "on"))
    stream = only(r.tree)
    # a result's plain text begins with a newline, which stays
    assert stream.text == "go{}\nalphadone[gone]on"
    (left,) = (p for p in stream.pieces if p.omega is not None)
    assert (left.text, left.tau, left.omega, left.left) == ("alpha", 5, 14, 2)
    assert (left.turn, left.message, left.start, left.stop) == (1, 2, 1, 6)
    assert stream.final == ((0, 5), (14, 20), (10, 14), (20, 22))


def test_a_block_that_moved_is_born_again_where_it_stands_now() -> None:
    r = Recording()
    r.send(text("user", "reminder", "hello"), reply=said("hi"), hints=ONE)
    r.send(text("user", "hello"), said("hi"), text("user", "reminder", "bye"), hints=ONE)
    stream = only(r.tree)
    assert [(p.text, p.omega, p.moved) for p in stream.pieces] == [
        ("reminder", 15, True),
        ("hello", None, False),
        ("hi", None, False),
        ("reminder", None, False),
        ("bye", None, False),
    ]


def test_what_is_put_back_after_it_left_is_born_again() -> None:
    r = Recording()
    start, second = text("user", "start"), text("user", "second")
    r.send(start, reply=said("ok"), hints=ONE)
    r.send(start, said("ok"), second, reply=said("fine"), hints=ONE)
    r.send(start, said("ok"), text("user", "other"), reply=said("well"), hints=ONE)
    r.send(start, said("ok"), second, said("fine"), text("user", "third"), hints=ONE)
    assert only(r.tree).text == "startoksecondfineotherwellsecondfinethird"


def test_a_reply_that_the_harness_trimmed_stays_but_for_what_it_lost() -> None:
    r = Recording()
    r.send(text("user", "go"), reply=said("all is well, and so on"))
    r.send(text("user", "go"), said("all is well"), text("user", "next"))
    stream = only(r.tree)
    assert [(p.text, p.omega) for p in stream.pieces] == [
        ("go", None), ("all is well", None), (", and so on", 24), ("next", None),
    ]  # fmt: skip


def view(turn: Turn) -> str:
    reply = as_messages(turn.reply, turn.wire) if turn.reply else ()
    return "".join(block.plain for message in (*turn.messages, *reply) for block in message.blocks)


def check(trajectory: Trajectory) -> None:
    for thread in trajectory.threads:
        stream = lifetimes(trajectory, thread)
        whole = stream.text
        assert len(whole) == stream.length
        ends = (*stream.born[1:], stream.length)
        for turn, ranges, end in zip(stream.turns, stream.views, ends, strict=True):
            assert "".join(whole[a:b] for a, b in ranges) == view(trajectory.turns[turn])
            seen = sorted(i for a, b in ranges for i in range(a, b))
            alive = [
                i
                for p in stream.pieces
                if p.tau < end and (p.omega is None or p.omega >= end)
                for i in range(p.tau, p.tau + p.chars)
            ]
            # pieces that left before a turn without new text of its own have omega == its end, too
            assert set(seen) <= set(alive)
            if end > stream.born[stream.turns.index(turn)]:
                assert seen == alive


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*/*.har")), ids=lambda path: path.stem)
def test_every_view_of_a_capture_is_read_off_the_stream_and_holds_what_is_alive(path: object) -> None:
    check(build(read_har(path)))  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(EDITS), max_size=20))
def test_every_view_of_a_simulated_session_is_read_off_the_stream(seed: int, edits: list[str]) -> None:
    check(tree_of(simulate(seed, edits, sessions=2)))
