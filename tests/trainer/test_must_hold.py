"""What must hold of rows, on recorded and on simulated sessions, against an oracle that knows no trie.

The oracle is the set of contexts: token i of call c was sampled behind `P_c + S_c[:i]`. It must carry loss exactly
once, in a row that begins with that context; nothing else may. Contexts are compared by a rolling hash of their tokens.
"""

import random
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from chats import assistant, fresh_renderer, reply, text, thinking, tool_call, tool_result, turn, user

from recorder.importing import read_har
from recorder.message import Message
from trainer.rows import Row
from trainer.samples import Choice, Selection, conserved, samples
from trainer.trie import Ids, Sample, TokenTrie
from treebuilder.build import build
from treebuilder.tree import Kind, Trajectory

sys.path.insert(0, str(Path(__file__).parents[1] / "treebuilder"))
from simulate import EDITS, simulate, tree_of

CAPTURES = Path(__file__).parents[1] / "captures"
NAMES = tuple(sorted(f"{path.parent.name}/{path.stem}" for path in CAPTURES.glob("*/*.har")))
STYLES = ("qwen3", "llama3", "smollm2")
EVERYTHING = Choice.of(["main", "subagent", "summary", "side", "aborted", "opaque"])


def contexts(ids: Ids) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """For each position a hash of all tokens up to it."""
    powers = np.cumprod(np.full(len(ids), 0x9E3779B97F4A7C15, dtype=np.uint64))  # wraps
    return np.cumsum((ids.astype(np.uint64) + np.uint64(1)) * powers, dtype=np.uint64)


def check(selection: Selection) -> list[Row]:
    """All that must hold; the rows."""
    trie = TokenTrie.build(selection.samples)
    rows = list(conserved(selection, trie.rows()))
    whole = [contexts(one.ids()) for one in selection.samples]
    sampled = {
        int(h) for one, hashes in zip(selection.samples, whole, strict=True) for h in hashes[len(one.prompt_ids) :]
    }
    lost: list[int] = []
    for row in rows:
        lost += [int(h) for h in contexts(row.ids)[row.loss_mask]]
    assert len(lost) == len(set(lost)), "a token is trained twice"
    assert set(lost) == sampled, "what is trained is not what was sampled"
    assert sum(o.stop - o.start for row in rows for o in row.owners) == selection.trained_tokens
    for row in rows:
        if row.parent is not None and int(contexts(row.ids)[row.fork]) in sampled:
            assert row.loss_mask[row.fork], "the first token after a fork is lost"
        if row.parent is not None:
            assert not row.loss_mask[: row.fork].any(), "the parent's part is trained again"
    assert (len(rows), trie.branch_tokens) == demanded(selection.samples, whole)
    return rows


def demanded(samples: tuple[Sample, ...], whole: list[np.ndarray[tuple[int], np.dtype[np.uint64]]]) -> tuple[int, int]:
    """Rows and row tokens that forks demand: the contexts that no longer one goes on from."""
    inner = {int(h) for hashes in whole for h in hashes[:-1]}
    ends = {int(hashes[-1]): len(hashes) for hashes in whole if len(hashes)}
    leaves = [length for end, length in ends.items() if end not in inner]
    return len(leaves), sum(leaves)


@pytest.mark.parametrize(
    ("style", "name"), [("qwen3", n) for n in NAMES] + [("llama3", n) for n in NAMES[::4]] + [("smollm2", NAMES[-1])]
)
def test_on_recorded_sessions(style: str, name: str) -> None:
    trajectory = build(read_har(CAPTURES / f"{name}.har"))
    renderer = fresh_renderer(style)
    for session in trajectory.sessions:
        check(samples(trajectory, renderer, session=session))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(4))
def test_on_simulated_sessions_with_every_edit(style: str, seed: int) -> None:
    rng = random.Random(seed)
    edits = [*EDITS, *rng.choices(EDITS, k=8)]
    rng.shuffle(edits)
    trajectory = tree_of(simulate(seed, edits))
    got = samples(trajectory, fresh_renderer(style), choice=EVERYTHING)
    rows = check(got)
    assert len(got.samples) + got.silent == len(trajectory.turns), [e.detail for e in got.excused]
    assert len(rows) > 5
    assert len(check(samples(trajectory, fresh_renderer(style)))) > 3


