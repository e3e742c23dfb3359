"""Served ids are used as they are, and where they are not the template's, the cause is told: each by an example."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest
from chats import assistant, exchange, fresh_renderer, reply, turn, user

from recorder.call import Call, Outcome
from recorder.message import Exchange, Served
from recorder.store import Store
from trainer.export import export
from trainer.render import Rendered
from trainer.samples import samples
from trainer.served import Cause, Comparison, Difference
from trainer.trie import TokenTrie
from treebuilder.build import build
from treebuilder.tree import Kind, Trajectory

RENDERER = fresh_renderer("qwen3")
ASKED = (user("look at the file"), assistant("i look"), user("and"))


def ids(text: str) -> tuple[int, ...]:
    return tuple(RENDERER.segments.encode(text).tolist())


def served(prompt: str | tuple[int, ...], completion: str | tuple[int, ...], *, text: str = "done") -> Exchange:
    """A call whose engine served these ids; its messages are `ASKED` and the reply `text`."""
    prompt_ids = ids(prompt) if isinstance(prompt, str) else prompt
    completion_ids = ids(completion) if isinstance(completion, str) else completion
    return exchange(*ASKED, reply=reply(text, served=Served(prompt_ids, completion_ids, None)))


PROMPT = RENDERER.tokenizer.decode(RENDERER.render(exchange(*ASKED)).prompt_ids)


def got(one: Exchange) -> tuple[Rendered, Difference]:
    rendered = RENDERER.render(one)
    assert rendered.differs is not None
    return rendered, rendered.differs


def test_ids_that_are_the_templates_differ_nowhere() -> None:
    rendered = RENDERER.render(served(PROMPT, "done<|im_end|>"))
    assert (rendered.grade, rendered.differs) == ("served", None)


def test_the_same_text_in_other_tokens_is_retokenisation() -> None:
    at = PROMPT.index("the file")
    letters = tuple(i for letter in "the" for i in RENDERER.tokenizer.encode(letter, add_special_tokens=False))
    apart = (*ids(PROMPT[:at]), *letters, *ids(PROMPT[at + 3 :]))
    assert apart != ids(PROMPT)
    rendered, differs = got(served(apart, "done<|im_end|>"))
    assert (differs.where, differs.at, differs.cause) == ("prompt", len(ids(PROMPT[:at])), Cause.RETOKENISATION)
    assert tuple(rendered.prompt_ids.tolist()) == apart


def test_sampled_tokens_that_the_tokenizer_would_not_give_are_retokenisation_and_kept() -> None:
    letters = (*ids("d"), *ids("o"), *ids("n"), *ids("e"), *ids("<|im_end|>"))
    assert letters != ids("done<|im_end|>")
    rendered, differs = got(served(PROMPT, letters))
    assert (differs.where, differs.cause) == ("completion", Cause.RETOKENISATION)
    assert tuple(rendered.completion_ids.tolist()) == letters


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.replace("system\nrules", "system\nYou are helpful.\n\nrules"),
        lambda p: p.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        lambda p: p.replace("<|im_end|>\n", "<|im_end|>"),
    ],
    ids=["a system text of its own", "empty thinking", "no line ends"],
)
def test_other_wording_around_the_messages_is_the_template(change: Callable[[str], str]) -> None:
    _, differs = got(served(change(PROMPT), "done<|im_end|>"))
    assert (differs.where, differs.cause) == ("prompt", Cause.TEMPLATE)


@pytest.mark.parametrize("there", ["", "[cleared]"])
def test_a_message_that_was_not_there_is_an_edit(there: str) -> None:
    _, differs = got(served(PROMPT.replace("i look", there), "done<|im_end|>"))
    assert (differs.where, differs.cause) == ("prompt", Cause.EDIT)
    assert differs.detail.startswith("expected 'i look', got none of it; ")


def test_messages_in_another_order_are_an_edit() -> None:
    swapped = PROMPT.replace("look at the file", "X").replace("user\nand", "user\nlook at the file").replace("X", "and")
    assert got(served(swapped, "done<|im_end|>"))[1].cause is Cause.EDIT


def test_a_reply_that_says_something_else_than_was_sampled_is_an_edit() -> None:
    _, differs = got(served(PROMPT, "secret<|im_end|>", text="[removed]"))
    assert (differs.where, differs.at, differs.cause) == ("completion", 0, Cause.EDIT)


def test_a_reply_spelled_otherwise_around_its_text_is_the_template() -> None:
    assert got(served(PROMPT, "<think>\n\n</think>\n\ndone<|im_end|>"))[1].cause is Cause.TEMPLATE


def test_a_prompt_that_the_template_refuses_is_told_in_its_words() -> None:
    stern = fresh_renderer("qwen3", "{{ raise_exception('never ' + 'again') }}")
    one = stern.render(served((5, 6), (7,)))
    assert one.prompt_ids.tolist() == [5, 6]
    assert one.differs is not None
    assert (one.differs.where, one.differs.cause) == ("prompt", Cause.TEMPLATE)
    assert one.differs.detail.endswith("it says: never again")


def test_a_difference_seen_before_is_not_looked_into_again() -> None:
    decoded: list[int] = []

    def decode(some: object) -> str:
        decoded.append(len(list(some)))  # type: ignore[call-overload]
        return " ".join(map(str, some))  # type: ignore[call-overload]

    comparison = Comparison(decode)
    trunk = np.arange(5000, dtype=np.int32)
    for turns in range(20):
        grown = np.concatenate([trunk, np.arange(turns, dtype=np.int32)])
        differs = comparison.prompt(grown + (np.arange(len(grown)) == 100), grown, [user("nobody said so")])
        assert differs is not None
        assert (differs.at, differs.cause) == (100, Cause.EDIT)
    assert decoded == [256, 256, 5000]


def test_a_recorded_session_of_an_engine_that_serves_ids_trains_on_these(tmp_path: Path) -> None:
    """Chat completions as vLLM answers under `return_token_ids`; the second prompt takes in the first sample."""
    first, second = [5, 6, 7], [5, 6, 7, 8, 9, 10, 11]
    messages = [{"role": "user", "content": "hi"}]
    with Store.open(tmp_path / "t.db") as store:
        for prompt, sampled, text in ((first, [8, 9], "one"), (second, [12], "two")):
            choice = {
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
                "token_ids": sampled,
                "logprobs": {"content": [{"token": "x", "logprob": -0.5} for _ in sampled]},
            }
            store.put(
                Call(
                    *("POST", "http://127.0.0.1/v1/chat/completions", 200, Outcome.COMPLETE),
                    *((), (("content-type", "application/json"),)),
                    request_body=orjson.dumps({"model": "m", "messages": messages}),
                    response_body=orjson.dumps({"id": text, "prompt_token_ids": prompt, "choices": [choice]}),
                    started_at_utc=0.0,
                    run="r",
                )
            )
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "and"}]
        trajectory = build(store.calls())
    got = samples(trajectory, RENDERER)
    assert got.grades == ("served", "served")
    assert [(np.asarray(s.prompt_ids).tolist(), np.asarray(s.completion_ids).tolist()) for s in got.samples] == [
        (first, [8, 9]),
        (second, [12]),
    ]
    assert [np.asarray(s.logprobs).tolist() for s in got.samples] == [[-0.5, -0.5], [-0.5]]
    assert [m.differs.cause for m in got.mismatches] == [Cause.EDIT, Cause.EDIT]  # the ids are made up
    (row,) = TokenTrie.build(got.samples).rows()
    assert row.ids.tolist() == [*second, 12]
    assert row.loss_mask.tolist() == [False] * 3 + [True] * 2 + [False] * 2 + [True]


class TestReport:
    def trajectory(self) -> Trajectory:
        right = served(PROMPT, "done<|im_end|>").reply
        edited = served(PROMPT.replace("i look", ""), "done<|im_end|>").reply
        turns = [
            turn(0, *ASKED, reply=right, kind=Kind.ROOT),
            turn(1, *ASKED, reply=edited, kind=Kind.RETRY, session="t"),
            turn(2, *ASKED, reply=reply("done"), kind=Kind.ROOT, session="u"),
        ]
        return Trajectory(tuple(turns))

    def test_names_the_calls(self) -> None:
        (one,) = samples(self.trajectory(), RENDERER).mismatches
        assert (one.call, one.differs.cause, one.differs.where) == (2, Cause.EDIT, "prompt")

    def test_stands_in_the_manifest_and_in_a_file_beside_the_rows(self, tmp_path: Path) -> None:
        export([self.trajectory()], RENDERER, out=tmp_path / "d")
        manifest = orjson.loads((tmp_path / "d" / "manifest.json").read_bytes())
        assert manifest["mismatches"] == {"edit": 1}
        assert manifest["grades"] == {"rendered": 1, "served": 2}
        (line,) = map(orjson.loads, (tmp_path / "d" / "mismatches.jsonl").read_bytes().splitlines())
        assert (line["trajectory"], line["call"], line["where"], line["cause"]) == ("t", 2, "prompt", "edit")


def test_prompts_that_a_session_was_served_share_their_memory() -> None:
    turns, texts = [], PROMPT
    for n in range(30):
        prompt = ids(texts)
        turns.append(turn(n, *ASKED, reply=reply("done", served=Served(prompt, ids("done<|im_end|>"), None)),
                          kind=Kind.APPEND if n else Kind.ROOT, parent=n - 1 if n else None))  # fmt: skip
        texts += "done<|im_end|>\n<|im_start|>user\nand so on<|im_end|>\n<|im_start|>assistant\n"
    got = samples(Trajectory(tuple(turns)), RENDERER).samples
    owned = {id(s.prompt_ids if s.prompt_ids.base is None else s.prompt_ids.base): s.prompt_ids for s in got}  # type: ignore[union-attr]
    assert len(owned) == 1
