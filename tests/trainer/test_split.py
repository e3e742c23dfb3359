"""Parts of a dataset: whole families, the same ones every time, all of them filled or an error."""

import dataclasses
from pathlib import Path

import pytest
from chats import assistant, renderer, reply, turn, user

from recorder.errors import SourceError, SplitError
from recorder.importing import read_har
from recorder.message import Hints
from trainer.export import export
from trainer.held_out import parts
from trainer.kin import families
from trainer.rollouts import Rollout
from trainer.sources import Source, from_export, from_trajectories
from trainer.split import Split
from treebuilder.build import build
from treebuilder.tree import Kind, Trajectory

CAPTURES = Path(__file__).parents[1] / "captures"


def test_shares_are_read_by_name() -> None:
    assert Split.parse("train=0.9, eval=0.1", seed=3) == Split((("train", 0.9), ("eval", 0.1)), 3)
    assert Split.parse("all=1").names == ("all",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train", "expected NAME=SHARE,... with shares above 0 that sum to 1, got 'train'"),
        ("train=x,eval=0.1", "expected NAME=SHARE,... with shares above 0 that sum to 1, got 'train=x'"),
        ("train=1,eval=0", "expected NAME=SHARE,... with shares above 0 that sum to 1, got 'eval=0'"),
        ("../up=1", "expected NAME=SHARE,... with shares above 0 that sum to 1, got '../up=1'"),
        ("a=0.5,a=0.5", "expected each name once, got 'a=0.5,a=0.5'"),
        ("a=0.5,b=0.4", "expected shares that sum to 1, got 0.9 of 'a=0.5,b=0.4'"),
    ],
)
def test_what_is_no_split_is_said(text: str, words: str) -> None:
    with pytest.raises(SplitError) as caught:
        Split.parse(text)
    assert str(caught.value) == f"split: {words}"


def test_shares_are_kept_on_many_families_and_another_seed_gives_other_parts() -> None:
    keys = [f"session {i}" for i in range(4000)]
    split = Split.parse("train=0.9,eval=0.1")
    parts = [split.part(key) for key in keys]
    assert 320 <= parts.count("eval") <= 480  # 400 expected, standard deviation 19
    assert parts == [split.part(key) for key in keys]
    assert parts != [Split(split.shares, 1).part(key) for key in keys]


def family(*sessions: str) -> Trajectory:
    """Sessions that begin alike."""
    turns = [turn(i, user(sessions[0]), reply=reply("ok"), kind=Kind.ROOT, session=s) for i, s in enumerate(sessions)]
    return Trajectory(tuple(turns))


class TestFamilies:
    def test_sessions_that_begin_alike_or_go_on_from_such_a_beginning(self) -> None:
        """The picture in `trainer.kin`, and a session with another prompt."""
        asked = user("m1"), user("m2")
        turns = (
            turn(0, *asked, reply=reply("r2"), kind=Kind.ROOT, session="a"),
            turn(1, user("m1"), user("other"), reply=reply("r2"), kind=Kind.ROOT, session="d"),
            turn(2, *asked, reply=reply("q"), kind=Kind.ROOT, session="b"),
            turn(3, *asked, assistant("r2"), user("m3"), reply=reply("r"), kind=Kind.ROOT, session="c"),
        )
        assert families(Trajectory(turns)) == {"a": "a", "d": "d", "b": "a", "c": "a"}

    def test_forks_and_subagents(self) -> None:
        turns = (
            turn(0, user("one"), reply=reply("x"), kind=Kind.ROOT, session="a"),
            turn(1, user("two"), reply=reply("x"), kind=Kind.FORKED, session="b", parent=0),
            dataclasses.replace(turn(2, user("three"), reply=reply("x"), kind=Kind.ROOT, session="c"), origin=1),
            dataclasses.replace(
                turn(3, user("four"), reply=reply("x"), kind=Kind.ROOT, session="d"), hints=Hints(parent_session="c")
            ),
            turn(4, user("five"), reply=reply("x"), kind=Kind.ROOT, session="e"),
        )
        assert families(Trajectory(turns)) == {"a": "a", "b": "a", "c": "a", "d": "a", "e": "e"}

    def test_a_side_call_that_both_made_joins_no_two(self) -> None:
        turns = (
            turn(0, user("quota"), reply=reply("x"), kind=Kind.SIDE_CALL, lane="title", session="a"),
            turn(1, user("one"), reply=reply("x"), kind=Kind.ROOT, session="a"),
            turn(2, user("quota"), reply=reply("x"), kind=Kind.SIDE_CALL, lane="title", session="b"),
            turn(3, user("two"), reply=reply("x"), kind=Kind.ROOT, session="b"),
        )
        assert families(Trajectory(turns)) == {"a": "a", "b": "b"}

    def test_a_group_is_a_family(self) -> None:
        turns = [turn(i, user(s), reply=reply("x"), kind=Kind.ROOT, session=s) for i, s in enumerate("abc")]
        earned = {s: Rollout(0.0, group, 0.0) for s, group in (("a", "g"), ("b", "h"), ("c", "g"))}
        assert families(Trajectory(tuple(turns)), earned) == {"a": "a", "b": "b", "c": "a"}

    def test_sessions_that_no_id_tells_apart_in_one_recording(self) -> None:
        recorded = build(read_har(CAPTURES / "qwen" / "qwen_agent.har"))
        assert families(recorded) == {s: s for s in recorded.sessions}
        assert len(recorded.sessions) == 2