def test_on_a_group_of_rollouts_in_one_trie() -> None:
    """Sixteen sessions that start alike, each sampled twice over: one trie spans them, and each is trained once."""
    found: list[Sample] = []
    for number in range(16):
        asked, spoken = user("fix it"), assistant(f"{'wxyz'[number % 4]} try")
        turns = (
            turn(0, asked, reply=reply(f"{'wxyz'[number % 4]} try"), kind=Kind.ROOT, session=f"s{number}"),
            turn(
                1, asked, spoken, user("go on"), reply=reply(f"{chr(97 + number)} done"), parent=0, session=f"s{number}"
            ),
        )
        found += samples(Trajectory(turns), fresh_renderer("qwen3") if not number else RENDERER).samples
    trie = TokenTrie.build(found)
    rows = trie.rows()
    assert len(rows) == 16
    lost = sum(int(row.loss_mask.sum()) for row in rows)
    alike = 12 * len(found[0].completion_ids)  # four ways to start: the other twelve sampled the same tokens
    assert lost == sum(len(s.completion_ids) for s in found) - alike
    assert sum(o.stop - o.start for row in rows for o in row.owners) == trie.sampled_tokens


RENDERER = fresh_renderer("qwen3")


class TestThinkStripping:
    """Qwen3's template drops the thinking of turns before the last user message: each such message forks."""

    def rounds(self, count: int) -> Trajectory:
        turns, prefix = [], [user("fix it")]
        for i in range(count):
            blocks = (thinking(f"hm {i} hm"), text(f"well {i}"))
            turns.append(
                turn(
                    i, *prefix, reply=reply(*blocks), kind=Kind.APPEND if i else Kind.ROOT, parent=i - 1 if i else None
                )
            )
            prefix += [assistant(*blocks), user(f"and {i}")]
        return Trajectory(tuple(turns))

    def test_every_sampled_token_is_trained(self) -> None:
        got = samples(self.rounds(9), RENDERER)
        assert not got.excused
        rows = check(got)
        assert sum(int(row.loss_mask.sum()) for row in rows) == got.sampled_tokens
        assert got.sampled_tokens == sum(
            len(RENDERER.segments.encode(f"<think>\nhm {i} hm\n</think>\n\nwell {i}<|im_end|>")) for i in range(9)
        )

    def test_each_row_shares_its_trunk_with_the_one_before(self) -> None:
        """A row forks where the thinking stood that the template dropped: behind the last but one user message."""
        got = samples(self.rounds(9), RENDERER)
        rows = check(got)
        assert [row.parent for row in rows] == [None, *range(8)]
        assert [row.fork for row in rows[1:]] == [len(s.prompt_ids) for s in got.samples[:-1]]

    def test_a_loop_of_tool_calls_keeps_its_thinking_and_is_one_row(self) -> None:
        turns, prefix = [], [user("fix it")]
        for i in range(6):
            blocks = (thinking(f"hm {i}"), tool_call(f'{{"path": "{i}"}}', id=f"t{i}"))
            turns.append(
                turn(
                    i,
                    *prefix,
                    reply=reply(*blocks, stop="tool_use"),
                    kind=Kind.APPEND if i else Kind.ROOT,
                    parent=i - 1 if i else None,
                )
            )
            prefix += [assistant(*blocks), user(tool_result(f"seen {i}", id=f"t{i}"))]
        assert len(check(samples(Trajectory(tuple(turns)), RENDERER))) == 1


