"""What each rollout is worth against its group: one number per session, however often its context forked.

    grpo      (r - mean) / std of the group     DeepSeekMath, section 4.1; std over n - 1, as in trl and verl
    dr-grpo   r - mean                          "Understanding R1-Zero-Like Training": no division by std
    rloo      r - mean of the others            Ahmadian et al. 2024; = (r - mean) n / (n - 1)
    raw       r                                 no baseline

    rewards 1, 0, 0, 1      grpo 0.866, -0.866, -0.866, 0.866      dr-grpo 0.5, -0.5, -0.5, 0.5

Counting rows instead would let a rollout that forked into five of them weigh five times in the mean (METHOD.md,
section 3). A group whose rewards are all equal, or of one rollout, has nothing to compare: its advantages are 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from statistics import fmean, stdev
from typing import Literal, Protocol

from recorder.call import Call
from recorder.message import Exchange
from recorder.rewards import Reward
from recorder.wire import read
from treebuilder.tree import Trajectory, Turn

Advantages = Literal["grpo", "dr-grpo", "rloo", "raw"]

LOOKED_AT = 8  # ours: calls of a session among which the first with tools is looked for; titles and checks have none
_TAGGED = re.compile(r"\s*<([\w-]+)>.*</\1>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one session earned."""

    reward: float
    group: str
    advantage: float


class _Rewarded(Protocol):
    """What is used of `recorder.store.Store`."""

    def rewards(self, name: str | None = None) -> list[Reward]: ...

    def calls(self, *, session: str | None = None) -> Iterable[Call]: ...


def from_store(store: _Rewarded, *, name: str, how: Advantages = "grpo") -> dict[str, Rollout]:
    """Every session with a reward of that name, by session. Those without a group are of their first prompt's."""
    given = store.rewards(name)
    prompts = {one.session: first_prompt(store.calls(session=one.session)) for one in given if one.group is None}
    return rollouts(given, how=how, prompts=prompts)


def rollouts(
    rewards: Iterable[Reward], *, how: Advantages = "grpo", prompts: Mapping[str, str] | None = None
) -> dict[str, Rollout]:
    """Advantages within groups. `prompts`: session -> first prompt, for rewards without a group; empty = alone."""
    groups: dict[str, list[Reward]] = {}
    for one in rewards:
        prompt = (prompts or {}).get(one.session, "")
        group = one.group or (prompt_group(prompt) if prompt else f"session:{one.session}")
        groups.setdefault(group, []).append(one)
    return {
        one.session: Rollout(one.value, group, advantage)
        for group, members in groups.items()
        for one, advantage in zip(members, advantages([m.value for m in members], how=how), strict=True)
    }


def advantages(rewards: list[float], *, how: Advantages = "grpo") -> list[float]:
    """One per rollout of a group."""
    if how == "raw":
        return rewards
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean, n = fmean(rewards), len(rewards)
    scale = {"grpo": 1 / stdev(rewards), "dr-grpo": 1.0, "rloo": n / (n - 1)}[how]
    return [(r - mean) * scale for r in rewards]


def prompt_group(prompt: str) -> str:
    """The name of the group of all sessions that begin with this prompt."""
    return "prompt:" + blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def first_prompt(calls: Iterable[Call]) -> str:
    """What the user asked first: the prompt of the first call that offers tools, else of the first that can be read."""
    found = ""
    for call in islice(calls, LOOKED_AT):
        exchange = read(call)
        if isinstance(exchange, Exchange) and exchange.kind == "generate" and (prompt := _prompt(exchange)):
            if exchange.head.tools:
                return prompt
            found = found or prompt
    return found


def turn_prompt(turn: Turn) -> str:
    """The prompt of a call in the tree."""
    return _prompt(turn.exchange)


def _prompt(exchange: Exchange) -> str:
    """The last text of the last user message; what harnesses put around it stands in tags of its own."""
    for message in reversed(exchange.messages):
        if message.role == "user":
            texts = [b.text.strip() for b in message.blocks if b.kind == "text" and b.text.strip()]
            return next((t for t in reversed(texts) if not _TAGGED.fullmatch(t)), texts[-1] if texts else "")
    return ""


def origins(trajectory: Trajectory) -> dict[str, str]:
    """Session -> the session whose rollout it is part of: itself, or the one whose tool call started it."""
    above: dict[str, str] = {}
    for turn in trajectory.turns:
        if turn.session in above:
            continue
        started = turn.hints.parent_session
        if not started and turn.origin is not None:
            started = trajectory.turns[turn.origin].session
        above[turn.session] = started or turn.session
    found = {}
    for session in above:
        at, seen = session, {session}
        while (up := above.get(at, at)) not in seen:
            at = up
            seen.add(at)
        found[session] = at
    return found
