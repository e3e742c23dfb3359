"""What a dataset trains, told by contexts: each trained token as all the ids up to it, with its advantage and logprob.

Two datasets that train the same tell the same, however they cut calls into rows; a token that carries loss in a wrong
context, twice, or not at all tells otherwise.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from chats import assistant, renderer, reply, tool_call, tool_result, turn, user

from recorder.message import Served
from trainer.rollouts import Rollout
from trainer.sample import Sample
from trainer.samples import samples
from treebuilder.tree import Kind, Trajectory

Trained = tuple[tuple[int, ...], float | None, float | None]
"""Ids up to and with a token; its advantage and its logprob, None where the format has none."""

EARNED = {"s": Rollout(reward=0.0, group="g", advantage=-0.5)}


@dataclass(frozen=True)
class Read:
    """A row as a target's loader gives it."""

    ids: Sequence[int]
    mask: Sequence[int]
    advantages: Sequence[float] | None = None
    logprobs: Sequence[float | None] | None = None


@cache
def forked() -> Trajectory:
    """A compacted session with three agents that are asked the same: two say the same, one says more."""
    ids = renderer("qwen3").tokenizer("fixed<|im_end|>", add_special_tokens=False)["input_ids"]
    served = Served(None, tuple(ids), tuple(-0.25 * (i + 1) for i in range(len(ids))))
    asked, read, seen = user("fix it"), assistant(tool_call('{"path":"a"}')), user(tool_result("broken"))
    compact = user("so far: it was broken")
    return Trajectory(
        (
            turn(0, asked, reply=reply(tool_call(), stop="tool_use"), kind=Kind.ROOT),
            turn(1, asked, read, seen, reply=reply("fixed", served=served), parent=0),
            turn(2, user("look"), reply=reply("ok"), kind=Kind.ROOT, lane="agent:1"),
            turn(3, user("look"), reply=reply("ok"), kind=Kind.ROOT, lane="agent:2"),
            turn(4, user("look"), reply=reply("ok then"), kind=Kind.ROOT, lane="agent:3"),
            turn(5, compact, reply=reply("done"), kind=Kind.SUMMARIZED, parent=1),
            turn(6, compact, assistant("done"), user("more"), reply=reply("no"), parent=5),
        )
    )


@cache
def called() -> tuple[Sample, ...]:
    return samples(forked(), renderer("qwen3"), rollouts=EARNED).samples


def sampled(*, advantages: bool = True, logprobs: bool = True) -> Counter[Trained]:
    """What must be trained, told by the calls themselves: no trie, no rows."""
    told: Counter[Trained] = Counter()
    for sample in called():
        ids = sample.ids().tolist()
        for i in range(len(sample.completion_ids)):
            logprob = None if sample.logprobs is None or not logprobs else float(sample.logprobs[i])
            end = len(sample.prompt_ids) + i + 1
            told[tuple(ids[:end]), sample.advantage if advantages else None, logprob] += 1
    return told


def trained(rows: Iterable[Read]) -> Counter[Trained]:
    """What some rows train."""
    told: Counter[Trained] = Counter()
    for row in rows:
        assert len(row.ids) == len(row.mask)
        for i, marked in enumerate(row.mask):
            if marked:
                advantage = None if row.advantages is None else row.advantages[i]
                logprob = None if row.logprobs is None else row.logprobs[i]
                told[tuple(row.ids[: i + 1]), advantage, logprob] += 1
            elif row.advantages is not None:
                assert row.advantages[i] == 0.0
    return told


def program(module: ModuleType, folder: str) -> str:
    """The code in a format's docstring, over a dataset in `folder`: what its users are told to run."""
    assert module.__doc__
    blocks = [block for block in module.__doc__.split("\n\n") if all(x.startswith("    ") for x in block.splitlines())]
    code = [block for block in blocks if re.match(r" +(def |class |from |\w[\w, ]* = )", block)]
    return textwrap.dedent("\n\n".join(code)).replace("DIR", folder)
