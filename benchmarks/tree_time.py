"""What placing a call in the tree costs as a session grows to 2,000 calls and 1 MB, and what the tree then holds.

    python benchmarks/tree_time.py --plot benchmarks/tree_time.png > benchmarks/tree_time.md

Each call adds four blocks, as thinking models' calls do in tests/captures (3.9 on average in tools_anthropic_thinking):
thinking, text, a tool call, its result; 500 characters in all. A second session has a result cleared at every 200th
call. Calls are handed over as the parser makes them: equal messages are the same objects, their digests are known.

Time is processor time, the median of the runs. Beside it, in the same run, `difflib.SequenceMatcher` over the blocks of
each pair of calls, every pair, once. Memory is what tracemalloc counts as held, messages included, garbage collected.
"""

import argparse
import difflib
import gc
import os
import platform
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

from recorder.call import Call, Outcome
from recorder.message import Block, Exchange, Head, Hints, Message, Reply, Tool
from treebuilder.arrival import Prepared, prepare
from treebuilder.build import Builder
from treebuilder.tree import Kind

HEAD = Head("model", (Block("text", "Be careful."),), (Tool("read", "reads a file", "{}"),))
WHERE = """\
An append costs some 150 calls of functions, as many at call 2,000 as at call 100 (tests/treebuilder/test_linear.py):
two nodes made and hashed, the reply found again, the turn made. What grows with the prefix is one comparison of two
tuples of the same objects, in C: 11 us of those at call 2,000."""
WINDOW = 100
"""Calls over which a cost is the median."""


def session(calls: int, *, edits: bool) -> Iterator[Prepared]:
    history = [_known(Message("user", (Block("text", "Work through the list."),)))]
    for i in range(calls):
        name = f"c{i}"
        words = (Block("thinking", f"{i}: " + "hm " * 30), Block("text", f"Step {i}: " + "next " * 12))
        reply = Message("assistant", (*words, Block("tool_call", f'{{"path": "file-{i}"}}', "read", name)))
        yield _call(i, Exchange("anthropic", "generate", HEAD, tuple(history), _whole(reply, i), Hints(session="one")))
        echo = Message("assistant", (*words, Block("tool_call", f'{{"path":"file-{i}"}}', "read", name)))
        history += [_known(echo), _known(_result(name, f"line {i} " + "abcdefgh " * 34))]
        if edits and i % 200 == 199:
            history[2 * (i - 50) + 2] = _known(_result(f"c{i - 50}", "[gone]"))


def _known(message: Message) -> Message:
    assert message.digest  # the parser has asked for it
    return message


def _result(name: str, text: str) -> Message:
    return Message("user", (Block("tool_result", id=name, parts=(Block("text", text),)),))


def _whole(message: Message, i: int) -> Reply:
    return Reply(message, "tool_use", complete=True, id=f"r{i}")


def _call(i: int, exchange: Exchange) -> Prepared:
    source = f"benchmark#{i}"
    call = Call("POST", "http://127.0.0.1/v1/messages", 200, Outcome.COMPLETE, (), (), b"", b"", 0.0, source=source)
    return prepare(call, exchange)


