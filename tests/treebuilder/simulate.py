"""A harness that edits its context at random and knows what it did: the truth that trees are tested against.

Every text is new words from a counter, so nothing is equal or quoted by accident. Calls are handed over parsed: what
bytes mean is tested elsewhere.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from recorder.call import Call, Outcome
from recorder.message import Block, Exchange, Head, Hints, Message, Reply, Tool
from treebuilder.arrival import Prepared, prepare
from treebuilder.build import Builder
from treebuilder.tree import Kind, Trajectory

CAPTURES = Path(__file__).parent.parent / "captures"
SYSTEM = Block("text", "You are a careful agent. Work in small steps.")
TOOLS = (Tool("read", "reads a file", "{}"), Tool("run", "runs a command", "{}"))
HEAD = Head("model-1", (SYSTEM,), TOOLS)


def call(index: int, *, outcome: Outcome = Outcome.COMPLETE, run: str = "sim") -> Call:
    return Call(
        "POST", "http://127.0.0.1/v1/messages", 200, outcome, (), (), b"", b"", 0.0, source=f"sim#{index}", run=run
    )


def text(role: str, *texts: str) -> Message:
    return Message(role, tuple(Block("text", t) for t in texts))  # type: ignore[arg-type]


@dataclass
class Step:
    """One call and what it truly is."""

    prepared: Prepared
    kind: Kind
    session: str
    kept: int
    """Leading messages shared with the call it is compared with; -1 = compared with nothing."""


@dataclass
class Session:
    """One conversation. Every method makes one call, or two for a summary."""

    rng: random.Random
    name: str
    steps: list[Step]
    """Shared by sessions that run interleaved."""
    head: Head = HEAD
    history: list[Message] = field(default_factory=list)
    reply: Reply | None = None
    count: int = 0

    def words(self, n: int = 6) -> str:
        self.count += 1
        return " ".join(f"{self.name}{self.count}{chr(97 + i)}{self.rng.randrange(10**4)}" for i in range(n))

    def lines(self, n: int) -> str:
        return "\n".join(self.words(5) for _ in range(n))

    def sample(self) -> Reply:
        blocks = []
        if self.rng.random() < 0.4:
            blocks.append(Block("thinking", self.words(8)))
        if self.rng.random() < 0.6:
            blocks.append(Block("text", self.words()))
        if self.rng.random() < 0.7 or not any(b.kind == "text" for b in blocks):
            self.count += 1
            blocks.append(Block("tool_call", f'{{"path":"{self.words(1)}"}}', "read", f"call_{self.name}_{self.count}"))
        return self.answer(*blocks)

    def answer(self, *blocks: Block) -> Reply:
        self.count += 1
        return Reply(Message("assistant", blocks), "end_turn", True, id=f"msg_{self.name}_{self.count}")

    def send(
        self,
        kind: Kind,
        messages: Sequence[Message],
        *,
        head: Head | None = None,
        reply: Reply | None = None,
        before: Sequence[Message] | None = None,
        failed: bool = False,
    ) -> Reply | None:
        sampled = None if failed else reply or self.sample()
        hints = Hints(harness="sim", session=f"session-{self.name}")
        exchange = Exchange("anthropic", "generate", head or self.head, tuple(messages), sampled, hints)
        made = call(len(self.steps), outcome=Outcome.HTTP_ERROR if failed else Outcome.COMPLETE)
        old = self.history if before is None else before
        kept = next(
            (i for i, (a, b) in enumerate(zip(old, messages, strict=False)) if a != b), min(len(old), len(messages))
        )
        self.steps.append(Step(prepare(made, exchange), kind, self.name, -1 if kind is Kind.ROOT else kept))
        return sampled

    def go(self, kind: Kind, messages: list[Message], *, head: Head | None = None) -> None:
        self.reply = self.send(kind, messages, head=head)
        self.history = messages

    def next_messages(self) -> list[Message]:
        """The reply's echo and what answers it."""
        assert self.reply is not None
        calls = [b for b in self.reply.message.blocks if b.kind == "tool_call"]
        if calls:
            long = self.lines(self.rng.randrange(3, 9))
            return [
                self.reply.message,
                Message("user", tuple(Block("tool_result", id=b.id, parts=(Block("text", long),)) for b in calls)),
            ]
        return [self.reply.message, text("user", self.words())]

    def root(self) -> None:
        self.go(Kind.ROOT, [text("user", f"<env>\n{self.words()}\n</env>", self.words())])

    def append(self) -> None:
        self.go(Kind.APPEND, self.history + self.next_messages())

    def retry(self) -> None:
        """The call before failed; the same again."""
        messages = self.history + self.next_messages()
        self.send(Kind.APPEND, messages, failed=True)
        self.history = messages
        self.go(Kind.RETRY, messages)

    def summarize(self) -> None:
        """Ask in a new user message, with the whole history; go on with the summary and perhaps the last turn."""
        assert self.reply is not None
        asking = [*self.history, *self.next_messages()]
        last = asking[-1]
        asking[-1] = replace(last, blocks=(*last.blocks, Block("text", "Now sum up. " + self.words(12))))
        summary = self.lines(5)
        said = self.answer(Block("text", f"<summary>\n{summary}\n</summary>"))
        self.send(Kind.SUMMARY_REQUEST, asking, reply=said)
        tail = self.next_messages() if self.rng.random() < 0.5 else []
        self.go(Kind.SUMMARIZED, [text("user", f"The story so far:\n{summary}\nGo on."), *tail])

    def summarize_aside(self) -> None:
        """Ask another head without tools to sum up a serialised history."""
        told = "\n".join(m.plain for m in self.history)
        said = self.answer(Block("text", self.lines(5)))
        head = Head("model-1", (Block("text", "You sum up conversations."),), ())
        self.send(Kind.SUMMARY_REQUEST, [text("user", f"<talk>\n{told}\n</talk>")], head=head, reply=said, before=())
        self.go(Kind.SUMMARIZED, [text("user", "What happened?"), said.message, text("user", self.words())])

    def results(self) -> list[int]:
        return [i for i, m in enumerate(self.history) if any(b.kind == "tool_result" for b in m.blocks)]

    def rewrite_results(self, kind: Kind, change: Callable[[str], str], which: list[int]) -> None:
        messages = list(self.history)
        for i in which:
            messages[i] = Message(
                "user",
                tuple(
                    replace(b, parts=(Block("text", change(b.plain)),)) if b.kind == "tool_result" else b
                    for b in messages[i].blocks
                ),
            )
        self.go(kind, messages + self.next_messages())

    def clear(self) -> None:
        old = [i for i in self.results()[:-1] if "[gone]" not in self.history[i].plain]
        if not old:
            return self.append()
        self.rewrite_results(Kind.CLEARED, lambda _: "[gone]", old)
        return None

    def truncate(self) -> None:
        old = [
            i
            for i in self.results()[:-1]
            if all(len(b.plain) > 80 for b in self.history[i].blocks if b.kind == "tool_result")
        ]
        if not old:
            return self.append()
        self.rewrite_results(Kind.TRUNCATED, lambda t: t.strip()[:60] + "...", old[-1:])
        return None

    def drop_thinking(self) -> None:
        at = [
            i
            for i, m in enumerate(self.history)
            if any(b.kind == "thinking" for b in m.blocks) and any(b.kind != "thinking" for b in m.blocks)
        ]
        if not at:
            return self.append()
        messages = list(self.history)
        for i in at:
            messages[i] = Message("assistant", tuple(b for b in messages[i].blocks if b.kind != "thinking"))
        self.go(Kind.THINKING_DROPPED, messages + self.next_messages())
        return None

    def rewind(self) -> None:
        """Back to before some reply's successor; another user message instead."""
        cuts = [i for i in range(2, len(self.history)) if self.history[i].role == "user"]
        if not cuts:
            return self.append()
        cut = self.rng.choice(cuts)
        self.go(Kind.REWOUND, [*self.history[:cut], text("user", self.words())])
        return None

    def delete(self) -> None:
        """One exchange out of the middle, the first exchange and most of the rest kept."""
        if len(self.history) < 9:
            return self.append()
        cut = self.rng.randrange(3, len(self.history) - 4, 2)
        self.go(Kind.DELETED, self.history[:cut] + self.history[cut + 2 :] + self.next_messages())
        return None

    def slide(self) -> None:
        """The oldest turns out, the first message kept."""
        if len(self.history) < 9:
            return self.append()
        drop = 2 * ((len(self.history) * 3 // 5 + 1) // 2)
        self.go(Kind.WINDOW_DROPPED, [self.history[0], *self.history[1 + drop :], *self.next_messages()])
        return None

    def move_reminder(self) -> None:
        first = self.history[0]
        if len(first.blocks) < 2:
            return self.append()
        new = self.next_messages()
        new[-1] = replace(new[-1], blocks=(*new[-1].blocks, first.blocks[0]))
        self.go(Kind.REMINDER_MOVED, [replace(first, blocks=first.blocks[1:]), *self.history[1:], *new])
        return None

    def change_system(self) -> None:
        self.head = Head("model-1", (Block("text", self.words()),), self.head.tools)
        self.go(Kind.SYSTEM_CHANGED, self.history + self.next_messages())

    def change_tools(self) -> None:
        self.count += 1
        self.head = Head("model-1", self.head.system, (*self.head.tools, Tool(f"tool{self.count}", "new", "{}")))
        self.go(Kind.TOOLS_CHANGED, self.history + self.next_messages())


EDITS = (
    "append",
    "append",
    "append",
    "retry",
    "summarize",
    "summarize_aside",
    "clear",
    "truncate",
    "drop_thinking",
    "rewind",
    "delete",
    "slide",
    "move_reminder",
    "change_system",
    "change_tools",
)


def simulate(seed: int, edits: Sequence[str], *, sessions: int = 1) -> list[Step]:
    """The calls of some sessions, interleaved at random, each beginning with a root and two appends."""
    rng = random.Random(seed)
    steps: list[Step] = []
    talks = [Session(random.Random(rng.random()), f"{seed % 9973}s{i}", steps) for i in range(sessions)]
    for talk in talks:
        talk.root()
    for talk in talks * 2:
        talk.append()
    for edit in edits:
        getattr(rng.choice(talks), edit)()
    return steps


def tree_of(steps: Sequence[Step], *, structural: bool = False) -> Trajectory:
    builder = Builder(structural=structural)
    for step in steps:
        builder.place(step.prepared)
    return builder.trajectory()
