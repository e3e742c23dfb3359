"""A row to look at: what is trained stands out."""

from chats import compacted, renderer

from trainer.inspect import TRAINED, inspect
from trainer.samples import samples
from trainer.trie import TokenTrie


def test_the_trained_stretches_are_what_was_sampled() -> None:
    main, after = TokenTrie.build(samples(compacted(), renderer("qwen3")).samples).rows()
    shown = inspect(main, renderer("qwen3").tokenizer)
    assert [shown.plain[s.start : s.end] for s in shown.spans if s.style == TRAINED] == [
        '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call><|im_end|>',
        "fixed<|im_end|>",
        "it was broken<|im_end|>",
    ]
    assert "forked from branch 0 at token" in inspect(after, renderer("qwen3").tokenizer).plain


def test_long_context_is_cut_and_the_cut_is_counted() -> None:
    main, _ = TokenTrie.build(samples(compacted(), renderer("qwen3")).samples).rows()
    first = int(main.loss_mask.argmax())
    assert f" ⋯ {first - 8} tokens ⋯ " in inspect(main, renderer("qwen3").tokenizer, around=4).plain
    assert "⋯" not in inspect(main, renderer("qwen3").tokenizer, around=None).plain
