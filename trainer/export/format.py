"""A dataset format is a function from a session's calls to records; writing and counting are the same for all."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from trainer.samples import Selection
from trainer.trie import TokenTrie

FileKind = Literal["jsonl", "parquet", "arrow"]
"""arrow = a folder as `datasets.load_from_disk` reads it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a dataset."""

    fields: Mapping[str, object]
    """Arrays may be numpy's; NaN in an array of floats is written as null."""
    tokens: int
    """Size, by which row groups and files are cut."""
    trained: int
    """Sampled tokens that carry loss in it, counted from its own masks."""


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    records: Callable[[str, Selection, TokenTrie], Iterator[Record]]
    """Session id, its samples, their trie -> its records, in order, nothing remembered from other sessions."""
    files: tuple[FileKind, ...]
    """Each holds every record."""
    schema: pa.Schema | None = None
    """None = JSON lines alone."""
    stem: str = "train"
    """Name of its files."""
    identity: Literal["tokens", "text"] = "tokens"
    """text = the trainer tokenises anew: what was sampled may come out in other tokens."""
    advantages: bool = True
    """False = there is no place for them: every trained token weighs the same."""
    logprobs: bool = True
    """False = there is no place for what the engine gave."""

    def lost(self, *, rewarded: bool, served: bool) -> tuple[str, ...]:
        """What there is and this format has no place for, for whoever reads the manifest."""
        lost = []
        if self.identity == "text":
            lost.append("token identity: it is text, which its trainer tokenises anew")
        if rewarded and not self.advantages:
            lost.append("advantages: every trained token weighs the same")
        if served and not self.logprobs:
            lost.append("logprobs of the engine that sampled")
        return tuple(lost)
