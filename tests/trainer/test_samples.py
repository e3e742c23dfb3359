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


def test_excused_tokens_are_the_replys_own() -> None:
    title = selected(Trajectory((turn(0, user("hi"), reply=reply("the file"), kind=Kind.SIDE_CALL),)))
    assert title.excused_tokens == {"side_call": 2}


@pytest.mark.parametrize(
    ("choice", "turns"),
    [
        (Choice(side_calls=True), [0, 1, 3, 4, 5]),
        (Choice(aborted=True), [1, 2, 3, 4, 5]),
        (Choice(opaque=True), [1, 3, 4, 5, 6]),
        (Choice(summaries=False), [1, 3, 5]),
        (Choice(kinds=frozenset({Kind.SUMMARIZED})), [5]),
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
