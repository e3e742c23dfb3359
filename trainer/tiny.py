"""A tokenizer and a model made on the spot: real splitting rules and chat templates, a vocabulary of a thousand.

Three styles, each with the pre-tokenizer, the added tokens and a chat template in the manner of a real family:

    qwen3     ChatML; tools; thinking is dropped before the last user query; refuses a second system message
    llama3    headers; content is trimmed; one tool call a turn
    smollm2   ChatML; no tools argument, no tool role words, a default system text
"""

from pathlib import Path
from typing import Literal

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

Style = Literal["qwen3", "llama3", "smollm2"]

WORDS = (
    " the of and to in is you that it for on are as with his they at be this from have or by one had not but what all "
    " were when we there can an which their said if do will each about how up out them then she many some so these "
    " user assistant system tool function name arguments type object string properties required description parameters "
    " file read write bash edit content result error path command output line return import def class True False None"
)
"""Common words; every one becomes a token of its own, with and without a leading space."""

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pre-tokenizer pattern of Qwen2 and Qwen3 (their tokenizer.json)."""
LLAMA_SPLIT = QWEN_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
"""Pre-tokenizer pattern of Llama 3: digits in groups of three."""

_ADDED: dict[Style, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "qwen3": (
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    ),
    "llama3": (
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ),
        (),
    ),
    "smollm2": (("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"), ()),
}
"""(special, added but not special), as in the families' own tokenizer files."""

_ENDS: dict[Style, tuple[str | None, str, str]] = {
    "qwen3": (None, "<|im_end|>", "<|endoftext|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"),
    "smollm2": ("<|im_start|>", "<|im_end|>", "<|im_end|>"),
}
"""(bos, eos, pad)."""


def template(style: Style) -> str:
    """The chat template of a style, as jinja text."""
    return (Path(__file__).parent / "templates" / f"{style}.jinja").read_text(encoding="utf-8").removesuffix("\n")


def _merges(alphabet: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens beyond the bytes, and the merges that build each word from its left end."""
    tokens: dict[str, None] = dict.fromkeys(alphabet)
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS.split():
        for spelled in (word, "Ġ" + word, word.capitalize()):
            left = spelled[0]
            for char in spelled[1:]:
                merges[left, char] = None
                left += char
                tokens[left] = None
    return list(tokens), list(merges)


def tiny_tokenizer(style: Style = "qwen3") -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer with the splitting rules, added tokens and chat template of a family."""
    tokens, merges = _merges(sorted(pre_tokenizers.ByteLevel.alphabet()))
    special, added = _ADDED[style]
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    if style == "smollm2":
        splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        pattern = Regex(QWEN_SPLIT if style == "qwen3" else LLAMA_SPLIT)
        splits = [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    if style == "qwen3":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in added])
    bos, eos, pad = _ENDS[style]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos, pad_token=pad)
    tokenizer.chat_template = template(style)
    return tokenizer


def tiny_model(
    tokenizer: PreTrainedTokenizerBase,
    *,
    seed: int = 0,
    layers: int = 2,
    width: int = 32,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """A Llama of `layers` layers with random weights; the same seed gives the same weights. In evaluation mode."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1 << 18,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype).eval()
