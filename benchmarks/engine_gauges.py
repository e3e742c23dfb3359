"""What engines are timed with: a model of a given size, seconds, memory, and the most that sharing can save.

Memory is counted allocation by allocation while a step runs, so it depends neither on the machine nor on its load.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from engine_tries import VOCABULARY
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from trainer.engines import Engine, Step, cost
from trainer.engines.cost import Work
from trainer.engines.separate import Separate
from trainer.engines.step import Targets
from trainer.engines.units import plan
from trainer.losses import Objective, nll
from trainer.trie import TokenTrie


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

    def operations(self, work: Work, scored: int) -> float:
        """Multiply-adds of one forward."""
        linear = self.hidden**2 * (2 + 2 * 0.5 + 3 * 2.75)  # q o, k v at half the heads, gate up down
        body = work.tokens * linear + work.pairs * 2 * self.hidden
        return self.layers * body + scored * self.hidden * VOCABULARY


def bound(trie: TokenTrie, shape: Shape) -> float:
    """Work of separate branches over the work of the trie, each token and each pair computed once."""
    before_U = Targets.of(trie).before_U
    cut = plan(trie, before_U, chunk_tokens=None, bush_tokens=0)
    scored = len(before_U)
    apart, once = cost.separate(trie, before_U), cost.depth_first(cut, kernels=True)
    return shape.operations(apart, scored) / shape.operations(once, scored)


def seconds(run: Callable[[], object], *, device: str) -> float:
    """On CPU processor seconds, whatever else runs."""
    if device == "cuda":
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    run()
    return time.process_time() - start


def peak_mb(run: Callable[[], object], *, device: str) -> float:
    """The most that tensors hold during a run, above what they held before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - held) / 1e6
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    results: Any = recorded.profiler
    events = list(results.kineto_results.experimental_event_tree())
    found: list[tuple[int, int, int]] = []
    while events:
        event = events.pop()
        events.extend(event.children)
        fields = event.extra_fields
        if hasattr(fields, "total_allocated"):
            found.append((event.start_time_ns, fields.alloc_size, fields.total_allocated))
    found.sort()
    return (max(total for _, _, total in found) - (found[0][2] - found[0][1])) / 1e6


def stepper(model: torch.nn.Module, one: Engine, trie: TokenTrie) -> Callable[[], None]:
    def run() -> None:
        one.backward(model, trie, objective=nll())
        model.zero_grad(set_to_none=True)

    return run


def machine(device: str) -> str:
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
