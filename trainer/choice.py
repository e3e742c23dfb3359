"""What trains: a choice over the calls of a tree, and for each call that it leaves out the reason."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from trainer.rollouts import Rollout
from treebuilder.tree import Kind, Turn


class Reason(StrEnum):
    """Why a call's sampled tokens carry no loss."""

    SIDE_CALL = "side_call"
    """A helper call of the harness: a title, a topic, a safety check."""
    COUNT_TOKENS = "count_tokens"
    WARMUP = "warmup"
    ABORTED = "aborted"
    """The reply did not come to its end, so the harness did not use it as it stands."""
    RETRIED = "retried"
    """A whole reply, but the client sent the same request again."""
    OPAQUE = "opaque"
    """What was sent is not what the model saw (server-side edits), or cannot be known."""
    NOT_RENDERED = "not_rendered"
    """The chat template has no exact split of prompt and completion; the detail has its words."""
    NO_REWARD = "no_reward"
    """Other rollouts have a reward of the name asked for, this one has none."""
    FILTERED = "filtered"
    """The user's choice; the detail says which."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What trains. What does not is excused, never forgotten."""

    main: bool = True
    subagents: bool = True
    summaries: bool = True
    side_calls: bool = False
    aborted: bool = False
    """Cut replies too, without a stop token, and whole ones that were asked for again."""
    opaque: bool = False
    kinds: frozenset[Kind] | None = None
    """Only calls of these kinds; None = all."""
    harness: str = ""
    """Only calls of this harness; empty = all."""
    min_reward: float | None = None
    """Only rollouts that earned at least this; None = all."""

    @classmethod
    def of(
        cls,
        words: Iterable[str],
        *,
        kinds: Iterable[Kind] | None = None,
        harness: str = "",
        min_reward: float | None = None,
    ) -> "Choice":
        """What the words of `TRAINS` name trains, and nothing else."""
        named = {TRAINS[word]: True for word in words}
        given = dict.fromkeys(TRAINS.values(), False) | named
        chosen = None if kinds is None else frozenset(kinds)
        return cls(**given, kinds=chosen, harness=harness, min_reward=min_reward)


TRAINS = {
    "main": "main",
    "subagent": "subagents",
    "summary": "summaries",
    "side": "side_calls",
    "aborted": "aborted",
    "opaque": "opaque",
}
"""Word for a user -> field of `Choice`."""


def left_out(turn: Turn, choice: Choice, retry: Turn | None) -> tuple[Reason | None, str]:
    """Why a call that sampled something does not train, and what says so; None = it does. `retry`: the same again."""
    reply = turn.reply
    assert reply is not None
    if turn.kind == Kind.COUNT_TOKENS:
        return Reason.COUNT_TOKENS, ""
    if turn.kind == Kind.WARMUP:
        return Reason.WARMUP, ""
    if turn.kind == Kind.SIDE_CALL and not choice.side_calls:
        return Reason.SIDE_CALL, turn.lane
    if turn.opaque and not choice.opaque:
        return Reason.OPAQUE, turn.opaque
    if not reply.complete and not choice.aborted:
        return Reason.ABORTED, reply.error or turn.call.error or turn.call.outcome.value
    if retry is not None and not choice.aborted:
        return Reason.RETRIED, f"sent again as call {retry.call.seq}"
    if turn.lane.startswith("agent:") and not choice.subagents:
        return Reason.FILTERED, turn.lane
    if turn.kind == Kind.SUMMARY_REQUEST and not choice.summaries:
        return Reason.FILTERED, turn.kind.value
    if turn.lane == "main" and turn.kind != Kind.SUMMARY_REQUEST and not choice.main:
        return Reason.FILTERED, turn.lane
    if choice.kinds is not None and turn.kind not in choice.kinds:
        return Reason.FILTERED, turn.kind.value
    if choice.harness and turn.hints.harness != choice.harness:
        return Reason.FILTERED, f"harness {turn.hints.harness or 'unknown'}"
    return None, ""


def unearned(earned: Rollout | None, choice: Choice) -> tuple[Reason | None, str]:
    """The same by what its rollout earned, where rewards count; `earned`: None = nothing."""
    if earned is None:
        return Reason.NO_REWARD, ""
    if choice.min_reward is not None and earned.reward < choice.min_reward:
        return Reason.FILTERED, f"reward {earned.reward:g} below {choice.min_reward:g}"
    return None, ""
