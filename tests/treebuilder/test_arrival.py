"""Calls may arrive in any order that keeps a thread's own and has causes before effects: the tree is the same.

main      m0 ── m1 (starts x and y) ──────────── m2 (their reports) ── m3 (summary) ── m4 ── m5
agents          └─ x0 ── x1 ─┘  └─ y0 ── y1 ─┘
beside    title, token counts, a first try of m4 that failed
fork                             f0 (m2's view and reply, a new id) ── f1
rollouts  r0 ── r1, three times, from one prompt, each with an id of its own
"""

import random
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from recording import asks, result, said
from simulate import HEAD, call, text

from recorder.call import Outcome
from recorder.message import Block, CallKind, Exchange, Head, Hints, Message, Reply
from treebuilder.arrival import Prepared, prepare
from treebuilder.build import Builder
from treebuilder.node import shared
from treebuilder.tree import Kind, Trajectory, Turn

NO_TOOLS = Head("small", (Block("text", "Name this talk."),), ())
ROLLOUTS = ("ra", "rb", "rc")
PROMPT = text("user", "Find the two faults in this program and mend them.")


@dataclass
class Script:
    """Threads of calls by name, each in its order, and for some calls what must have ended before."""

    threads: dict[str, list[str]] = field(default_factory=dict)
    calls: dict[str, Prepared] = field(default_factory=dict)
    causes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def call(
        self,
        name: str,
        *messages: Message,
        reply: Message | None,
        hints: Hints,
        head: Head = HEAD,
        after: tuple[str, ...] = (),
        kind: CallKind = "generate",
    ) -> None:
        sampled = Reply(reply, "end_turn", True, id=f"msg_{name}") if reply is not None else None
        outcome = Outcome.COMPLETE if sampled else Outcome.HTTP_ERROR
        made = replace(call(0, outcome=outcome), source=name)
        self.calls[name] = prepare(made, Exchange("anthropic", kind, head, messages, sampled, hints))
        self.threads.setdefault(name.rstrip("0123456789"), []).append(name)
        self.causes[name] = after

    def order(self, rng: random.Random) -> list[str]:
        """One of the orders in which these calls can arrive."""
        queues = {name: list(calls) for name, calls in self.threads.items()}
        done: list[str] = []
        while queues:
            name = rng.choice([n for n, q in queues.items() if set(self.causes[q[0]]) <= set(done)])
            done.append(queues[name].pop(0))
            if not queues[name]:
                del queues[name]
        return done


def script(*, ids: bool = True) -> Script:
    s = Script()

    def hints(session: str, agent: str = "") -> Hints:
        return Hints(session=session, agent=agent) if ids else Hints()

    main = hints("main")
    start = asks("t0", '{"path":"program"}')
    tasks = {"x": "Look for the first fault, in the parser.", "y": "Look for the second fault, in the printer."}
    found = {"x": "The parser drops the last line.", "y": "The printer doubles the first line."}
    spawn = Message(
        "assistant", tuple(Block("tool_call", f'{{"prompt":"{task}"}}', "task", f"t{a}") for a, task in tasks.items())
    )
    reports = Message(
        "user", tuple(Block("tool_result", id=f"t{a}", parts=(Block("text", said),)) for a, said in found.items())
    )
    known, listed = said("Both faults are known now."), result("t0", "line one, line two, line three")
    summary = "The parser drops a line and the printer doubles one; neither is mended."
    m1 = (PROMPT, start, listed)
    m2 = (*m1, spawn, reports)
    m4 = text("user", f"So far: {summary}\nGo on.")
    s.call("m0", PROMPT, reply=start, hints=main)
    s.call("m1", *m1, reply=spawn, hints=main)
    s.call("m2", *m2, reply=known, hints=main, after=("x1", "y1"))
    s.call("m3", *m2, known, text("user", "Sum up what was done."), reply=said(summary), hints=main, after=("f0",))
    s.call("m4", m4, reply=None, hints=main)
    s.call("m5", m4, reply=said("Mended both of them."), hints=main)
    helper = Head("model-1", (Block("text", "You are a helper."),), HEAD.tools[:1])
    for a, task in tasks.items():
        ask = asks(f"u{a}", f'{{"path":"{a}"}}')
        s.call(f"{a}0", text("user", task), reply=ask, hints=hints("main", a), head=helper, after=("m1",))
        seen = (text("user", task), ask, result(f"u{a}", f"what stands in {a}"))
        s.call(f"{a}1", *seen, reply=said(found[a]), hints=hints("main", a), head=helper)
    s.call("title0", text("user", f"<talk>{PROMPT.plain}</talk>"), reply=said("Two faults"), hints=main, head=NO_TOOLS)
    s.call("count0", *m1, reply=said("12"), hints=main, kind="count_tokens")
    half = said("The parser is mended, the printer not.")
    f0 = (*m2, known, text("user", "Mend only the parser."))
    s.call("f0", *f0, reply=half, hints=hints("fork"), after=("m2",))
    s.call("f1", *f0, half, text("user", "Well done."), reply=said("Glad to."), hints=hints("fork"))
    ask, more = text("user", "Write a sorted list."), text("user", "Go on.")
    for r in ROLLOUTS:
        first = said(f"I begin with step {r}, as asked.")
        s.call(f"{r}0", ask, reply=first, hints=hints(r))
        s.call(f"{r}1", ask, first, more, reply=said(f"That was all of {r}."), hints=hints(r))
    return s


