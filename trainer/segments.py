"""Tokenise rendered text piece by piece: cut at the added tokens, look each piece up, tokenise only what is new.

    <|im_start|>user\\nhi<|im_end|>\\n    ->    [<|im_start|>] [user\\nhi] [<|im_end|>] [\\n]

A tokenizer splits its input at its added tokens before it does anything else, so the pieces give the same ids as the
whole text. That holds unless added tokens reach into their surroundings (lstrip, rstrip, single_word, matched after
normalisation) or a prefix is put before the text's first word; such tokenizers get the whole text at once.

Content that spells an added token is text, never control: `escape` breaks the spelling before a template sees it, and
the pieces are tokenised by a copy of the tokenizer that knows no added tokens.
"""

import json
import re
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from recorder.errors import RenderError
from trainer.trie import Ids

BREAK = "\ufdd0"
"""A Unicode noncharacter, "for internal use": stands inside a spelled token; doubled where content itself has it."""

_EMPTY: Ids = np.zeros(0, dtype=np.int32)
_REACHING = ("lstrip", "rstrip", "single_word")
_PREFIXING = ("Metaspace", "Prepend")
CACHED_CHARS = 1 << 24  # ours: text looked up rather than tokenised; above that `forget` drops it
KEPT = 64  # ours: threads whose last text is remembered; sessions seen have up to a dozen open at once


@dataclass(slots=True, eq=False)
class _Seen:
    """A text up to its last added token, and its ids."""

    text: str
    ids: Ids


@dataclass(slots=True, eq=False)
class Segments:
    """A tokenizer as rendered text needs it: linear in what is new."""

    tokenizer: PreTrainedTokenizerBase
    added: dict[str, int] = field(init=False)
    """Every added token and its id."""
    special: frozenset[str] = field(init=False)
    """The added tokens that are control only (`special: true`); the rest may be sampled as words."""
    whole: bool = field(init=False)
    """True = this tokenizer must see the whole text."""
    _plain: Tokenizer = field(init=False)
    _cut: re.Pattern[str] = field(init=False)
    _cache: dict[str, Ids] = field(init=False, default_factory=dict)
    _seen: list[_Seen] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        decoder = self.tokenizer.added_tokens_decoder
        self.added = {str(token.content): int(i) for i, token in decoder.items()}
        self.special = frozenset(str(token.content) for token in decoder.values() if token.special)
        longest_first = sorted((re.escape(t) for t in self.added if t), key=lambda t: (-len(t), t))
        self._cut = re.compile("|".join(longest_first) or r"(?!)")
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        self.whole = backend is None
        if backend is not None:
            rules = json.loads(backend.to_str())
            shape = json.dumps([rules["normalizer"], rules["pre_tokenizer"]])
            self.whole = any(f'"{name}"' in shape for name in _PREFIXING) or any(
                any(token[flag] for flag in _REACHING) or (token["normalized"] and rules["normalizer"])
                for token in rules["added_tokens"]
            )
            if not self.whole:
                self._plain = Tokenizer.from_str(
                    json.dumps(
                        rules | {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
                    )
                )

    def forget(self) -> None:
        """Drop the texts that were seen, and what was looked up if it is much; ids come out the same."""
        self._seen.clear()
        if sum(map(len, self._cache)) > CACHED_CHARS:
            self._cache.clear()

    def escape(self, content: str) -> str:
        """Content as a template may see it: no added token is spelled in it, no half of a surrogate pair."""
        if not content.isascii():
            content = content.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace(BREAK, BREAK * 2)
        return self._cut.sub(lambda m: m[0][0] + BREAK + m[0][1:], content)

    def unescape(self, text: str) -> str:
        return text if BREAK not in text else re.sub(f"{BREAK}({BREAK}?)", r"\1", text)

    def encode(self, text: str) -> Ids:
        """Ids of a text from its start, content escaped. One that goes on where an earlier one ended costs its end."""
        if self.whole:
            return self._whole(text)
        best = max((s for s in self._seen if text.startswith(s.text)), key=lambda s: len(s.text), default=None)
        if best is not None:
            self._seen.remove(best)
        start, pieces = (len(best.text), [best.ids]) if best else (0, [_EMPTY])
        tail, last = self._pieces(text, start)
        until = np.concatenate([*pieces, *tail[:-1]])
        if last:
            self._seen = [*self._seen[1 - KEPT :], _Seen(text[:last], until)]
        return np.concatenate([until, tail[-1]])

    def encode_after(self, before: str, text: str) -> Ids:
        """Ids of `text` where it goes on behind `before`, whose ids are fixed: nothing merges across the border."""
        if not self.whole:
            return np.concatenate(self._pieces(text, 0)[0])
        head, both = self._whole(before), self._whole(before + text)
        if not np.array_equal(both[: len(head)], head):
            raise RenderError(
                "tokenizer: expected the prompt's ids to start the whole turn's, they merge at the border"
            )
        return both[len(head) :]

    def _pieces(self, text: str, start: int) -> tuple[list[Ids], int]:
        """Ids from `start` on, in pieces, the last one behind the last added token; and where that piece begins."""
        last, pieces = start, []
        for match in self._cut.finditer(text, start):
            pieces.append(self._piece(text[last : match.start()]))
            pieces.append(self._token(match[0]))
            last = match.end()
        pieces.append(self._piece(text[last:]))
        return pieces, last

    def _whole(self, text: str) -> Ids:
        if BREAK in text:
            at = self.unescape(text[text.index(BREAK) - 1 :])[:24]
            raise RenderError(
                f"tokenizer: expected text that spells no added token, got {at!r}, and cannot keep it apart"
            )
        return np.asarray(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)

    def last_special(self, text: str, start: int) -> tuple[int, int] | None:
        """Where the last special token in `text[start:]` begins and ends; None = there is none."""
        found = None
        for match in self._cut.finditer(text, start):
            if match[0] in self.special:
                found = match.span()
        return found

    def _token(self, content: str) -> Ids:
        if content not in self._cache:
            self._cache[content] = np.array([self.added[content]], dtype=np.int32)
        return self._cache[content]

    def _piece(self, text: str) -> Ids:
        if not text:
            return _EMPTY
        ids = self._cache.get(text)
        if ids is None:
            ids = np.array(self._plain.encode(self.unescape(text), add_special_tokens=False).ids, dtype=np.int32)
            self._cache[text] = ids
        return ids
