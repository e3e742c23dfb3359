"""A thread of a made-up world as it speaks: its view, its last reply, and each call with the truth about it."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from world_parts import Line, Made, Part, View, edit

from recorder.call import Call, Outcome
from recorder.message import Block, Exchange, Head, Hints, Message, Reply, Tool


@dataclass(slots=True)
class World:
    seed: int
    ids: bool = True
    """Headers say session and agent."""
    helpers_told: bool = True
    """Operations that only a header tells are among those done."""
    made: list[Made] = field(default_factory=list)
    running: list[tuple["Speaker", Iterator[None]]] = field(default_factory=list)
    count: int = 0
    threads: int = 0
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def number(self) -> int:
        self.count += 1
        return self.count

    def words(self, n: int = 7) -> str:
        """New words; the first and the last letters differ from text to text."""
        made = []
        for _ in range(n):
            letters = "".join(self.rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(5))
            made.append(f"{letters}{self.number():x}{self.rng.choice('qwertzuiopasdfghjklyxcvbnm')}")
        return " ".join(made)

    def part(self, block: Block, *, instead_of: int = 0) -> Part:
        return Part(block, self.number(), instead_of)

    def text(self, words: str | None = None) -> Part:
        return self.part(Block("text", words or self.words()))

    def clock(self) -> None:
        """Call i starts at i and ends at random before its thread's next: calls of other threads overlap."""
        following: dict[int, int] = {}
        for at in range(len(self.made) - 1, -1, -1):
            made = self.made[at]
            until = min(following.get(made.thread, at + 4), at + 4)
            duration = self.rng.uniform(0.1, until - at - 0.05) if until - at > 0.2 else 0.1
            made.call = replace(made.call, started_at_utc=1000.0 + at, duration_s=duration)
            following[made.thread] = at


class Speaker:
    """One thread: a session's own, or an agent's."""

    name: str
    responses: bool
    head: Head
    run_name: str

    def __init__(
        self, world: World, session: int, *, first: str | None = None, agent: str = "", parent: "Speaker | None" = None
    ) -> None:
        self.world, self.session, self.first, self.agent, self.parent = world, session, first, agent, parent
        world.threads += 1
        self.thread = world.threads
        self.name = f"session-{world.seed}-{session}" if parent is None else parent.name
        rng = world.rng
        self.responses = rng.random() < 0.25 if parent is None else parent.responses
        tools = [Tool(f"tool_{i}", world.words(3), "{}") for i in range(rng.randrange(2, 5))]
        model = "model-1" if parent is None else parent.head.model
        self.head = Head(model, (Block("text", world.words(12)),), tuple(tools))
        self.view: View = ()
        self.reply: tuple[Part, ...] = ()
        self.last: int | None = None
        self.reply_id = ""
        self.run_name = f"w{world.seed}" if parent is None else parent.run_name
        self.extra: list[Part] = []
        """What is put behind the next results, or in the next prompt."""
        self.result_text: dict[str, str] = {}

    def depth(self) -> int:
        return 0 if self.parent is None else 1 + self.parent.depth()

    def first_prompt(self) -> str:
        if self.first is None:
            self.first = self.world.words()
        return self.first

    def begin(self) -> None:
        note = self.world.text(f"<env>\n{self.world.words()}\n</env>")
        parts = (note, self.world.text(self.first_prompt())) if self.agent == "" else (self.world.text(self.first),)
        self.go("root", (Line("user", parts),))

    def sample(self) -> tuple[Part, ...]:
        rng, world = self.world.rng, self.world
        parts = []
        if rng.random() < 0.4:
            parts.append(world.part(Block("thinking", world.words(8))))
        if rng.random() < 0.6:
            parts.append(world.text())
        if rng.random() < 0.7 or not any(p.block.kind == "text" for p in parts):
            parts.append(self.tool_call("read", {"path": world.words(1)}))
        return tuple(parts)

    def tool_call(self, name: str, given: dict[str, str]) -> Part:
        body = ",".join(f'"{k}":"{v}"' for k, v in sorted(given.items()))
        return self.world.part(Block("tool_call", "{" + body + "}", name, f"call_{self.world.number()}"))

    def echoed(self, reply: Sequence[Part]) -> View:
        if self.responses:
            return tuple(Line("assistant", (p,)) for p in reply)
        return (Line("assistant", tuple(reply)),)

    def answers(self) -> View:
        """The reply's echo, and what answers it."""
        world = self.world
        results = []
        for part in self.reply:
            if part.block.kind == "tool_call":
                said = self.result_text.pop(part.block.id, None)
                said = said or "\n".join(world.words() for _ in range(world.rng.randrange(3, 8)))
                results.append(world.part(Block("tool_result", id=part.block.id, parts=(Block("text", said),))))
        extra, self.extra = tuple(self.extra), []
        if results and self.responses:
            made = tuple(Line("tool", (r,)) for r in results)
            made += (Line("user", extra),) if extra else ()
        elif results:
            made = (Line("user", (*results, *extra)),)
        else:
            made = (Line("user", (*extra, world.text())),)
        return (*self.echoed(self.reply), *made)

    def send(
        self,
        kind: str,
        view: View,
        *,
        lane: str = "",
        head: Head | None = None,
        reply: tuple[Part, ...] | None = None,
        outcome: Outcome = Outcome.COMPLETE,
        compared: int | None = -1,
        base: View | None = None,
        hints: Hints | None = None,
        call_kind: str = "generate",
        delta: bool = False,
    ) -> int:
        """The call's number. `compared` -1 = this thread's last; `base` its view."""
        world = self.world
        index = len(world.made)
        before = self.last if compared == -1 else compared
        old = self.view if base is None else base
        kept, evicted, inserted = edit(old, view) if before is not None else (0, {}, {})
        sampled = None
        if reply is not None:
            whole = outcome is Outcome.COMPLETE
            message = Message("assistant", tuple(p.block for p in reply))
            sampled = Reply(message, "end_turn" if whole else "", whole, id=f"reply_{world.seed}_{index}")
        if hints is None:
            hints = Hints(session=self.name, agent=self.agent) if world.ids else Hints()
        messages = tuple(line.message for line in view)
        fresh = messages
        if delta and before is not None:
            fresh = tuple(line.message for line in view[len(old) + len(self.echoed(self.reply)) :])
            hints = replace(hints, previous_id=self.reply_id)
        wire = "openai_responses" if self.responses else "anthropic"
        exchange = Exchange(wire, call_kind, head or self.head, fresh, sampled, hints)  # type: ignore[arg-type]
        status = 529 if outcome is Outcome.HTTP_ERROR else 200
        made = Call(
            "POST",
            "http://127.0.0.1/v1/messages",
            status,
            outcome,
            (),
            (),
            b"",
            b"",
            0.0,
            source=f"world#{index}",
            run=self.run_name,
        )
        lane = lane or ("agent" if self.agent else "main")
        world.made.append(
            Made(
                *(made, exchange, self.thread, self.session, lane, kind, messages),
                *(before, kept, evicted, inserted, sampled is not None),
            )
        )
        return index

    def go(self, kind: str, view: View, *, reply: tuple[Part, ...] | None = None, delta: bool = False) -> None:
        """A call of the thread that gets a whole reply."""
        reply = self.sample() if reply is None else reply
        self.last = self.send(kind, view, reply=reply, delta=delta, compared=None if kind == "root" else -1)
        self.view, self.reply = view, reply
        self.reply_id = f"reply_{self.world.seed}_{self.last}"
