"""Writes a dataset family by family: a shard stays open for each part, and what is whole is in the journal."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainer.export.format import Format
from trainer.export.journal import Closed, Journal
from trainer.export.manifest import Counts
from trainer.export.shards import SHARD_TOKENS, Shard, settle
from trainer.samples import Selection
from trainer.trie import TokenTrie


@dataclass(slots=True)
class Writer:
    folder: Path
    journal: Journal
    format: Format
    parts: Sequence[str]
    shard_rows: int | None
    """A shard is full once it holds as many; None = only its tokens count."""
    _open: dict[str, tuple[Shard, Counts]] = field(default_factory=dict)

    def begins_at(self) -> int:
        """The first family that is not yet whole in every part."""
        return min(self.journal.done(part) for part in self.parts)

    def add(self, part: str, selections: Iterator[tuple[str, Selection]], *, families: int) -> None:
        """The sessions of one family; `families` with this one."""
        if part not in self._open:
            (self.folder / part).mkdir(exist_ok=True)
            name = f"{part or 'all'}-{len(self._shards(part)):05d}"
            self._open[part] = Shard(self.folder, self.format, name), Counts()
        shard, counts = self._open[part]
        for session, selection in selections:
            trie = TokenTrie.build(selection.samples)
            rows, trained = shard.rows, shard.trained
            shard.add(self.format.records(session, selection, trie))
            for left in selection.excused:
                shard.note("excused", {"trajectory": session} | asdict(left))
            for other in selection.mismatches:
                shard.note("mismatches", {"trajectory": session, "call": other.call} | asdict(other.differs))
            counts.add(selection, trie)
            counts.rows += shard.rows - rows
            counts.owned_tokens += shard.trained - trained
            counts.check()
        if shard.tokens >= SHARD_TOKENS or (self.shard_rows is not None and shard.rows >= self.shard_rows):
            self._close(part, families)

    def finish(self, families: int) -> dict[str, list[str]]:
        """Close what is open and give the files their names; the data files of each part."""
        for part in self.parts:
            if part not in self._open and not self.journal.done(part):
                self.add(part, iter(()), families=families)
            if part in self._open:
                self._close(part, families)
        return settle(self.folder, self.format, {part: self._shards(part) for part in self.parts})

    @property
    def counts(self) -> Counts:
        """Of all that is closed."""
        total = Counts()
        for one in self.journal.closed:
            total = total.plus(one.counts)
        return total

    @contextmanager
    def abandoning(self) -> Iterator[None]:
        """Whatever ends the block, no file stays open."""
        try:
            yield
        finally:
            for shard, _ in self._open.values():
                shard.abandon()

    def _shards(self, part: str) -> list[str]:
        return [one.shard for one in self.journal.closed if one.part == part]

    def _close(self, part: str, families: int) -> None:
        shard, counts = self._open.pop(part)
        shard.close()
        self.journal.add(Closed(part, shard.name, families, shard.rows, shard.files, counts))
