"""What placing a call in the tree costs as a session grows: appends, with a cleared result and a summary now and then.

    python benchmarks/tree_time.py [--calls 2000] [--plot FILE.png]

Processor time. Parsing and fingerprinting (`prepare`) are counted apart. The last lines compare the total with
`difflib.SequenceMatcher` over the blocks of each pair of calls, extrapolated from a sample of pairs.
"""

import argparse
import difflib
import time
from dataclasses import dataclass
from pathlib import Path

from recorder.call import Call, Outcome
from recorder.message import Block, Exchange, Head, Hints, Message, Reply
from treebuilder.arrival import prepare
from treebuilder.build import Builder

HEAD = Head("model", (Block("text", "Be careful."),), ())


@dataclass(frozen=True, slots=True)
class Measured:
    prepare_s: list[float]
    place_s: list[float]
    prefixes: list[tuple[Message, ...]]


def session(calls: int, *, edits: bool) -> list[Exchange]:
    """Appends of about 500 characters a call, 2,000 reach 1 MB; `edits` clears a result at every 200th."""
    history: list[Message] = [Message("user", (Block("text", "Work through the list."),))]
    made = []
    for i in range(calls):
        reply = Reply(
            Message("assistant", (Block("tool_call", f'{{"n":{i}}}', "read", f"c{i}"),)), "tool_use", True, f"r{i}"
        )
        made.append(Exchange("anthropic", "generate", HEAD, tuple(history), reply, Hints(session="one")))
        body = f"line {i} " + "abcdefgh " * 53
        result = Block("tool_result", id=f"c{i}", parts=(Block("text", body),))
        history = [*history, reply.message, Message("user", (result,))]
        if edits and i % 200 == 199:
            cleared = Block("tool_result", id=f"c{i - 50}", parts=(Block("text", "[gone]"),))
            history[2 * (i - 50) + 2] = Message("user", (cleared,))
    return made


def measure(exchanges: list[Exchange]) -> Measured:
    builder = Builder()
    prepare_s, place_s = [], []
    for i, exchange in enumerate(exchanges):
        call = Call(
            "POST", "http://127.0.0.1/v1/messages", 200, Outcome.COMPLETE, (), (), b"", b"", 0.0, source=f"b#{i}"
        )
        at = time.process_time()
        item = prepare(call, exchange)
        between = time.process_time()
        builder.place(item)
        place_s.append(time.process_time() - between)
        prepare_s.append(between - at)
    return Measured(prepare_s, place_s, [e.messages for e in exchanges])


def difflib_s(prefixes: list[tuple[Message, ...]], *, every: int) -> float:
    """Seconds for all pairs, from every n-th."""
    total = 0.0
    for i in range(1, len(prefixes), every):
        a = [block for m in prefixes[i - 1] for block in m.blocks]
        b = [block for m in prefixes[i] for block in m.blocks]
        at = time.process_time()
        difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        total += time.process_time() - at
    return total * every


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description="time of placing calls")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    measured = measure(session(options.calls, edits=False))
    edited = measure(session(options.calls, edits=True))
    print(f"{'call':>6} {'prepare us':>11} {'place us':>9} {'place us, with edits':>21}")
    for at in (100, 200, 500, 1000, 1500, options.calls):
        if at <= options.calls:
            near = slice(max(0, at - 50), at)
            values = (measured.prepare_s, measured.place_s, edited.place_s)
            a, b, c = (median(v[near]) * 1e6 for v in values)
            print(f"{at:>6} {a:>11.0f} {b:>9.0f} {c:>21.0f}")
    late, early = median(measured.place_s[-50:]), median(measured.place_s[50:150])
    ours = sum(edited.place_s)
    theirs = difflib_s(edited.prefixes, every=max(1, options.calls // 50))
    print(f"cost at the end over cost at call 100: {late / early:.2f}")
    print(f"total {ours:.3f} s placing, {theirs:.1f} s with difflib over each pair: {theirs / ours:.0f} times")
    if options.plot:
        import matplotlib.pyplot as plt

        figure, axis = plt.subplots(figsize=(7, 4))
        axis.plot([s * 1e6 for s in edited.place_s], ".", markersize=2, label="place")
        axis.plot([s * 1e6 for s in edited.prepare_s], ".", markersize=2, label="prepare (hash and chain the prefix)")
        axis.set(xlabel="call", ylabel="microseconds", yscale="log", title="cost of a call as the session grows")
        axis.legend()
        figure.savefig(options.plot, dpi=120)


if __name__ == "__main__":
    main()
