"""Drift of every scheme on real sessions, as a table in Markdown; drift.md holds what it printed.

    python benchmarks/drift.py                         the sessions below, from tests/captures, under SmolLM2-135M
    python benchmarks/drift.py FILE... [--model M]     other recordings

One table a harness. The reference is the live view: each call by itself on exactly the prefix it had, through a cached
decoder that has nothing in common with the engines (trainer/liveview.py), float32.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path

import torch

from recorder.importing import import_path
from recorder.store import Store
from trainer.drift import Drift, DriftRow, drift
from trainer.models import load_model, load_tokenizer
from trainer.render import Renderer
from trainer.sources import Source, from_trajectories
from treebuilder.build import build

CAPTURES = Path(__file__).parent.parent / "tests" / "captures"
SESSIONS = {
    "Claude Code": ("claude-code/autocompact", "claude-code/multiturn"),
    "OpenCode": ("opencode/compact_auto_anthropic", "opencode/serve_revert_anthropic", "opencode/tools_anthropic"),
}
SCHEMES = ("logittree", "mask4d", "naive-compressed", "naive-full")  # sdcc has the contexts of naive-compressed
FLOOR = 1e-4  # the promise: logittree stays below it in float32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-head-tokens", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=8192, help="what SmolLM2 was made for")
    options = parser.parse_args()
    groups = (
        {"": options.files} if options.files else {n: [CAPTURES / f"{f}.har" for f in fs] for n, fs in SESSIONS.items()}
    )
    tokenizer, model = load_tokenizer(options.model), load_model(options.model, dtype=torch.float32)
    print(f"{_machine()}, torch {torch.__version__}, {torch.get_num_threads()} thread, {options.model}, float32\n")
    worst = 0.0
    for name, files in groups.items():
        began_s = time.monotonic()
        sources = [_source(file, Renderer(tokenizer), options) for file in files]
        episodes = tuple(episode for source in sources for episode in source.episodes)
        notes = tuple(dict.fromkeys(note for source in sources for note in source.notes))
        found = drift(
            Source(episodes, notes=notes), model=model, schemes=SCHEMES, engine="auto", kl=True, decode=tokenizer.decode
        )
        print(_table(name, files, found, time.monotonic() - began_s))
        worst = max(worst, found.row("logittree").max or 0.0)
    print(f"largest |Δ log p| of logittree: {worst:.1e}, promised: {FLOOR:.0e}")
    return int(worst > FLOOR)


def _source(file: Path, renderer: Renderer, options: argparse.Namespace) -> Source:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "traces.db", create=True) as store:
        import_path(store, file)
        trajectory = build(store.calls())
    return from_trajectories(
        [trajectory], renderer, max_head_tokens=options.max_head_tokens, max_tokens=options.max_tokens
    )


def _table(name: str, files: list[Path], found: Drift, took_s: float) -> str:
    shown = ", ".join(file.stem for file in files)
    lines = [f"## {name or shown}", "", f"{shown}; reference: {' and '.join(found.references)}", ""]
    lines += ["| scheme / cause | mean | p99 | max | KL | tokens | lost |", "|---|---|---|---|---|---|---|"]
    for row in found.rows:
        label = f"&nbsp;&nbsp;{row.cause}" if row.cause else f"**{row.scheme}**"
        lines.append(f"| {label} | {_numbers(row)} | {row.tokens:,} | {'' if row.cause else f'{row.lost:,}'} |")
    lines += [
        "",
        f"{found.frequency:.0%} of the episodes lost context, these {found.depth:.1%} of their context tokens;",
    ]
    lines += [f"{found.unique_tokens:,} distinct context tokens; {took_s:.0f} s.", *(f"{n}." for n in found.notes), ""]
    return "\n".join(lines)


def _numbers(row: DriftRow) -> str:
    values = (row.mean, row.p99, row.max, row.kl)
    return " | ".join("-" if v is None else f"{v:.1e}" if abs(v) < 1e-3 else f"{v:.3f}" for v in values)


def _machine() -> str:
    names = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
