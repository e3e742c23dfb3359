"""Step time and peak memory of the exact engines, as a share of what sharing can save at most.

    python benchmarks/engines.py                       CPU, one thread: each run in a process of its own
    python benchmarks/engines.py --trunk               peak memory of depth_first with recomputation as the trunk grows
    python benchmarks/engines.py --device cuda ...     one GPU, see gpu.sh

R = branch tokens / trie tokens. Attention is not shared as tokens are: what a trie saves are its early tokens, and the
late ones look back furthest. `bound` is the speed-up if every multiplication cost the same: linear layers by token,
attention by token pair, the head by scored token. `one row a call` runs every call as a sequence of its own.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from trainer.engines import Engine, Step, engine
from trainer.engines.depth_first import DepthFirst
from trainer.engines.separate import Separate
from trainer.engines.step import Targets
from trainer.engines.units import plan
from trainer.losses import Objective, nll
from trainer.trie import Sample, TokenTrie

VOCABULARY = 4096
ENGINES = ("one row a call", "separate", "packed", "depth_first")


class RowPerCall:
    """Every call a trie of its own, with the weight it has in the whole."""

    def backward(self, model: torch.nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        one = nll(over=trie.sampled_tokens)
        steps = [Separate().backward(model, TokenTrie.build([s]), objective=one) for s in trie.samples]
        return Step(torch.stack([step.loss for step in steps]).sum(), (), {}, "one row a call")

    def logprobs(self, model: torch.nn.Module, trie: TokenTrie) -> tuple[torch.Tensor, ...]:
        return tuple(Separate().logprobs(model, TokenTrie.build([s]))[0] for s in trie.samples)

    def states(self, model: torch.nn.Module, trie: TokenTrie) -> tuple[torch.Tensor, ...]:
        return tuple(Separate().states(model, TokenTrie.build([s]))[0] for s in trie.samples)


@dataclass(frozen=True, slots=True)
class Shape:
    hidden: int
    layers: int
    device: str
    dtype: str

    def model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=self.hidden,
            intermediate_size=self.hidden * 11 // 4,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 64,
            num_key_value_heads=self.hidden // 128,
            max_position_embeddings=1 << 17,
        )
        model: torch.nn.Module = LlamaForCausalLM(config).to(self.device, getattr(torch, self.dtype))
        return model

    def work(self, tokens: int, pairs: int, scored: int) -> float:
        """Multiply-adds of one forward."""
        linear = self.hidden**2 * (2 + 2 * 0.5 + 3 * 2.75)  # q o, k v at half the heads, gate up down
        return self.layers * (tokens * linear + pairs * 2 * self.hidden) + scored * self.hidden * VOCABULARY


def tokens(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, VOCABULARY, count)]


def group(*, trunk: int, rollouts: int, turns: int, observed: int) -> Iterator[Sample]:
    """Rollouts of one task: one long prompt, then each its own way."""
    rng = np.random.default_rng(0)
    shared = tokens(rng, trunk)
    for rollout in range(rollouts):
        context = shared
        for _ in range(turns):
            prompt, reply = context + tokens(rng, observed), tokens(rng, 40)
            yield Sample(prompt, reply, rollout=rollout)
            context = prompt + reply


def clearing(*, head: int, turns: int, observed: int, every: int) -> Iterator[Sample]:
    """Every few turns all tool results but the last two become a placeholder."""
    rng = np.random.default_rng(0)
    context, placeholder = tokens(rng, head), tokens(rng, 4)
    results: list[list[int]] = []
    replies: list[list[int]] = []
    for turn in range(turns):
        if turn and turn % every == 0:
            results = [placeholder] * max(len(results) - 2, 0) + results[-2:]
        results.append(tokens(rng, observed))
        body = [token for pair in zip(results, [*replies, []], strict=True) for part in pair for token in part]
        replies.append(tokens(rng, 40))
        yield Sample(context + body, replies[-1], rollout=0)


def compaction(*, head: int, cycles: int, turns: int, observed: int) -> Iterator[Sample]:
    """The history is replaced by a summary, again and again."""
    rng = np.random.default_rng(0)
    start = tokens(rng, head)
    for _ in range(cycles):
        context = start + tokens(rng, 80)
        for _ in range(turns):
            prompt, reply = context + tokens(rng, observed), tokens(rng, 40)
            yield Sample(prompt, reply, rollout=0)
            context = prompt + reply


def captured(path: Path, *, head: int, longest: int) -> list[Sample]:
    """A recorded session through a chat template, its head shortened for a small machine."""
    from recorder.importing import read_har
    from trainer.render import Renderer
    from trainer.sources import from_trajectories
    from trainer.tiny import tiny_tokenizer
    from treebuilder.build import build

    source = from_trajectories(
        [build(read_har(path))], Renderer(tiny_tokenizer("qwen3")), max_head_tokens=head, max_tokens=longest
    )
    return [sample for episode in source.episodes for sample in episode.samples]


def cases(scale: int) -> dict[str, Callable[[], Iterable[Sample]]]:
    captures = Path(__file__).parent.parent / "tests" / "captures"
    long, short = 1500 * scale, 60 * scale
    simulated: dict[str, Callable[[], Iterable[Sample]]] = {
        "group of 8": partial(group, trunk=long, rollouts=8, turns=2, observed=short),
        "tool results cleared": partial(clearing, head=1000 * scale, turns=20, observed=short, every=2),
        "cleared at every turn": partial(clearing, head=1000 * scale, turns=14, observed=30 * scale, every=1),
        "compacted six times": partial(compaction, head=long, cycles=6, turns=4, observed=short),
    }
    real: dict[str, Callable[[], Iterable[Sample]]] = {
        f"{harness} {name}": partial(
            captured, captures / harness / f"{name}.har", head=600 * scale, longest=12_000 * scale
        )
        for harness, name in (("claude-code", "autocompact"), ("opencode", "tools_anthropic"))
    }
    return simulated | real


def made(name: str) -> Engine:
    return RowPerCall() if name == "one row a call" else engine(name)


def bound(trie: TokenTrie, shape: Shape) -> float:
    """Work of separate branches over the work of the trie."""
    targets = Targets.of(trie)
    needed = np.concatenate([u.token_L for u in plan(trie, targets.before_U, chunk_tokens=None, bush_tokens=1).units])
    scored = len(targets.token_U)
    lengths: NDArray[np.int64] = trie.stop_N[trie.leaf_B]
    apart = shape.work(int(lengths.sum()), int((lengths * (lengths + 1) // 2).sum()), scored)
    return apart / shape.work(len(needed), int((trie.depth_T[needed] + 1).sum()), scored)


def measured(run: Callable[[], object], *, device: str) -> tuple[float, float]:
    """Seconds and peak MB of one call, above what was held before; on CPU processor seconds, whatever else runs."""
    if device == "cuda":
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held, start = torch.cuda.memory_allocated(), time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - start, (torch.cuda.max_memory_allocated() - held) / 1e6
    held_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    run()
    return time.process_time() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held_kb) / 1e3


def apart(work: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """In a forked process, so that a peak is its own; the parent has run no tensor operation yet."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        seconds, megabytes = work()
        os.write(write, f"{seconds} {megabytes}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    seconds, megabytes = (float(number) for number in text.split()) if text else (float("nan"), float("nan"))
    return seconds, megabytes


def step_of(name: str | Engine, samples: list[Sample], shape: Shape) -> tuple[float, float]:
    model, trie = shape.model(), TokenTrie.build(samples)
    ours = made(name) if isinstance(name, str) else name
    warm = TokenTrie.build([Sample([1, 2, 3], [4]), Sample([1, 5], [6])])
    ours.backward(model, warm, objective=nll())

    def run() -> None:
        model.zero_grad(set_to_none=False)
        ours.backward(model, trie, objective=nll())

    return measured(run, device=shape.device)


def compare(shape: Shape, *, rounds: int, scale: int, only: str) -> None:
    print("| trie | tokens | R | bound | engine | step s | x separate | share of R | share of bound | peak MB |")
    print("|---|---:|---:|---:|---|---:|---:|---:|---:|---:|")
    for name, make in cases(scale).items():
        if only not in name:
            continue
        samples = list(make())
        trie = TokenTrie.build(samples)
        if not trie.sampled_tokens:
            print(f"| {name} | 0 | | | nothing short enough to run here | | | | | |")
            continue
        limit = bound(trie, shape)
        found: dict[str, list[tuple[float, float]]] = {which: [] for which in ENGINES}
        for number in range(rounds):
            for which in ENGINES:
                if which == "one row a call" and number:
                    continue  # slow, and no target depends on it
                work = partial(step_of, which, samples, shape)
                found[which].append(work() if shape.device == "cuda" else apart(work))
        seconds = {which: statistics.median(s for s, _ in runs) for which, runs in found.items()}
        for which in ENGINES:
            gain = seconds["separate"] / seconds[which]
            peak = statistics.median(mb for _, mb in found[which])
            print(
                f"| {name} | {trie.unique_tokens} | {trie.ratio:.2f} | {limit:.2f} | {which} | {seconds[which]:.2f} "
                f"| {gain:.2f} | {gain / trie.ratio:.2f} | {gain / limit:.2f} | {peak:.0f} |",
                flush=True,
            )


def grow(shape: Shape, *, longest: int, chunk_tokens: int) -> None:
    """A trunk with four legs of 64 tokens; only the path's keys, values and their gradients may grow."""
    per_token = 2 * 2 * shape.layers * (shape.hidden // 2) * getattr(torch, shape.dtype).itemsize
    print("| trunk tokens | peak MB | grown MB | keys, values and gradients MB | ratio |")
    print("|---:|---:|---:|---:|---:|")
    first: tuple[int, float] | None = None
    trunk = 4096
    while trunk <= longest:
        rng = np.random.default_rng(0)
        shared = tokens(rng, trunk)
        samples = [Sample(shared + tokens(rng, 32), tokens(rng, 32)) for _ in range(4)]
        work = partial(step_of, DepthFirst(chunk_tokens=chunk_tokens), samples, shape)
        _, peak = work() if shape.device == "cuda" else apart(work)
        first = first or (trunk, peak)
        grown, expected = peak - first[1], (trunk - first[0]) * per_token / 1e6
        ratio = f"{grown / expected:.2f}" if expected else ""
        print(f"| {trunk} | {peak:.0f} | {grown:.0f} | {expected:.0f} | {ratio} |", flush=True)
        trunk *= 2


def machine(device: str) -> str:
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 128")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="on CPU; processor seconds of all of them are counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=int, default=1, help="multiplies context lengths")
    parser.add_argument("--only", default="", help="part of a trie's name")
    parser.add_argument("--trunk", action="store_true")
    parser.add_argument("--longest", type=int, default=32_768)
    parser.add_argument("--chunk-tokens", type=int, default=1024)
    args: Any = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("expected a CUDA device; torch sees none")
    torch.set_num_threads(args.threads)
    shape = Shape(args.hidden, args.layers, args.device, args.dtype)
    print(f"{machine(args.device)}; Llama, {args.layers} layers of {args.hidden}, {args.dtype}\n")
    if args.trunk:
        grow(shape, longest=args.longest, chunk_tokens=args.chunk_tokens)
    else:
        compare(shape, rounds=args.rounds, scale=args.scale, only=args.only)


if __name__ == "__main__":
    main()
