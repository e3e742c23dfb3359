"""What trains, what is excused, and that the two add up."""

import dataclasses

import numpy as np
import pytest
from chats import assistant, compacted, renderer, reply, text, tool_call, tool_result, turn, user

from recorder.errors import ExportError
from trainer.rollouts import Rollout
from trainer.rows import Row
from trainer.samples import Choice, Reason, Selection, conserved, samples
from trainer.trie import TokenTrie
from treebuilder.tree import Kind, Trajectory


def selected(trajectory: Trajectory, choice: Choice = Choice()) -> Selection:  # noqa: B008
    return samples(trajectory, renderer("qwen3"), choice=choice)


def test_main_and_summary_train_and_the_rest_is_excused_with_its_reason() -> None:
    got = selected(compacted())
    assert [t.index for t in got.turns] == [1, 3, 4, 5]
    assert [(e.turn, e.reason, e.detail) for e in got.excused] == [
        (0, Reason.SIDE_CALL, "title"),
        (2, Reason.ABORTED, "complete"),
        (6, Reason.OPAQUE, "clear_tool_uses"),
    ]
    assert got.silent == 1


def test_sampled_is_trained_plus_excused() -> None:
    got = selected(compacted())
    excused = sum(got.excused_tokens.values())
    assert got.excused_tokens.keys() == {"side_call", "aborted", "opaque"}
    assert got.trained_tokens == sum(len(s.completion_ids) for s in got.samples)
    assert got.sampled_tokens == got.trained_tokens + excused


def test_excused_tokens_are_those_that_would_train() -> None:
    title = selected(Trajectory((turn(0, user("hi"), reply=reply("the file"), kind=Kind.SIDE_CALL),)))
    assert title.excused_tokens == {"side_call": 3}  # the, file, <|im_end|>


def test_excused_tokens_of_what_has_no_rendering_are_the_replys_content() -> None:
    cut = turn(0, user("hi"), reply=reply(tool_call('{"a'), stop="max_tokens"), kind=Kind.ROOT)
    got = samples(Trajectory((cut,)), renderer("llama3"))
    tokenizer = renderer("llama3").tokenizer
    alone = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ("read", '{"a'))
    assert got.excused_tokens == {"not_rendered": alone}


CHOICES = (
    Choice(),
    Choice.of(["main"]),
    Choice.of(["side", "aborted", "opaque"]),
    Choice.of(["main", "subagent", "summary", "side", "aborted", "opaque"]),
    Choice(kinds=frozenset({Kind.SUMMARIZED})),
    Choice(harness="codex"),
)


@pytest.mark.parametrize("choice", CHOICES)
def test_what_was_sampled_is_the_same_whatever_is_chosen(choice: Choice) -> None:
    whole = selected(compacted())
    got = selected(compacted(), choice)
    assert got.sampled_tokens == whole.sampled_tokens
    assert got.calls == len(got.samples) + len(got.excused) + got.silent == 8


@pytest.mark.parametrize(
    ("choice", "turns"),
    [
        (Choice(side_calls=True), [0, 1, 3, 4, 5]),
        (Choice(aborted=True), [1, 2, 3, 4, 5]),
        (Choice(opaque=True), [1, 3, 4, 5, 6]),
        (Choice(summaries=False), [1, 3, 5]),
        (Choice(main=False), [4]),
        (Choice(kinds=frozenset({Kind.SUMMARIZED})), [5]),
        (Choice(harness="codex"), []),
        (Choice.of(["main"]), [1, 3, 5]),
        (Choice.of(["summary", "side"]), [0, 4]),
        (Choice.of(["main"], kinds=[Kind.ROOT, Kind.SUMMARY_REQUEST]), [1]),
    ],
)
def test_each_choice_is_a_flag(choice: Choice, turns: list[int]) -> None:
    assert [t.index for t in selected(compacted(), choice).turns] == turns


def test_an_agent_can_be_left_out() -> None:
    agent = Trajectory((turn(0, user("hi"), reply=reply("ok"), kind=Kind.ROOT, lane="agent:7"),))
    assert len(selected(agent).samples) == 1
    (left,) = selected(agent, Choice(subagents=False)).excused
    assert (left.reason, left.detail) == (Reason.FILTERED, "agent:7")


def test_a_whole_reply_that_was_asked_for_again_is_excused() -> None:
    twice = Trajectory(
        (
            turn(0, user("hi"), reply=reply("ok"), kind=Kind.ROOT),
            turn(1, user("hi"), reply=reply("yes"), kind=Kind.RETRY, parent=0),
        )
    )
    got = selected(twice)
    assert [(e.turn, e.reason, e.detail) for e in got.excused] == [(0, Reason.RETRIED, "sent again as call 2")]
    assert [t.index for t in got.turns] == [1]


def test_a_call_that_cannot_be_rendered_is_excused_in_the_templates_words() -> None:
    cut = turn(0, user("hi"), reply=reply(tool_call('{"a'), stop="max_tokens"), kind=Kind.ROOT)
    got = samples(Trajectory((cut, turn(1, user("hi"), reply=reply("ok")))), renderer("llama3"))
    (left,) = got.excused
    assert left.reason == Reason.NOT_RENDERED
    assert left.detail.startswith("chat template: expected to find where the reply was cut")
    assert len(got.samples) == 1


