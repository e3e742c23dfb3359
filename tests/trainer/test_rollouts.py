"""Advantages worked out by hand: a rollout counts once, however often it forked; who is compared with whom."""

from dataclasses import replace
from pathlib import Path

import pytest
from chats import assistant, compacted, renderer, turn, user

from recorder.call import Call, Outcome
from recorder.importing import read_har
from recorder.message import Hints
from recorder.rewards import Reward
from recorder.store import Store
from trainer.rollouts import (
    Advantages,
    Rollout,
    advantages,
    first_prompt,
    from_store,
    origins,
    prompt_group,
    rollouts,
)
from trainer.samples import samples
from trainer.trie import TokenTrie
from treebuilder.tree import Kind, Trajectory

CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("grpo", [0.8660254, -0.8660254, -0.8660254, 0.8660254]),  # mean 1/2; std sqrt((4 / 4) / 3) = 0.57735
        ("dr-grpo", [0.5, -0.5, -0.5, 0.5]),
        ("rloo", [2 / 3, -2 / 3, -2 / 3, 2 / 3]),  # 1 - (0 + 0 + 1) / 3
        ("raw", [1.0, 0.0, 0.0, 1.0]),
    ],
)
def test_four_rollouts_of_which_two_did_it(how: Advantages, expected: list[float]) -> None:
    assert advantages([1.0, 0.0, 0.0, 1.0], how=how) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("how", ["grpo", "dr-grpo", "rloo"])
@pytest.mark.parametrize("equal", [[0.3], [0.1, 0.1, 0.1]])
def test_where_all_earned_the_same_there_is_nothing_to_compare(how: Advantages, equal: list[float]) -> None:
    assert advantages(equal, how=how) == [0.0] * len(equal)


def test_groups_are_given_or_those_with_the_same_first_prompt_or_alone() -> None:
    got = rollouts(
        [
            Reward("a", 1.0, group="x"),
            Reward("b", 0.0),
            Reward("c", 1.0),
            Reward("d", 0.0, group="x"),
            Reward("e", 7.0),
        ],
        how="dr-grpo",
        prompts={"b": "fix it", "c": "fix it", "e": ""},
    )
    same = prompt_group("fix it")
    assert got == {
        "a": Rollout(1.0, "x", 0.5),
        "d": Rollout(0.0, "x", -0.5),
        "b": Rollout(0.0, same, -0.5),
        "c": Rollout(1.0, same, 0.5),
        "e": Rollout(7.0, "session:e", 0.0),
    }


def test_a_rollout_that_forked_into_several_rows_counts_once() -> None:
    """Rewards 1, 0 and 0; the first forked into two rows. Per rollout the mean is 1/3, per row it would be 1/2."""
    forked = compacted()
    plain = [Trajectory(tuple(replace(t, session=s) for t in forked.turns[:2])) for s in ("p", "q")]
    earned = rollouts(
        [Reward("s", 1.0), Reward("p", 0.0), Reward("q", 0.0)], how="dr-grpo", prompts=dict.fromkeys("spq", "x")
    )
    found = [
        sample
        for trajectory in (forked, *plain)
        for sample in samples(trajectory, renderer("qwen3"), rollouts=earned).samples
    ]
    rows = {s: TokenTrie.build([one for one in found if one.rollout == s]).rows() for s in "spq"}
    assert {s: len(mine) for s, mine in rows.items()} == {"s": 2, "p": 1, "q": 1}
    assert {one.rollout: round(one.advantage, 7) for one in found} == {"s": 0.6666667, "p": -0.3333333, "q": -0.3333333}
    assert sum(one.advantage for one in {s.rollout: s for s in found}.values()) == pytest.approx(0)


def call(*messages: object, tools: bool) -> Call:
    import orjson

    body = {"model": "m", "messages": messages, "max_tokens": 9}
    if tools:
        body["tools"] = [{"name": "read", "description": "reads", "input_schema": {"type": "object"}}]
    return Call("POST", "http://h/v1/messages", 200, Outcome.COMPLETE, (), (), orjson.dumps(body), b"", 0.0)


