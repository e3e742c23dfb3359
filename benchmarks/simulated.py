"""A thousand made-up sessions, every kind mixed: of how many calls and edits the tree says exactly what was done.

    python benchmarks/simulated.py [--sessions 1000]

A call is right if its walk, thread, session, lane and kind are; an edit if also what it is compared with, the prefix
kept, and the characters evicted and inserted in every block are. `tests/treebuilder/world.py` says how sessions are
made. By structure, and without ids, what only a header tells is left out of the worlds: forks by a new id, prompt
suggestions, quota checks.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "treebuilder"))
from judging import faults, tree_of
from world import play
from world_speaker import World

MODES = {"all evidence": (True, True), "structure only": (True, False), "no ids recorded": (False, False)}


def main() -> None:
    parser = argparse.ArgumentParser(description="made-up sessions, told by the tree")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--show", action="store_true", help="print every call that is told wrongly")
    options = parser.parse_args()
    print(f"| mode | sessions | calls right | | edits right (no appends, no retries) | |\n|{'---|' * 6}")
    for mode, (ids, helpers_told) in MODES.items():
        began, calls, edits = time.perf_counter(), Counter[bool](), Counter[bool]()
        sessions = seed = 0
        while sessions < options.sessions:
            made = play(World(seed, ids=ids, helpers_told=helpers_told), 1 + seed % 4, 12)
            tree = tree_of(made, structural=mode == "structure only")
            wrong = {id(one): (turn, why) for one, turn, why in faults(made, tree)}
            for one in made:
                calls[id(one) not in wrong] += 1
                if one.compared is not None and one.kind not in ("append", "retry"):
                    edits[id(one) not in wrong] += 1
                if options.show and id(one) in wrong:
                    print(seed, one.call.source, one.lane, one.kind, *wrong[id(one)][1:], file=sys.stderr)
            sessions += 1 + seed % 4
            seed += 1
        cells = [f"{c[True]:,} of {c.total():,} | {c[True] / c.total():.2%}" for c in (calls, edits)]
        print(f"| {mode} | {sessions:,} | {cells[0]} | {cells[1]} |", flush=True)
        print(f"{mode}: {time.perf_counter() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
