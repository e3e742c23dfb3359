"""Tries to time engines on: simulated sessions, and recorded ones made smaller without changing their shape.

recorded   30,000 tokens of head, 12 calls, 5 branches     R 4.84
thinned    every stretch between two forks, prompts or replies keeps one token in `by`     the same tree, the same R
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from trainer.trie import Sample, TokenTrie

VOCABULARY = 4096
CAPTURES = Path(__file__).parent.parent / "tests" / "captures"
RECORDED = {
    "claude-code/multiturn": 8,
    "claude-code/manualcompact": 12,
    "claude-code/subagent": 16,
    "opencode/serve_revert_anthropic": 6,
    "opencode/compact_auto_anthropic": 6,
    "opencode/tools_responses": 6,
}
"""Harness and session, and by how much it is thinned for a small machine."""


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


def recorded(path: Path, *, by: int) -> list[Sample]:
    """A recorded session through a chat template, thinned."""
    from recorder.importing import read_har
    from trainer.render import Renderer
    from trainer.sources import from_trajectories
    from trainer.tiny import tiny_tokenizer
    from treebuilder.build import build

    source = from_trajectories([build(read_har(path))], Renderer(tiny_tokenizer("qwen3")))
    return thinned([sample for episode in source.episodes for sample in episode.samples], by=by)


def thinned(samples: list[Sample], *, by: int) -> list[Sample]:
    """Every stretch of the trie between two forks, prompt ends or reply ends keeps one token in `by`, its first."""
    trie = TokenTrie.build(samples)
    borders: list[set[int]] = [{int(a), int(b)} for a, b in zip(trie.start_N, trie.stop_N, strict=True)]
    paths = [trie.path(int(node)) for node in trie.node_S]
    for sample, path in zip(samples, paths, strict=True):
        for node in path:
            for end in (len(sample.prompt_ids), len(sample)):
                if trie.start_N[node] < end < trie.stop_N[node]:
                    borders[node].add(end)
    made = []
    for sample, path in zip(samples, paths, strict=True):
        parts: tuple[list[int], list[int]] = ([], [])
        for node in path:
            for start, stop in pairwise(sorted(borders[node])):
                if stop <= len(sample):
                    kept = np.asarray(sample.ids())[start : start + -(-(stop - start) // by)] % VOCABULARY
                    parts[stop > len(sample.prompt_ids)].extend(kept.tolist())
        made.append(Sample(parts[0], parts[1], rollout=sample.rollout, thread=sample.thread))
    return made


def cases(scale: int) -> dict[str, Callable[[], Iterable[Sample]]]:
    """By name; `scale` multiplies context lengths."""
    long, short = 1500 * scale, 60 * scale
    simulated: dict[str, Callable[[], Iterable[Sample]]] = {
        "group of 8": partial(group, trunk=long, rollouts=8, turns=2, observed=short),
        "group of 16": partial(group, trunk=long, rollouts=16, turns=1, observed=short),
        "tool results cleared": partial(clearing, head=1000 * scale, turns=20, observed=short, every=2),
        "cleared at every turn": partial(clearing, head=1000 * scale, turns=14, observed=30 * scale, every=1),
        "compacted six times": partial(compaction, head=long, cycles=6, turns=4, observed=short),
    }
    real = {name: partial(recorded, CAPTURES / f"{name}.har", by=max(by // scale, 1)) for name, by in RECORDED.items()}
    return simulated | real