def test_prompts_of_one_thread_share_their_memory() -> None:
    first = turn(0, user("hi"), reply=reply("ok"), kind=Kind.ROOT)
    grown = (user("hi"), assistant("ok"), user("more"))
    second = turn(1, *grown, reply=reply("yes"), parent=0)
    third = turn(2, *grown, assistant("yes"), user("and"), reply=reply("no"), parent=1)
    *before, last = selected(Trajectory((first, second, third))).samples
    assert all(np.asarray(s.prompt_ids).base is last.prompt_ids for s in before)


def test_samples_carry_call_rollout_thread_and_advantage() -> None:
    got = samples(compacted(), renderer("qwen3"), rollouts={"s": Rollout(0.0, "g", -0.5)})
    assert [(s.call, s.rollout, s.advantage) for s in got.samples] == [(n, "s", -0.5) for n in (2, 4, 5, 6)]
    assert [s.thread for s in got.samples] == ["s/main", "s/main", "s/summary", "s/main"]


class TestRewards:
    EARNED = {"s": Rollout(0.25, "task", -0.5)}  # noqa: RUF012

    def test_are_on_every_sample_of_the_session(self) -> None:
        got = samples(compacted(), renderer("qwen3"), rollouts=self.EARNED)
        assert {(s.reward, s.group, s.advantage) for s in got.samples} == {(0.25, "task", -0.5)}

    def test_that_others_have_excuse_a_session_that_has_none(self) -> None:
        got = samples(compacted(), renderer("qwen3"), rollouts={"other": Rollout(1.0, "task", 0.5)})
        assert not got.samples
        assert got.excused_tokens.keys() == {"side_call", "aborted", "opaque", "no_reward"}
        assert got.sampled_tokens == selected(compacted()).sampled_tokens

    def test_below_the_least_wanted_excuse_it(self) -> None:
        got = samples(compacted(), renderer("qwen3"), rollouts=self.EARNED, choice=Choice(min_reward=0.5))
        filtered = [e for e in got.excused if e.reason is Reason.FILTERED]
        assert [(e.turn, e.detail) for e in filtered] == [(n, "reward 0.25 below 0.5") for n in (1, 3, 4, 5)]
        got = samples(compacted(), renderer("qwen3"), rollouts=self.EARNED, choice=Choice(min_reward=0.25))
        assert len(got.samples) == 4

    def test_of_a_session_are_its_subagents_too_although_they_have_sessions_of_their_own(self) -> None:
        main = turn(0, user("hi"), reply=reply(tool_call()), kind=Kind.ROOT)
        helper = turn(1, user("look"), reply=reply("ok"), kind=Kind.ROOT, lane="agent:h", session="h")
        one = Trajectory((main, dataclasses.replace(helper, origin=0)))
        (sample,) = samples(one, renderer("qwen3"), session="h", rollouts=self.EARNED).samples
        assert (sample.rollout, sample.reward, sample.advantage) == ("s", 0.25, -0.5)
        own = {**self.EARNED, "h": Rollout(3.0, "look", 1.5)}
        (sample,) = samples(one, renderer("qwen3"), session="h", rollouts=own).samples
        assert (sample.rollout, sample.reward, sample.advantage) == ("h", 3.0, 1.5)


class TestConservation:
    def rows(self) -> tuple[Selection, list[Row]]:
        got = selected(compacted())
        return got, TokenTrie.build(got.samples).rows()

    def test_holds_for_the_rows_of_a_trie(self) -> None:
        got, rows = self.rows()
        assert list(conserved(got, rows)) == rows

    def test_fails_where_a_row_is_lost(self) -> None:
        got, rows = self.rows()
        with pytest.raises(ExportError, match=r"call \d: expected \d+ sampled tokens owned once each, got 0"):
            list(conserved(got, rows[1:]))

    def test_fails_where_a_call_is_neither_trained_nor_excused_nor_silent(self) -> None:
        got, rows = self.rows()
        with pytest.raises(ExportError, match="expected 8 calls trained, excused or silent, got 7"):
            list(conserved(dataclasses.replace(got, excused=got.excused[1:]), rows))

    def test_fails_where_a_token_nobody_sampled_carries_loss(self) -> None:
        got, rows = self.rows()
        mask = rows[0].loss_mask.copy()
        mask[0] = True
        with pytest.raises(ExportError, match="row 0: expected loss on owned tokens and no others, got it wrong at 0"):
            list(conserved(got, [dataclasses.replace(rows[0], loss_mask=mask), *rows[1:]]))


def test_a_tail_kept_across_a_compaction_trains_once() -> None:
    read, seen = assistant(tool_call()), user(tool_result("broken"))
    got = selected(
        Trajectory(
            (
                turn(0, user("fix it"), reply=reply(tool_call(), stop="tool_use"), kind=Kind.ROOT),
                turn(1, user("so far: nothing"), read, seen, reply=reply(text("ok")), kind=Kind.SUMMARIZED, parent=0),
            )
        )
    )
    old, new = TokenTrie.build(got.samples).rows()
    assert int(old.loss_mask.sum()) == len(got.samples[0].completion_ids)
    assert int(new.loss_mask.sum()) == len(got.samples[1].completion_ids) == 3  # o, k, <|im_end|>