def said(*texts: str, role: str = "user") -> dict[str, object]:
    return {"role": role, "content": [{"type": "text", "text": t} for t in texts]}


class TestFirstPrompt:
    def test_is_what_the_user_typed_and_not_what_the_harness_put_around_it(self) -> None:
        wrapped = said("<system-reminder>\nnow\n</system-reminder>", "fix it", "<system-reminder>x</system-reminder>")
        assert first_prompt([call(wrapped, tools=True)]) == "fix it"

    def test_is_that_of_the_first_call_with_tools(self) -> None:
        title = call(said("Name this talk"), tools=False)
        assert first_prompt([title, call(said("fix it"), tools=True)]) == "fix it"

    def test_of_a_harness_without_tools_is_that_of_its_first_call(self) -> None:
        assert first_prompt([call(said("fix it"), tools=False), call(said("more"), tools=False)]) == "fix it"

    def test_reads_no_more_than_the_start_of_a_session(self) -> None:
        endless = (call(said(f"no tools {i}"), tools=False) if i < 8 else pytest.fail("read on") for i in range(99))
        assert first_prompt(endless) == "no tools 0"

    def test_of_captures(self) -> None:
        """As the tree shows them: the first call of the main lane."""
        expected = {
            "claude-code/subagent": "Use helpers",
            "opencode/fork_anthropic": "slate",
            "qwen/qwen_agent": "Read note A",
        }
        assert {n: first_prompt(read_har(CAPTURES / f"{n}.har")) for n in expected} == expected


def test_a_store_gives_every_rewarded_session_its_advantage(tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.db") as store:
        for name in ("claude-code/multiturn", "opencode/tools_anthropic"):
            for one in read_har(CAPTURES / f"{name}.har"):
                store.put(one)
        first, second = (s.session for s in store.sessions() if s.calls > 1)
        store.reward([Reward(first, 1.0, "ok", "g"), Reward(second, 0.0, "ok", "g"), Reward(first, 9.0)])
        assert from_store(store, name="ok", how="dr-grpo") == {
            first: Rollout(1.0, "g", 0.5),
            second: Rollout(0.0, "g", -0.5),
        }
        assert from_store(store, name="reward")[first].group == prompt_group("Read a.txt and list the folder")
        assert from_store(store, name="unknown") == {}


class TestOrigins:
    def test_a_session_that_a_tool_call_started_is_of_the_rollout_of_its_caller(self) -> None:
        main = turn(0, user("hi"), reply=None, kind=Kind.ROOT)
        one = replace(turn(1, user("a"), reply=None, kind=Kind.ROOT, session="x"), origin=0)
        two = replace(turn(2, user("b"), reply=None, kind=Kind.ROOT, session="y"), origin=1)
        assert origins(Trajectory((main, one, two))) == {"s": "s", "x": "s", "y": "s"}

    def test_headers_say_it_where_the_caller_is_not_there(self) -> None:
        one = replace(turn(0, user("a"), reply=None, session="x"), hints=Hints(parent_session="gone"))
        assert origins(Trajectory((one,))) == {"x": "gone"}

    def test_a_forked_session_is_a_rollout_of_its_own(self) -> None:
        main = turn(0, user("hi"), reply=None, kind=Kind.ROOT)
        fork = turn(1, user("hi"), assistant("a"), reply=None, kind=Kind.FORKED, parent=0, session="f")
        assert origins(Trajectory((main, fork))) == {"s": "s", "f": "f"}

    def test_sessions_that_name_each_other_end(self) -> None:
        one = replace(turn(0, user("a"), reply=None, session="x"), hints=Hints(parent_session="y"))
        two = replace(turn(1, user("a"), reply=None, session="y"), hints=Hints(parent_session="x"))
        assert set(origins(Trajectory((one, two)))) == {"x", "y"}
