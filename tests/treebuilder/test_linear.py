"""What a call costs follows what is new in it, not what stands before it: told by counting steps, not by the clock."""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from simulate import HEAD, call

from recorder.message import Block, Exchange, Hints, Message, Reply
from treebuilder.arrival import Prepared, prepare
from treebuilder.build import Builder
from treebuilder.tree import Kind

NEW_MESSAGES = 2


def result(i: int, text: str) -> Message:
    return Message("user", (Block("tool_result", id=f"c{i}", parts=(Block("text", text),)),))


def session(calls: int, *, cleared_at: int = -1, session: str = "one") -> Iterator[Prepared]:
    """Each call adds a reply's echo and a tool result; before the call `cleared_at` the result 10 calls back went."""
    history = [Message("user", (Block("text", "go through the list"),))]
    for i in range(calls):
        if i == cleared_at:
            history[NEW_MESSAGES * (i - 10)] = result(i - 11, "[gone]")
        reply = Message("assistant", (Block("text", f"file {i}"), Block("tool_call", f'{{"n": {i}}}', "read", f"c{i}")))
        sampled = Reply(reply, "tool_use", True, id=f"r{i}")
        yield prepare(call(i), Exchange("anthropic", "generate", HEAD, tuple(history), sampled, Hints(session=session)))
        echo = Message("assistant", (reply.blocks[0], Block("tool_call", f'{{"n":{i}}}', "read", f"c{i}")))
        history += [echo, result(i, f"line {i} " * 9)]


def steps(work: Callable[[], object]) -> int:
    """Functions called, Python's and C's."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", ["one", ""], ids=["session id", "no id"])
def test_an_append_takes_as_many_steps_at_call_2000_as_at_call_100(name: str) -> None:
    builder = Builder()
    counted = {}
    for i, item in enumerate(session(2000, session=name)):
        if i in range(90, 100) or i >= 1990:
            counted[i] = steps(lambda item=item: builder.place(item))  # type: ignore[misc]
        else:
            builder.place(item)
    assert [t.kind for t in builder.trajectory().turns[1:]] == [Kind.APPEND] * 1999
    early, late = (sum(n for i, n in counted.items() if (i < 100) is first) for first in (True, False))
    assert early < 10 * 400
    assert late < 1.05 * early  # jumps between nodes differ by a step or two


def test_an_edit_takes_steps_by_what_stands_behind_it_not_by_the_length_of_the_prefix() -> None:
    def cost(at: int) -> int:
        builder = Builder()
        items = list(session(at + 1, cleared_at=at))
        for item in items[:-1]:
            builder.place(item)
        count = steps(lambda: builder.place(items[-1]))
        assert builder.trajectory().turns[-1].kind is Kind.CLEARED
        return count

    assert cost(1000) < 1.1 * cost(100)


def test_a_reminder_that_moves_on_with_every_call_takes_as_many_steps_in_a_long_talk() -> None:
    builder = Builder()
    history = [Message("user", (Block("text", "begin"),))]
    reminder = Block("text", "<reminder>be brief</reminder>")
    counted = []
    for i in range(401):
        last = history[-1]
        sent = (*history[:-1], Message("user", (*last.blocks, reminder)))
        reply = Message("assistant", (Block("text", f"answer number {i} is this"),))
        exchange = Exchange("anthropic", "generate", HEAD, sent, Reply(reply, "end_turn", True), Hints(session="one"))
        item = prepare(call(i), exchange)
        counted.append(steps(lambda item=item: builder.place(item)))  # type: ignore[misc]
        history += [reply, Message("user", (Block("text", f"question number {i}"),))]
    assert [t.kind for t in builder.trajectory().turns[1:]] == [Kind.REMINDER_MOVED] * 400
    assert sum(counted[-10:]) < 1.1 * sum(counted[40:50])


def test_a_call_makes_a_node_for_each_message_that_no_prefix_had_and_no_other() -> None:
    builder = Builder()
    for item in session(300, cleared_at=200):
        builder.place(item)
    # 1 + 2 a call; the cleared result and the 18 messages behind it stand in another prefix now
    assert len(builder.state.trie.nodes) == 1 + NEW_MESSAGES * 299 + 19


def test_what_the_tree_holds_grows_with_new_content_alone() -> None:
    builder = Builder()
    held = []
    gc.collect()
    tracemalloc.start()
    for i, item in enumerate(session(900), 1):
        builder.place(item)
        if i % 300 == 0:
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    first, second = held[1] - held[0], held[2] - held[1]
    assert second < 1.2 * first


def test_a_prefix_is_found_by_ancestors_as_by_walking() -> None:
    builder = Builder()
    for item in session(40):
        builder.place(item)
    tip = builder.trajectory().turns[-1].node
    assert tip is not None
    for depth in range(tip.depth + 1):
        node = tip.ancestor(depth)
        assert (node.walk() if node else ()) == tip.walk()[:depth]