def place_s(calls: int, *, edits: bool) -> list[float]:
    """Seconds for each call."""
    builder = Builder()
    found = []
    for item in session(calls, edits=edits):
        at = time.process_time()
        builder.place(item)
        found.append(time.process_time() - at)
    kinds = builder.trajectory().kinds()
    assert kinds[Kind.CLEARED] == ((calls - 1) // 200 if edits else 0), kinds
    assert sum(kinds.values()) == kinds[Kind.ROOT] + kinds[Kind.APPEND] + kinds[Kind.CLEARED] == calls, kinds
    return found


def difflib_s(calls: int, *, edits: bool) -> list[float]:
    """Seconds for each pair of calls."""
    found = [0.0]
    before: list[Block] = []
    for item in session(calls, edits=edits):
        assert isinstance(item.exchange, Exchange)
        blocks = [block for message in item.exchange.messages for block in message.blocks]
        if before:
            at = time.process_time()
            difflib.SequenceMatcher(None, before, blocks, autojunk=False).get_opcodes()
            found.append(time.process_time() - at)
        before = blocks
    return found


@dataclass(frozen=True, slots=True)
class Held:
    calls: int
    content_chars: int
    """Text of the messages that are not in an earlier prefix."""
    bytes: int


def held(calls: int) -> list[Held]:
    """What the tree and its messages hold at each tenth of the calls."""
    found = []
    builder = Builder()
    content = 0
    gc.collect()
    tracemalloc.start()
    nothing = tracemalloc.get_traced_memory()[0]
    for i, item in enumerate(session(calls, edits=False), 1):
        turn = builder.place(item)
        content += sum(message.size_chars for message in turn.node.walk(turn.prefix)) if turn.node else 0
        if i % (calls // 10) == 0:
            gc.collect()
            found.append(Held(i, content, tracemalloc.get_traced_memory()[0] - nothing))
    tracemalloc.stop()
    return found


def near(costs: list[float], at: int) -> float:
    """Microseconds: the median of the window around a call, at the end of the last ones."""
    start = max(0, min(at - WINDOW // 2, len(costs) - WINDOW))
    return median(costs[start : start + WINDOW]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="time and memory of placing calls")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    calls, runs = options.calls, options.runs
    load, version = os.getloadavg()[0], platform.python_version()
    gc.collect()
    gc.freeze()  # the collector is not to walk through what imports have made
    grown = [place_s(calls, edits=False) for _ in range(runs)]
    edited = [place_s(calls, edits=True) for _ in range(runs)]
    theirs = difflib_s(calls, edits=False)
    costs = [median(run[i] for run in grown) for i in range(calls)]
    costs_edited = [median(run[i] for run in edited) for i in range(calls)]
    memory = held(calls)

    print("# Placing calls in the tree: time and memory\n")
    print("`python benchmarks/tree_time.py --plot benchmarks/tree_time.png`\n")
    print(f"{date.today()}, {_machine()}, {os.cpu_count()} cores (load {load:.1f} at the start),")
    print(f"Python {version}, {runs} runs\n\n![the curve](tree_time.png)\n")
    print("| call | place, us | place, session with edits, us | difflib, us |\n|---|---|---|---|")
    for at in (100, 200, 500, 1000, 1500, 2000):
        if at <= calls:
            a, b, c = (near(v, at) for v in (costs, costs_edited, theirs))
            print(f"| {at:,} | {a:.0f} | {b:.0f} | {c:,.0f} |")
    early, late = near(costs, 100), near(costs, calls)
    ours = median(sum(run) for run in grown)
    ours_edited = median(sum(run) for run in edited)
    print("\n| figure | measured | target |\n|---|---|---|")
    print(f"| cost at call {calls:,} over cost at call 100 | {late / early:.2f} | at most 2 |")
    print(f"| placing all calls | {ours * 1e3:.0f} ms, with edits {ours_edited * 1e3:.0f} ms | |")
    print(f"| difflib over each pair | {sum(theirs):.1f} s, {sum(theirs) / ours:.0f} times as long | 100 times |")
    print("\n| calls | new content, characters | held, bytes | bytes a character |\n|---|---|---|---|")
    for one in memory:
        if one.calls in (calls // 10, calls // 2, calls):
            each = one.bytes / one.content_chars
            print(f"| {one.calls:,} | {one.content_chars:,} | {one.bytes:,} | {each:.2f} |")
    print("\n" + WHERE)
    if options.plot:
        _draw(options.plot, costs, costs_edited, theirs, memory)


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _draw(path: Path, costs: list[float], edited: list[float], theirs: list[float], memory: list[Held]) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    curves = {
        "difflib over the blocks of each pair": theirs[1:],
        "ours, a result cleared at every 200th call": edited,
        "ours": costs,
    }
    for name, values in curves.items():
        left.plot([s * 1e6 for s in values], ".", markersize=2, label=name)
    left.set(xlabel="call", ylabel="microseconds", yscale="log", title="cost of one more call")
    left.legend(markerscale=5)
    right.plot([one.content_chars / 1e6 for one in memory], [one.bytes / 1e6 for one in memory], "o-")
    right.set(xlabel="new content, million characters", ylabel="held, MB", xlim=0, ylim=0, title="memory of the tree")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
