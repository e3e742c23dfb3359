"""Harnesses at work, made up from what is known of real ones: threads beside each other, and the truth of each call.

Every block of text gets a number when it is first written. What an edit evicts and inserts is counted by these numbers:
by what was done, not by comparing texts. Nothing of the package under test is used but the words for blocks, messages
and calls. Words are new each time, so nothing is equal or quoted by accident.

Threads are generators that stop after each call; the world lets a random one go on. So sessions and agents interleave
in every order that keeps a thread's own and has causes before effects.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from world_parts import Line, Made, Part, View
from world_speaker import Speaker, World

from recorder.call import Outcome
from recorder.message import Block, Head, Hints, Tool

PLAIN = ("append", "append", "append", "append", "retry", "cut", "cut_kept", "interrupt", "count", "resume")
EDITS = (
    "summarize",
    "summarize_aside",
    "summarize_rest",
    "clear",
    "point",
    "truncate",
    "drop_thinking",
    "rewind",
    "delete",
    "slide",
    "move_note",
    "add_note",
    "drop_note",
    "change_system",
    "change_tools",
    "change_model",
)
HELPERS = ("agents", "background", "fetch")
SAID_BY_ID = ("fork", "suggest", "quota")
"""What only an id or a header tells: without, a fork is a next turn, a suggestion a question that was taken back."""


def play(world: World, sessions: int, length: int) -> list[Made]:
    same = world.text(world.words()).block.text if world.rng.random() < 0.3 else None
    for session in range(sessions):
        talk = Talk(world, session, first=same if world.rng.random() < 0.7 else None)
        world.running.append((talk, talk.run(length)))
    while world.running:
        speaker, steps = world.rng.choice(world.running)
        try:
            next(steps)
        except StopIteration:
            world.running.remove((speaker, steps))
    world.clock()
    return world.made


class Talk(Speaker):
    """One thread: a session's own, or an agent's."""

    def run(self, length: int) -> Iterator[None]:
        rng, world = self.world.rng, self.world
        same = self.first is not None and not (world.ids and world.helpers_told)  # whose title it is nobody could tell
        if self.agent == "" and not same and rng.random() < 0.3:
            self.title(self.first_prompt())
            yield
        self.begin()
        yield
        self.append()
        yield
        for _ in range(length):
            pool = PLAIN + PLAIN + EDITS + (HELPERS if self.depth() < 2 else ())
            if world.ids and world.helpers_told and self.agent == "":
                pool += SAID_BY_ID
            done = getattr(self, rng.choice(pool))()
            if done is not None:
                yield from done
            yield

    def append(self) -> None:
        results = any(p.block.kind == "tool_call" for p in self.reply)
        told = self.world.ids and self.world.helpers_told
        delta = self.responses and (told or results) and self.world.rng.random() < 0.5 and not self.extra
        self.go("append", (*self.view, *self.answers()), delta=delta)

    def resume(self) -> None:
        """The harness was started again, under another recorder."""
        self.run_name = f"w{self.world.seed}-{len(self.world.made)}"
        self.go("append", (*self.view, *self.answers()))  # in full: what a connection remembers ends with it

    def retry(self) -> Iterator[None]:
        view = (*self.view, *self.answers())
        self.last, self.view = self.send("append", view, outcome=Outcome.HTTP_ERROR), view
        yield
        self.go("retry", view)

    def cut(self) -> Iterator[None]:
        """The stream broke, and the same is sent again."""
        view = (*self.view, *self.answers())
        partial = (self.world.text(),)
        self.last, self.view = self.send("append", view, reply=partial, outcome=Outcome.TRUNCATED), view
        yield
        self.go("retry", view)

    def cut_kept(self) -> Iterator[None]:
        """The stream broke behind a whole block, which is kept, with a word that it was cut."""
        view = (*self.view, *self.answers())
        partial = (self.world.text(),)
        self.last, self.view = self.send("append", view, reply=partial, outcome=Outcome.TRUNCATED), view
        yield
        self.reply = partial
        self.go("append", (*view, *self.echoed(partial), Line("user", (self.world.text(),))))

    def interrupt(self) -> Iterator[None] | None:
        """Stopped before anything came: the prompt is taken back, another one is put."""
        if any(p.block.kind == "tool_call" for p in self.reply):
            self.append()
            return None
        view = (*self.view, *self.answers())
        self.last, before = self.send("append", view, outcome=Outcome.ABORTED), self.view
        again = (*before, *self.echoed(self.reply), Line("user", (self.world.text(),)))
        self.view = view
        return self._again(again)

    def _again(self, view: View) -> Iterator[None]:
        yield
        self.go("rewound", view)

    def count(self) -> None:
        self.send("count_tokens", self.view, lane="count", compared=None, call_kind="count_tokens")

    def title(self, prompt: str) -> None:
        head = Head("small", (Block("text", self.world.words()),), ())
        view = (Line("user", (self.world.text(f"<talk>\n{prompt}\n</talk>"),)),)
        hints = Hints(session=self.name) if self.world.ids else None
        reply = (self.world.text(self.world.words(3)),)
        self.send("side_call", view, lane="title", head=head, reply=reply, compared=None, hints=hints)

    def quota(self) -> None:
        hints = Hints(session=self.name, request_class="auxiliary")
        head = Head("small", (), ())
        reply = (self.world.text(self.world.words(1)),)
        view = (Line("user", (self.world.text("quota"),)),)
        self.send("side_call", view, lane="title", head=head, reply=reply, compared=None, hints=hints)

    def suggest(self) -> None:
        """What might the user type next? The whole view and one more prompt; nothing of it stays."""
        hints = Hints(session=self.name, request_class="auxiliary")
        view = (*self.view, *self.echoed(self.reply), Line("user", (self.world.text(),)))
        self.send("side_call", view, lane="title", reply=(self.world.text(),), compared=None, hints=hints)

    def fetch(self) -> Iterator[None]:
        """A tool asks a model without tools to shorten a page; its words come back as the result."""
        call = self.tool_call("fetch", {"url": f"http://{self.world.words(1)}.example"})
        self.go("append", (*self.view, *self.answers()), reply=(call,))
        yield
        head = Head("small", (), ())
        page = (Line("user", (self.world.text(self.world.words(30)),)),)
        said = self.world.words(10)
        self.send("side_call", page, lane="title", head=head, reply=(self.world.text(said),), compared=None)
        self.result_text[call.block.id] = said
        yield
        self.append()

    def agents(self) -> Iterator[None]:
        """Several at once, nested up to two deep; their reports are the results."""
        world = self.world
        calls = []
        for _ in range(world.rng.randrange(1, 4)):
            prompt = world.words(9)
            calls.append((self.tool_call("spawn", {"about": world.words(2), "prompt": prompt}), prompt))
        self.go("append", (*self.view, *self.answers()), reply=tuple(c for c, _ in calls))
        yield
        started = [self._spawn(call, prompt) for call, prompt in calls]
        while any(pair in world.running for _, pair in started):
            yield
        for (call, _), (agent, _) in zip(calls, started, strict=True):
            self.result_text[call.block.id] = "Report:\n" + agent.report()
        self.append()

    def background(self) -> Iterator[None]:
        """Started, and reported on in a later prompt."""
        world = self.world
        prompt = world.words(9)
        call = self.tool_call("spawn", {"about": world.words(2), "prompt": prompt})
        self.go("append", (*self.view, *self.answers()), reply=(call,))
        self.result_text[call.block.id] = "started"
        yield
        agent, pair = self._spawn(call, prompt)
        self.append()
        yield
        while pair in world.running:
            if world.rng.random() < 0.3:
                self.append()
            yield
        self.extra.append(world.text(f"<done>\n{agent.report()}\n</done>"))
        self.append()

    def _spawn(self, call: Part, prompt: str) -> tuple["Talk", tuple["Talk", Iterator[None]]]:
        agent = Talk(self.world, self.session, first=prompt, agent=f"agent-{call.block.id}", parent=self)
        pair = agent, agent.run(self.world.rng.randrange(0, 4))
        self.world.running.append(pair)
        return pair[0], pair

    def report(self) -> str:
        """What an agent said last, and wrote down where it had called a tool instead."""
        return "\n".join(p.block.text for p in self.reply if p.block.kind == "text") or self.world.words(8)

    def fork(self) -> None:
        """A new session with this one's whole view in front; it makes two calls and ends."""
        other = Talk(self.world, self.session + 100 * (len(self.world.made) + 1), first=self.first)
        other.name, other.head, other.responses = f"{self.name}-{other.thread}", self.head, self.responses
        other.view, other.reply, other.last = self.view, self.reply, self.last
        other.go("forked", (*self.view, *other.answers()))
        self.world.running.append((other, iter_of(other.append)))

    def summarize(self) -> Iterator[None]:
        """Asked behind the whole history; the next view is the summary, and perhaps the last turn."""
        world = self.world
        tail = self.answers()
        asking = (*self.view, *tail[:-1], replace(tail[-1], parts=(*tail[-1].parts, world.text(world.words(12)))))
        if tail[-1].role == "tool":
            asking = (*self.view, *tail, Line("user", (world.text(world.words(12)),)))
        summary = "\n".join(world.words() for _ in range(5))
        self.send("summary_request", asking, reply=(world.text(f"<summary>\n{summary}\n</summary>"),))
        yield
        keep = tail if world.rng.random() < 0.5 else ()
        self.go("summarized", (Line("user", (world.text(f"The story so far:\n{summary}\nGo on."),)), *keep))

    def summarize_rest(self) -> Iterator[None] | None:
        """The front stays, what stood behind it becomes a summary."""
        world = self.world
        cuts = [i for i in range(2, len(self.view)) if self.view[i].role == "user" and self._closed(i)]
        if not cuts:
            self.append()
            return None
        return self._rest(world.rng.choice(cuts))

    def _rest(self, cut: int) -> Iterator[None]:
        world = self.world
        tail = self.answers()
        asking = (*self.view, *tail, Line("user", (world.text(world.words(12)),)))
        summary = "\n".join(world.words() for _ in range(5))
        self.send("summary_request", asking, reply=(world.text(f"<summary>\n{summary}\n</summary>"),))
        yield
        self.go("summarized", (*self.view[:cut], Line("user", (world.text(f"Then:\n{summary}"), world.text()))))

    def summarize_aside(self) -> Iterator[None]:
        """Another head without tools sums up what it is told of the history."""
        world = self.world
        told = "\n".join(p.block.plain for line in self.view for p in line.parts)
        head = Head(self.head.model, (Block("text", world.words()),), ())
        view = (Line("user", (world.text(f"<talk>\n{told}\n</talk>"),)),)
        summary = world.text("\n".join(world.words() for _ in range(5)))
        self.send("summary_request", view, lane="summary", head=head, reply=(summary,), compared=None)
        yield
        said = world.part(summary.block)
        self.go(
            "summarized",
            (Line("user", (world.text(),)), Line("assistant", (said,)), Line("user", (world.text(),))),
        )

    def _closed(self, at: int) -> bool:
        """No tool call before that place waits for a result behind it."""
        calls = {p.block.id for line in self.view[:at] for p in line.parts if p.block.kind == "tool_call"}
        results = {p.block.id for line in self.view[:at] for p in line.parts if p.block.kind == "tool_result"}
        return calls == results

    def _results(self) -> list[tuple[int, int]]:
        found = [
            (i, j)
            for i, line in enumerate(self.view)
            for j, p in enumerate(line.parts)
            if p.block.kind == "tool_result" and len(p.block.plain) > 100
        ]
        return found[:-1]

    def _rewritten(self, kind: str, which: list[tuple[int, int]], words: str) -> None:
        view = [list(line.parts) for line in self.view]
        for i, j in which:
            old = view[i][j]
            said = words.replace("{front}", old.block.plain.strip()[:70])
            view[i][j] = self.world.part(replace(old.block, parts=(Block("text", said),)), instead_of=old.number)
        lines = tuple(replace(line, parts=tuple(parts)) for line, parts in zip(self.view, view, strict=True))
        self.go(kind, (*lines, *self.answers()))

    def clear(self) -> None:
        old = self._results()
        return self._rewritten("cleared", old, "[removed]") if old else self.append()

    def point(self) -> None:
        old = self._results()
        return self._rewritten("cleared", old, "Kept in /var/cache/results/1.txt") if old else self.append()

    def truncate(self) -> None:
        old = self._results()
        return self._rewritten("truncated", old[-1:], "{front} ...") if old else self.append()

    def drop_thinking(self) -> None:
        view = []
        for line in self.view:
            rest = tuple(p for p in line.parts if p.block.kind != "thinking")
            if rest:  # a reply that is an item for each block loses the item
                view.append(replace(line, parts=rest))
        gone = sum(len(line.parts) for line in self.view) - sum(len(line.parts) for line in view)
        if not gone or self.responses:
            return self.append()
        return self.go("thinking_dropped", (*view, *self.answers()))

    def rewind(self) -> None:
        cuts = [i for i in range(2, len(self.view)) if self.view[i].role == "user" and self._closed(i)]
        if not cuts:
            return self.append()
        cut = self.world.rng.choice(cuts)
        return self.go("rewound", (*self.view[:cut], Line("user", (self.world.text(),))))

    def _exchanges(self) -> list[tuple[int, int]]:
        """Stretches that can be taken out: from an assistant's message to before the next but one."""
        starts = [
            i
            for i, line in enumerate(self.view)
            if line.role == "assistant" and self.view[i - 1].role != "assistant" and self._closed(i)
        ]
        return list(itertools.pairwise(starts))

    def delete(self) -> None:
        spans = self._exchanges()
        if len(spans) < 5:
            return self.append()
        start, stop = spans[self.world.rng.randrange(1, len(spans) - 2)]
        return self.go("deleted", (*self.view[:start], *self.view[stop:], *self.answers()))

    def slide(self) -> None:
        spans = self._exchanges()
        if len(spans) < 5:
            return self.append()
        start, stop = spans[0][0], spans[len(spans) * 3 // 5][1]
        if 2 * (stop - start) < len(self.view):
            return self.append()
        return self.go("window_dropped", (*self.view[:start], *self.view[stop:], *self.answers()))

    def move_note(self) -> None:
        first = self.view[0]
        if len(first.parts) < 2:
            return self.append()
        self.extra = [first.parts[0]]
        view = (replace(first, parts=first.parts[1:]), *self.view[1:], *self.answers())
        return self.go("reminder_moved", view)

    def add_note(self) -> None:
        first = self.view[0]
        note = self.world.text(f"<note>\n{self.world.words()}\n</note>")
        return self.go("reminder_moved", (replace(first, parts=(note, *first.parts)), *self.view[1:], *self.answers()))

    def drop_note(self) -> None:
        first = self.view[0]
        if len(first.parts) < 2:
            return self.append()
        view = (replace(first, parts=first.parts[1:]), *self.view[1:], *self.answers())
        return self.go("reminder_moved", view)

    def change_system(self) -> None:
        self.head = Head(self.head.model, (Block("text", self.world.words()),), self.head.tools)
        self.go("system_changed", (*self.view, *self.answers()))

    def change_tools(self) -> None:
        more = Tool(f"tool_{self.world.number()}", "new", "{}")
        self.head = Head(self.head.model, self.head.system, (*self.head.tools, more))
        self.go("tools_changed", (*self.view, *self.answers()))

    def change_model(self) -> None:
        name = f"model-{self.world.number()}"
        self.head = Head(name, (Block("text", self.world.words()),), self.head.tools)
        self.go("model_switched", (*self.view, *self.answers()))


def iter_of(step: object) -> Iterator[None]:
    yield
    assert callable(step)
    step()