def build(s: Script, order: list[str], *, structural: bool = False) -> Trajectory:
    builder = Builder(structural=structural)
    for name in order:
        builder.place(s.calls[name])
    return builder.trajectory()


def told(trajectory: Trajectory) -> dict[str, tuple[object, ...]]:
    """What is said of each call, by names in place of numbers."""

    def name(index: int | None) -> str | None:
        return trajectory.turns[index].call.source if index is not None else None

    def one(turn: Turn) -> tuple[object, ...]:
        others = (name(turn.parent), name(turn.origin), name(turn.quotes))
        amounts = (turn.edit.evicted, turn.edit.inserted, turn.edit.moved) if turn.edit else ()
        echoes = [(e.message, name(e.turn), e.exact) for e in trajectory.echoes(turn)]
        return (turn.kind, turn.lane, turn.session, turn.prefix, others, amounts, echoes, turn.depth)

    return {turn.call.source: one(turn) for turn in trajectory}


def placed(trajectory: Trajectory) -> dict[str, tuple[Kind, str, str, str | None]]:
    turns = trajectory.turns
    return {
        t.call.source: (t.kind, t.lane, t.session, turns[t.parent].call.source if t.parent is not None else None)
        for t in turns
    }


def test_the_script_in_one_order_is_what_it_says() -> None:
    s = script()
    order = "m0 title0 m1 count0 x0 y0 x1 y1 m2 f0 m3 m4 f1 m5 ra0 rb0 rc0 ra1 rb1 rc1".split()  # noqa: SIM905
    assert sorted(order) == sorted(s.calls)
    assert placed(build(s, order)) == {
        "m0": (Kind.ROOT, "main", "main", None),
        "title0": (Kind.SIDE_CALL, "title", "main", None),
        "m1": (Kind.APPEND, "main", "main", "m0"),
        "count0": (Kind.COUNT_TOKENS, "count", "main", None),
        "x0": (Kind.ROOT, "agent:x", "main", None),
        "y0": (Kind.ROOT, "agent:y", "main", None),
        "x1": (Kind.APPEND, "agent:x", "main", "x0"),
        "y1": (Kind.APPEND, "agent:y", "main", "y0"),
        "m2": (Kind.APPEND, "main", "main", "m1"),
        "m3": (Kind.SUMMARY_REQUEST, "main", "main", "m2"),
        "f0": (Kind.FORKED, "main", "fork", "m2"),
        "m4": (Kind.SUMMARIZED, "main", "main", "m2"),
        "f1": (Kind.APPEND, "main", "fork", "f0"),
        "m5": (Kind.RETRY, "main", "main", "m4"),
        **{f"{r}0": (Kind.ROOT, "main", r, None) for r in ROLLOUTS},
        **{f"{r}1": (Kind.APPEND, "main", r, f"{r}0") for r in ROLLOUTS},
    }


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_order_of_arrival_gives_the_same_tree(rng: random.Random) -> None:
    s = script()
    assert told(build(s, s.order(rng))) == told(build(s, s.order(random.Random(1))))


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_without_ids_too_but_for_the_names_of_sessions(rng: random.Random) -> None:
    s = script(ids=False)
    del s.threads["f"]  # without an id, a fork that nothing comes after is a next turn
    s.causes |= {"m3": (), "m1": ("title0",)}  # a title is looked for near the talk that it names

    def unnamed(order: list[str]) -> dict[str, tuple[object, ...]]:
        found = told(build(s, order, structural=True))
        return {name: (*one[:2], *one[3:]) for name, one in found.items()}

    assert unnamed(s.order(rng)) == unnamed(s.order(random.Random(1)))


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_each_sampled_reply_belongs_to_one_node_in_any_order(rng: random.Random, structural: bool) -> None:
    s = script(ids=not structural)
    trajectory = build(s, s.order(rng), structural=structural)
    branches = sorted(i for branch in trajectory.branches for i in branch.turns)
    assert branches == [t.index for t in trajectory if not t.kind.aside]
    threads = sorted(i for thread in trajectory.threads for i in thread.turns)
    assert threads == list(range(len(s.calls)))
    for turn in trajectory:
        exchange = s.calls[turn.call.source].exchange
        assert isinstance(exchange, Exchange)
        assert turn.messages == exchange.messages
        assert turn.reply == exchange.reply


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_sessions_that_begin_alike_share_the_nodes_of_their_trunk(rng: random.Random) -> None:
    s = script()
    trajectory = build(s, s.order(rng))
    node = {turn.call.source: turn.node for turn in trajectory}
    assert node["ra0"] is node["rb0"] is node["rc0"]
    assert shared(node["ra1"], node["rb1"]) == 1
    # the fork holds m2's view and reply; f0 adds one message to these
    assert node["f0"] is not None
    assert node["f0"].ancestor(5) is node["m2"]
    assert shared(node["f0"], node["m3"]) == 6
