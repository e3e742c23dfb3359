"""Step time and peak memory of the exact engines, as a share of what sharing can save at most.

    python benchmarks/engines.py                       on CPU, one thread: all tables below
    python benchmarks/engines.py --table agree         loss and gradients of every engine beside those of separate
    python benchmarks/engines.py --table steps         step time and peak memory, engine by engine
    python benchmarks/engines.py --table trunk         peak memory of depth_first with recomputation as the trunk grows
    python benchmarks/engines.py --table sdcc          what SDCC costs beside naive-compressed and logittree
    python benchmarks/engines.py --table calls         what a call costs whatever its length: cost.py's constants
    python benchmarks/engines.py --device cuda ...     one GPU, see gpu.sh

R = branch tokens / trie tokens. Attention is not shared as tokens are: what a trie saves are its early tokens, and the
late ones look back furthest. `bound` is the speed-up if every multiplication took as long: linear layers by token,
attention by token pair, the head by scored token. `one row a call` runs every call as a sequence of its own. Seconds on
CPU are processor seconds; the engines take turns, and a ratio is the median over turns. Memory is what tensors hold at
most during a step beyond what they held before: counted allocation by allocation, so it does not depend on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import numpy as np
import torch
from engine_gauges import RowPerCall, Shape, bound, machine, peak_mb, seconds, stepper
from engine_tries import cases, group, tokens

from trainer.conditioning import conditioned, diverging_tokens
from trainer.engines import Engine, engine
from trainer.engines.auto import choose
from trainer.engines.depth_first import DepthFirst
from trainer.engines.packed import Packed
from trainer.episodes import Episode
from trainer.losses import Objective, nll
from trainer.schemes import plan as lay_out
from trainer.trie import Sample, TokenTrie

ENGINES = ("separate", "packed", "depth_first", "auto")
ONE_ROW = "one row a call"
TABLES = ("agree", "steps", "trunk", "sdcc", "calls")


def table(*columns: str) -> None:
    print("| " + " | ".join(columns) + " |")
    print("|" + "|".join("---" if at == 0 else "---:" for at in range(len(columns))) + "|", flush=True)


def row(*cells: object) -> None:
    shown = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print("| " + " | ".join(shown) + " |", flush=True)


def steps(shape: Shape, *, rounds: int, scale: int, only: str) -> None:
    model = shape.model()
    print("Times faster than separate, and MB at most.\n")
    shares = ("best / R", "best / bound")
    table("trie", "tokens", "R", "bound", "separate s", ONE_ROW, *ENGINES[1:], *shares, "auto took")
    memory: list[tuple[object, ...]] = []
    warm = TokenTrie.build([Sample([1, 2, 3], [4]), Sample([1, 5], [6])])
    for which in ENGINES:
        stepper(model, engine(which), warm)()
    for name, make in cases(scale).items():
        if only not in name:
            continue
        trie = TokenTrie.build(list(make()))
        runs = {which: stepper(model, engine(which), trie) for which in ENGINES}
        found = [{which: seconds(run, device=shape.device) for which, run in runs.items()} for _ in range(rounds)]
        found_row = seconds(stepper(model, RowPerCall(), trie), device=shape.device)
        apart = statistics.median(turn["separate"] for turn in found)
        gain = {which: statistics.median(turn["separate"] / turn[which] for turn in found) for which in ENGINES}
        best, limit = max(gain["packed"], gain["depth_first"]), bound(trie, shape)
        ratios = (apart / found_row, *(gain[which] for which in ENGINES[1:]), best / trie.ratio, best / limit)
        chosen, _ = choose(model, trie)
        took = type(chosen).__name__
        row(name, trie.unique_tokens, trie.ratio, limit, apart, *ratios, took)
        peaks = [peak_mb(runs[which], device=shape.device) for which in ENGINES[:3]]
        memory.append((name, *(f"{peak:.0f}" for peak in peaks)))
    print()
    table("peak MB", *ENGINES[:3])
    for cells in memory:
        row(*cells)


def trunk(shape: Shape, *, longest: int, chunk_tokens: int) -> None:
    """A trunk with four legs of 64 tokens; only the path's keys, values and their gradients may grow."""
    model = shape.model()
    per_token = 2 * 2 * shape.layers * (shape.hidden // 2) * getattr(torch, shape.dtype).itemsize
    print(f"depth_first, chunks of {chunk_tokens}, recomputed\n")
    table("trunk tokens", "peak MB", "grown MB", "keys, values and their gradients MB", "ratio", "seconds")
    first: tuple[int, float] | None = None
    length = 4096
    while length <= longest:
        rng = np.random.default_rng(0)
        shared = tokens(rng, length)
        trie = TokenTrie.build([Sample(shared + tokens(rng, 32), tokens(rng, 32)) for _ in range(4)])
        run = stepper(model, DepthFirst(chunk_tokens=chunk_tokens), trie)
        if first is None:
            run()
        took: list[float] = []
        peak = peak_mb(lambda run=run, took=took: took.append(seconds(run, device=shape.device)), device=shape.device)  # type: ignore[misc]
        first = first or (length, peak)
        grown, expected = peak - first[1], (length - first[0]) * per_token / 1e6
        ratio = f"{grown / expected:.2f}" if expected else ""
        row(length, f"{peak:.0f}", f"{grown:.0f}", f"{expected:.0f}", ratio, f"{took[0]:.0f}")
        length *= 2


def sdcc(shape: Shape, *, rounds: int, scale: int, only: str) -> None:
    """One step of an episode under three schemes, the same engine under all."""
    model, one = shape.model(), DepthFirst()
    print("Seconds of a step; SDCC's teacher legs run without gradient through the same engine.\n")
    table("trie", "naive-compressed s", "sdcc", "logittree", "tokens trained: sdcc", "logittree", "diverging")
    for name in ("tool results cleared", "cleared at every turn", "claude-code/multiturn"):
        if only not in name:
            continue
        episode = Episode.of(tuple(cases(scale)[name]()))
        plans = {scheme: lay_out(scheme, episode) for scheme in ("naive-compressed", "sdcc", "logittree")}
        seen: dict[str, float] = {}

        def run(scheme: str, plans: Any = plans, seen: Any = seen) -> None:
            objective: Objective = nll()
            if scheme == "sdcc":
                objective = conditioned([plans[scheme]], objective, model=model, engine=one, strength=0.1)
            step = one.backward(model, TokenTrie.build(plans[scheme].samples), objective=objective)
            seen[scheme] = step.stats["tokens"]
            model.zero_grad(set_to_none=True)

        for scheme in plans:
            run(scheme)
        found = [
            {scheme: seconds(lambda s=scheme, r=run: r(s), device=shape.device) for scheme in plans}  # type: ignore[misc]
            for _ in range(rounds)
        ]
        base = statistics.median(turn["naive-compressed"] for turn in found)
        times = [statistics.median(turn[s] / turn["naive-compressed"] for turn in found) for s in ("sdcc", "logittree")]
        counts = (int(seen["sdcc"]), int(seen["logittree"]), diverging_tokens([plans["sdcc"]]))
        row(name, base, *(f"x {ratio:.2f}" for ratio in times), *counts)


def calls(shape: Shape, *, rounds: int) -> None:
    """Forward and backward of the body on few and on many tokens: the rest is what a call costs."""
    body: Any = shape.model().model
    weights = sum(p.numel() for name, p in body.named_parameters() if "embed" not in name)

    def once(length: int) -> float:
        ids = torch.ones(1, length, dtype=torch.int64, device=shape.device)

        def run() -> None:
            hidden = body(input_ids=ids, use_cache=False)[0]
            hidden.backward(torch.ones_like(hidden))

        run()
        return min(seconds(run, device=shape.device) for _ in range(3 * rounds))

    short, long = once(16), once(512)
    token = (long - short) / 496
    print(f"a token {token * 1e6:.0f} us ({6 * weights / token / 1e9:.0f} Gflop/s), ", end="")
    print(f"a call {(short - 16 * token) * 1e3:.1f} ms = {short / token - 16:.0f} tokens")


def agree(shape: Shape) -> None:
    """Exactness where it runs: fails where an engine's loss or gradient is not that of separate."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model, trie = shape.model(), TokenTrie.build(list(group(trunk=300, rollouts=4, turns=2, observed=30)))
    named: dict[str, Engine] = {
        "separate": engine("separate"),
        "packed": engine("packed"),
        "packed, dense mask": Packed(kernels=False),
        "depth_first": engine("depth_first"),
        "depth_first, caches and masks": DepthFirst(kernels=False),
        "depth_first, chunks of 128": engine("depth_first", chunk_tokens=128),
    }
    print("In float32, beside separate.\n")
    table("engine", "loss", "gradient apart")
    truth: tuple[float, torch.Tensor] | None = None
    for name, one in named.items():
        loss = float(one.backward(model, trie, objective=nll()).loss)
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        model.zero_grad(set_to_none=True)
        truth = truth or (loss, gradient)
        apart = float((gradient - truth[1]).norm() / truth[1].norm())
        row(name, f"{loss:.6f}", f"{apart:.1e}")
        if not (abs(loss - truth[0]) < 1e-4 and apart < 1e-3):
            sys.exit(
                f"{name}: expected loss {truth[0]:.6f} and the same gradient up to 1e-3, got {loss:.6f}, {apart:.1e}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=TABLES, help="one table; default: all")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 128")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="on CPU; processor seconds of all of them are counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=int, default=1, help="multiplies context lengths")
    parser.add_argument("--only", default="", help="part of a trie's name")
    parser.add_argument("--longest", type=int, default=32_768, help="trunk: tokens")
    parser.add_argument("--chunk-tokens", type=int, default=512, help="trunk")
    args: Any = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("expected a CUDA device; torch sees none")
    torch.set_num_threads(args.threads)
    shape = Shape(args.hidden, args.layers, args.device, args.dtype)
    small = Shape(min(args.hidden, 128), args.layers, args.device, args.dtype) if not args.table else shape
    exact = Shape(min(args.hidden, 256), min(args.layers, 2), args.device, "float32")
    for which in [args.table] if args.table else TABLES:
        used = {"trunk": small, "agree": exact}.get(which, shape)
        print(f"{machine(args.device)}; Llama, {used.layers} layers of {used.hidden}, {used.dtype}\n")
        match which:
            case "steps":
                steps(used, rounds=args.rounds, scale=args.scale, only=args.only)
            case "trunk":
                trunk(used, longest=args.longest, chunk_tokens=args.chunk_tokens)
            case "agree":
                agree(used)
            case "sdcc":
                sdcc(used, rounds=args.rounds, scale=args.scale, only=args.only)
            case _:
                calls(used, rounds=args.rounds)
        print()


if __name__ == "__main__":
    main()
