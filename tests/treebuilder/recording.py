"""Calls written by hand, handed to a builder one by one."""

from dataclasses import replace

from simulate import HEAD, call, text

from recorder.call import Outcome
from recorder.message import Block, Exchange, Head, Hints, Message, Reply
from treebuilder.arrival import prepare
from treebuilder.build import Builder
from treebuilder.tree import Trajectory, Turn


class Recording:
    """Calls as they are made, without ids unless given."""

    def __init__(self, *, structural: bool = False) -> None:
        self.builder = Builder(structural=structural)
        self.count = 0

    def send(
        self,
        *messages: Message,
        reply: Message | None = None,
        head: Head = HEAD,
        hints: Hints = Hints(),  # noqa: B008  frozen
        wire: str = "anthropic",
        edits: tuple[str, ...] = (),
        whole: bool = True,
        run: str = "sim",
        outcome: Outcome = Outcome.COMPLETE,
        stop: str = "end_turn",
        url: str = "http://127.0.0.1/v1/messages",
    ) -> Turn:
        self.count += 1
        sampled = Reply(reply, stop, whole, id=f"r{self.count}", server_edits=edits) if reply else None
        exchange = Exchange(wire, "generate", head, messages, sampled, hints)
        return self.builder.place(prepare(replace(call(self.count, run=run, outcome=outcome), url=url), exchange))

    @property
    def tree(self) -> Trajectory:
        return self.builder.trajectory()

    def kinds(self) -> list[str]:
        return [t.kind.value for t in self.tree]


def said(words: str) -> Message:
    return text("assistant", words)


def asks(id_: str, arguments: str, name: str = "read") -> Message:
    return Message("assistant", (Block("tool_call", arguments, name, id_),))


def result(id_: str, words: str) -> Message:
    return Message("user", (Block("tool_result", id=id_, parts=(Block("text", words),)),))