def test_a_part_that_got_nothing_is_an_error() -> None:
    split = Split.parse("a=0.5,b=0.3,c=0.2")
    split.check({"a", "b", "c"})
    with pytest.raises(SplitError, match="expected sessions in each part, got none in b, c"):
        split.check({"a"})


def parted() -> Source:
    split = Split.parse("a=0.5,b=0.5")
    mine = {p: [f"s{i}" for i in range(30) if split.part(f"s{i}") == p][:2] for p in "ab"}
    trees = [family(mine["a"][0], "x", "y"), family(mine["b"][0]), family(mine["b"][1])]
    return from_trajectories(trees, renderer("qwen3"), split=split)


def test_episodes_carry_their_part_and_no_family_is_in_two() -> None:
    source = parted()
    assert [e.split for e in source.episodes] == ["a", "a", "a", "b", "b"]
    assert [e.family for e in source.episodes[:3]] == [source.episodes[0].name] * 3
    assert [len(source.part(p).episodes) for p in "ab"] == [3, 2]
    with pytest.raises(SourceError, match="split eval: expected sessions in it, got none; there is a, b"):
        source.part("eval")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_what_is_held_out_shares_no_trunk_with_what_trains(share: float) -> None:
    from trainer.held_out import split

    for seed in range(5):
        training, held = split(parted(), share=share, seed=seed)
        assert {e.family for e in training.episodes}.isdisjoint({e.family for e in held.episodes})
        assert training.episodes
        assert held.episodes


def test_an_export_in_parts_trains_on_train_and_holds_out_eval(tmp_path: Path) -> None:
    split = Split.parse("train=0.4,eval=0.3,test=0.3")
    trees = [family(f"s{i}") for i in range(12)]
    export(trees, renderer("qwen3"), out=tmp_path / "d", split=split)
    whole = from_export(tmp_path / "d")
    training, held = parts(whole)
    names = {p: {f"s{i}" for i in range(12) if split.part(f"s{i}") == p} for p in split.names}
    assert {e.name for e in training.episodes} == names["train"]
    assert {e.name for e in held.episodes} == names["eval"] if held else False
    assert training.sampled_tokens == whole.sampled_tokens
    assert all(names.values())
    assert parts(from_trajectories(trees, renderer("qwen3")))[1] is None


def test_parts_of_which_none_is_to_train_on_are_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="split train: expected sessions in it, got none; there is a, b"):
        parts(parted())


def test_forked_sessions_of_a_real_harness_are_one_family() -> None:
    forked = build(read_har(CAPTURES / "opencode" / "fork_anthropic.har"))
    source = from_trajectories([forked], renderer("qwen3"))
    assert len(source.episodes) == 2
    assert len({e.family for e in source.episodes}) == 1
