"""A row to look at: what is trained stands out, in colour or in brackets."""

import pytest
from chats import compacted, renderer

from recorder.errors import ExportError
from trainer.inspect import TRAINED, find, inspect
from trainer.samples import samples
from trainer.trie import TokenTrie

SAMPLED = [
    '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call><|im_end|>',
    "fixed<|im_end|>",
    "it was broken<|im_end|>",
]


def test_the_trained_stretches_are_what_was_sampled() -> None:
    main, _ = TokenTrie.build(samples(compacted(), renderer("qwen3")).samples).rows()
    shown = inspect(main, renderer("qwen3").tokenizer)
    assert [shown.plain[s.start : s.end] for s in shown.spans if s.style == TRAINED] == SAMPLED


def test_without_colour_they_stand_in_brackets() -> None:
    main, _ = TokenTrie.build(samples(compacted(), renderer("qwen3")).samples).rows()
    shown = inspect(main, renderer("qwen3").tokenizer, brackets=True).plain
    assert [part.split("⟧")[0] for part in shown.split("⟦")[1:]] == SAMPLED


def test_long_context_is_cut_and_the_cut_is_counted() -> None:
    main, _ = TokenTrie.build(samples(compacted(), renderer("qwen3")).samples).rows()
    first = int(main.loss_mask.argmax())
    assert f" ⋯ {first - 8} tokens ⋯ " in inspect(main, renderer("qwen3").tokenizer, around=4).plain
    assert "⋯" not in inspect(main, renderer("qwen3").tokenizer, around=None).plain


def test_a_row_is_found_by_its_number_and_says_whose_tokens_it_trains() -> None:
    found = find([compacted(), compacted()], renderer("qwen3"), 3)
    assert (found.session, found.row.branch) == ("s", 1)
    title = found.title().splitlines()
    assert title[0].startswith("s:1: ")
    assert ", forked from branch 0 at token " in title[0]
    assert title[1].startswith("  call 6: 3 tokens from ")  # d, one, <|im_end|>
    assert title[1].endswith("; main, summarized, rendered, advantage 1")


def test_a_row_beyond_the_last_is_refused_with_their_count() -> None:
    with pytest.raises(ExportError, match="row 2: expected one of 2, counted from 0"):
        find([compacted()], renderer("qwen3"), 2)