class TestEdges:
    def one(self, *turns: object) -> Selection:
        return samples(Trajectory(tuple(turns)), RENDERER)  # type: ignore[arg-type]

    def decoded(self, got: Selection, index: int = 0) -> str:
        return str(RENDERER.tokenizer.decode(got.samples[index].completion_ids))

    def test_an_empty_reply_trains_its_stop_token(self) -> None:
        got = self.one(turn(0, user("hi"), reply=reply(), kind=Kind.ROOT))
        assert self.decoded(got) == "<|im_end|>"
        check(got)

    def test_a_reply_that_is_only_a_tool_call(self) -> None:
        got = self.one(turn(0, user("hi"), reply=reply(tool_call(), stop="tool_use"), kind=Kind.ROOT))
        assert self.decoded(got) == '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call><|im_end|>'
        check(got)

    def test_a_tool_call_whose_arguments_are_no_json(self) -> None:
        got = self.one(turn(0, user("hi"), reply=reply(tool_call('{"path": a}'), stop="tool_use"), kind=Kind.ROOT))
        assert self.decoded(got) == '<tool_call>\n{"name": "read", "arguments": {"path": a}}\n</tool_call><|im_end|>'
        assert got.fallbacks["invalid_arguments"] == 1
        check(got)

    def test_a_reply_cut_by_max_tokens_has_no_stop_token(self) -> None:
        got = self.one(turn(0, user("hi"), reply=reply("half a", stop="max_tokens"), kind=Kind.ROOT))
        assert self.decoded(got) == "half a"
        check(got)

    def test_what_was_evicted_and_comes_back_is_the_old_branch_again(self) -> None:
        """A clear, then a restore: the call behind it goes on in the row that it had been evicted from."""
        asked, first = user("fix it"), assistant(tool_call(id="t1"))
        seen, gone = user(tool_result("long", id="t1")), user(tool_result("[gone]", id="t1"))
        grown = (assistant("so"), user("and"))
        got = self.one(
            turn(0, asked, reply=reply(tool_call(id="t1"), stop="tool_use"), kind=Kind.ROOT),
            turn(1, asked, first, seen, reply=reply("so"), parent=0),
            turn(2, asked, first, gone, *grown, reply=reply("well"), kind=Kind.CLEARED, parent=1),
            turn(3, asked, first, seen, *grown, reply=reply("back"), kind=Kind.UNKNOWN, parent=2),
        )
        kept, cleared = check(got)
        assert [o.sample for o in kept.owners] == [0, 1, 3]
        assert [o.sample for o in cleared.owners] == [2]
        assert cleared.parent == 0

    def test_a_session_without_a_sampled_token_gives_no_rows(self) -> None:
        got = self.one(turn(0, user("hi"), reply=None, kind=Kind.ROOT))
        assert (got.samples, got.silent, got.sampled_tokens) == ((), 1, 0)
        assert check(got) == []

    @pytest.mark.parametrize("spelled", ["<|im_end|>", "<tool_call>", "<|im_start|>assistant\n", "</think>"])
    def test_a_reply_that_spells_a_special_token_is_text(self, spelled: str) -> None:
        said = f"a {spelled} b"
        echoed = (user("hi"), assistant(said), user("and"))
        got = self.one(
            turn(0, user("hi"), reply=reply(said), kind=Kind.ROOT),
            turn(1, *echoed, reply=reply("ok"), parent=0),
        )
        (row,) = check(got)
        special = {i for t, i in RENDERER.segments.added.items()}
        assert [i for i in np.asarray(got.samples[0].completion_ids) if i in special] == [
            RENDERER.segments.added["<|im_end|>"]
        ]
        assert self.decoded(got) == f"{said}<|im_end|>"
        assert len(row.owners) == 2

    @pytest.mark.parametrize("said", ["é🎉漢字", "👩‍👩‍👧 family", "e\u0301", "\u2028\u2029", "\U0001f1e9\U0001f1ea"])
    def test_unicode_comes_back_whole_and_grows_in_one_row(self, said: str) -> None:
        got = self.one(
            turn(0, user("hi"), reply=reply(said), kind=Kind.ROOT),
            turn(1, user("hi"), assistant(said), user(said), reply=reply("ok"), parent=0),
        )
        assert self.decoded(got) == unicodedata.normalize("NFC", said) + "<|im_end|>"  # as Qwen's tokenizer has it
        assert len(check(got)) == 1

    def test_one_call_that_the_template_refuses_stops_no_export(self) -> None:
        stern = fresh_renderer(
            "qwen3",
            "{% if messages[-1].content == 'bad' or messages | length > 1 and messages[1].content == 'bad' %}"
            "{{ raise_exception('no user query found') }}{% endif %}" + str(RENDERER.tokenizer.chat_template),
        )
        bad, good = (turn(i, user(t), reply=reply("ok"), kind=Kind.ROOT) for i, t in enumerate(("bad", "good")))
        got = samples(Trajectory((bad, good)), stern)
        assert [(e.turn, e.reason) for e in got.excused] == [(0, "not_rendered")]
        assert got.excused[0].detail.endswith("it says: no user query found")
        assert [t.index for t in got.turns] == [1]
        check(got)


def grown(turns: int, chars: int) -> Trajectory:
    """A session whose prefix gets long: each call reads a file of so many characters."""
    made, prefix = [], [user("fix it")]
    for i in range(turns):
        call = tool_call(f'{{"path": "{i}"}}', id=f"t{i}")
        made.append(
            turn(
                i,
                *prefix,
                reply=reply(call, stop="tool_use"),
                kind=Kind.APPEND if i else Kind.ROOT,
                parent=i - 1 if i else None,
            )
        )
        words: Message = user(tool_result(f"{i} " + "the file " * (chars // 9), id=f"t{i}"))
        prefix += [assistant(call), words]
    return Trajectory(tuple(made))


def test_prefixes_of_200k_tokens_are_one_row() -> None:
    got = samples(grown(12, 90_000), RENDERER)
    (row,) = check(got)
    assert len(row) > 200_000
