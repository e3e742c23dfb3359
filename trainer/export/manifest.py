"""What an export holds, next to the data: counts, conservation, hashes, versions. No clock: same input, same bytes."""

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
from transformers import PreTrainedTokenizerBase

from recorder.errors import ExportError
from trainer.samples import Selection
from trainer.split import Split
from trainer.trie import TokenTrie

VERSION = 1


@dataclass(slots=True)
class Counts:
    """Sums over the sessions written so far."""

    trajectories: int = 0
    calls: int = 0
    """Calls looked at, whatever became of them."""
    rows: int = 0
    branch_tokens: int = 0
    """Tokens of one row per branch."""
    trie_tokens: int = 0
    """Tokens that an exact shared pass computes."""
    call_tokens: int = 0
    """Tokens of one row per call."""
    trained_calls: int = 0
    trained_tokens: int = 0
    excused_calls: Counter[str] = field(default_factory=Counter)
    excused_tokens: Counter[str] = field(default_factory=Counter)
    silent_calls: int = 0
    """Calls that sampled nothing."""
    owned_tokens: int = 0
    """Tokens trained by the records as written: what conservation is checked against."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)
    mismatches: Counter[str] = field(default_factory=Counter)
    """Calls whose served ids are not the template's, by cause; which ones is in `mismatches.jsonl`."""
    parts: Counter[str] = field(default_factory=Counter)
    """Sessions that train, by part of a split."""
    rewarded: int = 0
    """Sessions that train with a reward."""
    groups: set[str | int] = field(default_factory=set)
    idle_tokens: int = 0
    """Trained tokens whose advantage is 0."""

    def add(self, selection: Selection, trie: TokenTrie) -> None:
        self.trajectories += 1
        self.calls += selection.calls
        self.branch_tokens += trie.branch_tokens
        self.trie_tokens += trie.unique_tokens
        self.call_tokens += trie.call_tokens
        self.trained_calls += len(selection.samples)
        self.trained_tokens += selection.trained_tokens
        self.silent_calls += selection.silent
        self.fallbacks.update(selection.fallbacks)
        self.grades.update(selection.grades)
        self.mismatches.update(one.differs.cause.value for one in selection.mismatches)
        if selection.samples and selection.split:
            self.parts[selection.split] += 1
        if selection.samples and selection.samples[0].reward is not None:
            self.rewarded += 1
            self.groups |= {s.group for s in selection.samples if s.group is not None}
        self.idle_tokens += sum(len(s.completion_ids) for s in selection.samples if s.advantage == 0)
        for one in selection.excused:
            self.excused_calls[one.reason.value] += 1
            self.excused_tokens[one.reason.value] += one.tokens

    def plus(self, other: "Counts") -> "Counts":
        total = {}
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            total[f.name] = mine | theirs if isinstance(mine, set) else mine + theirs
        return Counts(**total)

    def plain(self) -> dict[str, Any]:
        """For JSON; `of` reads it back."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"groups": sorted(self.groups, key=str)}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Counts":
        read: dict[str, Any] = {name: Counter(v) if isinstance(v, dict) else v for name, v in plain.items()}
        return cls(**read | {"groups": set(plain["groups"])})

    def check(self) -> None:
        """sampled = trained + excused, as written; every call is one of trained, excused and silent. ExportError if
        not."""
        told = self.trained_calls + sum(self.excused_calls.values()) + self.silent_calls
        if self.calls != told:
            raise ExportError(f"export: expected {self.calls} calls trained, excused or silent, got {told}")
        if self.owned_tokens != self.trained_tokens:
            raise ExportError(
                f"export: expected {self.trained_tokens} trained tokens in the rows, got {self.owned_tokens}"
            )


@dataclass(frozen=True, slots=True)
class Manifest:
    """`manifest.json`, field by field."""

    format: str
    lost: tuple[str, ...]
    """What the format has no place for."""
    source: str
    """The database or files the calls came from."""
    tokenizer: str
    """Its name as given."""
    tokenizer_hash: str
    """`sha256:` over vocabulary, rules and chat template."""
    counts: Counts
    shards: dict[str, list[str]]
    """Part -> its data files in order; each kind of file holds all rows. The part is empty where there are none."""
    files: dict[str, tuple[str, int]]
    """Name -> (`sha256:` of its bytes, its size in bytes)."""
    split: Split | None = None

    def lines(self) -> list[str]:
        """The same for a reader: what was written, what was left out and why."""
        c = self.counts
        left_out = sum(c.excused_tokens.values())
        told = [
            f"{c.rows:,} rows, {c.branch_tokens:,} tokens (one per call: {c.call_tokens:,}; shared: {c.trie_tokens:,})",
            f"{c.trained_tokens + left_out:,} tokens sampled = {c.owned_tokens:,} trained + {left_out:,} excused",
        ]
        told += [f"  {n:,} excused: {r}, {c.excused_calls[r]:,} calls" for r, n in sorted(c.excused_tokens.items())]
        told += [f"  {n:,} calls served other ids than the template's: {m}" for m, n in sorted(c.mismatches.items())]
        told += [f"  {n:,} calls said otherwise for this template: {f}" for f, n in sorted(c.fallbacks.items())]
        return told + [f"not in this format: {lost}" for lost in self.lost]

    def json(self) -> bytes:
        c = self.counts
        excused = {r: {"calls": c.excused_calls[r], "tokens": c.excused_tokens[r]} for r in sorted(c.excused_calls)}
        left_out = sum(c.excused_tokens.values())
        content = {
            "manifest_version": VERSION,
            "format": self.format,
            "lost": list(self.lost),
            "memorywalker": own_version(),
            "source": self.source,
            "tokenizer": {"name": self.tokenizer, "hash": self.tokenizer_hash},
            "scheme": "logittree",
            "counts": {
                name: asdict(c)[name]
                for name in ("trajectories", "calls", "rows", "branch_tokens", "trie_tokens", "call_tokens")
            },
            "conservation": {
                "sampled_tokens": c.trained_tokens + left_out,
                "trained_tokens": c.owned_tokens,
                "excused_tokens": left_out,
                "trained_calls": c.trained_calls,
                "excused": excused,
                "silent_calls": c.silent_calls,
            },
            "fallbacks": dict(sorted(c.fallbacks.items())),
            "grades": dict(sorted(c.grades.items())),
            "mismatches": dict(sorted(c.mismatches.items())),
            "rewards": {"sessions": c.rewarded, "groups": len(c.groups), "tokens_of_advantage_0": c.idle_tokens},
            "split": self.split
            and {
                "seed": self.split.seed,
                "parts": {name: {"share": share, "sessions": c.parts[name]} for name, share in self.split.shares},
            },
            "shards": self.shards,
            "files": {name: {"hash": h, "size_bytes": n} for name, (h, n) in sorted(self.files.items())},
        }
        return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def file_hash(path: Path) -> tuple[str, int]:
    with path.open("rb") as f:
        return "sha256:" + hashlib.file_digest(f, "sha256").hexdigest(), path.stat().st_size


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return "sha256:" + hashlib.sha256(f"{rules}\0{tokenizer.chat_template}".encode()).hexdigest()


def own_version() -> str:
    try:
        return version("memorywalker")
    except PackageNotFoundError:
        return "unknown"
