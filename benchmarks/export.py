"""Export against a renderer that starts from nothing at each call; tokens stored; memory as the input grows.

    python benchmarks/export.py [--captures DIR] [--calls 500] [--gigabytes 1] [--only PART] > benchmarks/export.md

Speed: one session of 500 calls whose requests grow from 60 to 600 kB, exported twice to the same bytes. The naive
renderer puts every prefix through the chat template whole and tokenises the text whole, by one call of the tokenizer.
Processor seconds of the whole export, rows and writing included; the median of some rounds for ours, one for the naive
one. Tokens: each HAR file under --captures, rows of branches against one row a call. Memory: sessions of 20 calls, 6 MB
each, all different, imported into a database and exported by the command line in a process of its own.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np
from storage import session
from transformers import PreTrainedTokenizerBase

from recorder.call import Call
from recorder.importing import read_har
from recorder.store import Store
from trainer.export import export
from trainer.export.manifest import Manifest
from trainer.models import load_tokenizer
from trainer.render import Renderer
from trainer.sample import Ids
from trainer.segments import Segments
from treebuilder.build import build
from treebuilder.tree import Trajectory

TURNS = 20
"""Calls of a session whose memory is measured."""
SHARES = (0.05, 0.25, 0.5, 1)


class WholeText(Segments):
    """Every text by one call of the tokenizer."""

    def encode(self, text: str) -> Ids:
        return np.asarray(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)

    def encode_after(self, before: str, text: str) -> Ids:
        return self.encode(text)


def naive(tokenizer: PreTrainedTokenizerBase) -> Renderer:
    renderer = Renderer(tokenizer)
    renderer.segments = WholeText(tokenizer)
    renderer._teller.segments = renderer.segments
    renderer._teller.linear = False
    return renderer


def timed(trajectory: Trajectory, renderer: Renderer, out: Path) -> tuple[float, Manifest]:
    start = time.process_time()
    manifest = export([trajectory], renderer, out=out, overwrite=True)
    return time.process_time() - start, manifest


def speed(tokenizer: PreTrainedTokenizerBase, *, calls: int, rounds: int, folder: Path) -> None:
    trajectory = build(session(calls))
    ours = [timed(trajectory, Renderer(tokenizer), folder / "ours") for _ in range(rounds)]
    theirs, other = timed(trajectory, naive(tokenizer), folder / "naive")
    seconds = statistics.median(s for s, _ in ours)
    counts = ours[0][1].counts
    print(f"\n## One session of {calls} calls, 60 to 600 kB a request\n")
    print("| renderer | CPU s | tokens rendered | rows |\n|---|---:|---:|---:|")
    print(f"| ours, median of {rounds} | {seconds:.2f} | {counts.call_tokens:,} | {counts.rows} |")
    print(f"| naive, per call | {theirs:.2f} | {other.counts.call_tokens:,} | {other.counts.rows} |")
    print(f"\n{theirs / seconds:.1f} times faster; same bytes: {all(m.files == other.files for _, m in ours)}")


def tokens(tokenizer: PreTrainedTokenizerBase, captures: Path, folder: Path) -> None:
    print("\n## Tokens stored, per capture\n")
    print("| capture | calls trained | rows | one row a call | rows of branches | times fewer | shared | times fewer |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for har in sorted(captures.rglob("*.har")):
        trajectory = build(read_har(har))
        counts = export([trajectory], Renderer(tokenizer), out=folder / "rows", overwrite=True).counts
        if counts.trained_calls:
            name = har.relative_to(captures).with_suffix("")
            rows, shared = counts.call_tokens / counts.branch_tokens, counts.call_tokens / counts.trie_tokens
            cells = f"{counts.trained_calls} | {counts.rows} | {counts.call_tokens:,} | {counts.branch_tokens:,}"
            print(f"| {name} | {cells} | {rows:.1f} | {counts.trie_tokens:,} | {shared:.1f} |")


def calls_of(sessions: range) -> Iterator[Call]:
    for number in sessions:
        yield from session(TURNS, seed=number + 1, name=f"5f0c2a52-0000-4000-8000-{number:012d}")


def memory(tokenizer: str, *, gigabytes: float, folder: Path) -> None:
    print(f"\n## Memory: sessions of {TURNS} calls, all different\n")
    print("| sessions | requests and replies, MB | dataset, MB | CPU s | most memory, MB |\n|---:|---:|---:|---:|---:|")
    size = sum(len(c.request_body) + len(c.response_body) for c in calls_of(range(1)))
    done = sent = 0
    with Store.open(folder / "big.db") as store:
        for share in SHARES:
            wanted = max(1, round(gigabytes * share * 1e9 / size))
            for call in calls_of(range(done, wanted)):
                store.put(call)
                sent += len(call.request_body) + len(call.response_body)
            done = max(done, wanted)
            out = folder / f"rows-{share:g}"
            words = [sys.executable, "-m", "memorywalker", "export", "--db", str(folder / "big.db")]
            words += ["--tokenizer", tokenizer, "--format", "trl-sft", "--out", str(out)]
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
            written = sum(p.stat().st_size for p in out.iterdir())
            seconds = used.ru_utime + used.ru_stime
            most = used.ru_maxrss / 1024
            print(f"| {done:,} | {sent / 1e6:,.0f} | {written / 1e6:,.0f} | {seconds:.0f} | {most:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captures", type=Path, default=Path(__file__).parent.parent / "tests" / "captures")
    parser.add_argument("--tokenizer", default="smollm2")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--only", choices=("speed", "tokens", "memory"))
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer)
    cpu = next((x.split(": ")[1] for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?")
    print("# Export: speed, tokens stored, memory\n\n`python benchmarks/export.py > benchmarks/export.md`\n")
    print(f"{date.today()}, {cpu}, {os.cpu_count()} cores (load {os.getloadavg()[0]:.1f} at the start),")
    print(f"Python {platform.python_version()}, tokenizer {options.tokenizer}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only in (None, "speed"):
            speed(tokenizer, calls=options.calls, rounds=options.rounds, folder=folder)
        if options.only in (None, "tokens"):
            tokens(tokenizer, options.captures, folder)
        if options.only in (None, "memory"):
            memory(options.tokenizer, gigabytes=options.gigabytes, folder=folder)


if __name__ == "__main__":
    main()
