"""A branch as one sequence with one mask: what every trainer of plain rows takes, with no loss dropped on the way.

    tokens   1  2  3  4  5  6
    call 1         [3  4  5]          two calls sampled 3 4 in the same context, so these count twice:
    call 2         [3  4]             a mask cannot say that, a second row can

    row 0    1  2  3  4  5  6    mask  . . x x x .
    row 0.1  1  2  3  4          mask  . . x x

Rows are cut behind their last trained token only where they repeat another. Every token of a row has at most one owner,
so its advantage, its logprob and its grade are that owner's own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recorder.errors import ExportError
from trainer.rows import Row, row
from trainer.sample import Floats, Ids
from trainer.samples import Selection, conserved
from trainer.trie import Owner, TokenTrie

IGNORED = -100
"""The label that losses of the Hugging Face kind skip."""


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    # L tokens

    id: str
    """`TRAJECTORY:BRANCH`, with `.1` and so on for a branch's further rows."""
    trajectory: str
    ids_L: Ids
    mask_L: NDArray[np.bool_]
    """True where trained; not shifted: position i marks ids_L[i] itself. Never at 0."""
    advantage_L: Floats
    """0.0 where not trained."""
    logprob_L: Floats
    """Nats, as served; NaN = not trained here, or not served."""
    reward: float | None
    """Of its rollout; None = none was given."""
    group: str | None
    """Rollouts compared with each other; None = with none."""
    rollout: str

    @property
    def start(self) -> int:
        """The first trained token: what is before it is prompt, all from it on response."""
        return int(self.mask_L.argmax())

    @property
    def labels_L(self) -> Ids:
        return np.where(self.mask_L, self.ids_L, IGNORED).astype(np.int32)

    @property
    def trained(self) -> int:
        return int(self.mask_L.sum())

    @property
    def served(self) -> bool:
        """Every trained token has a logprob."""
        return not bool(np.isnan(self.logprob_L[self.mask_L]).any())

    @property
    def advantage(self) -> float:
        """Of its rollout, for formats with one number a row."""
        return float(self.advantage_L[self.start])


def flats(session: str, selection: Selection, trie: TokenTrie) -> Iterator[Flat]:
    """The rows of a session, one at a time. ExportError if their loss does not add up or a row begins with a sample."""
    branches = (row(trie, branch) for branch in range(len(trie.leaf_B)))
    for one in conserved(selection, branches):
        for depth, owners in enumerate(layers(one.owners)):
            yield _flat(session, selection, one, owners, depth)


def layers(owners: Sequence[Owner]) -> list[list[Owner]]:
    """Owners, by position, in as few groups as leave no two of a group on one token."""
    found: list[list[Owner]] = []
    for owner in owners:
        free = next((layer for layer in found if layer[-1].stop <= owner.start), None)
        if free is None:
            found.append([owner])
        else:
            free.append(owner)
    return found


def _flat(session: str, selection: Selection, row: Row, owners: Sequence[Owner], depth: int) -> Flat:
    name = f"{session}:{row.branch}" + (f".{depth}" if depth else "")
    length = owners[-1].stop if depth else len(row)
    mask_L = np.zeros(length, dtype=bool)
    advantage_L, logprob_L = np.zeros(length), np.full(length, np.nan)
    for owner in owners:
        sample = selection.samples[owner.sample]
        mask_L[owner.start : owner.stop] = True
        advantage_L[owner.start : owner.stop] = sample.advantage
        if sample.logprobs is not None:
            first = owner.start - len(sample.prompt_ids)
            logprob_L[owner.start : owner.stop] = sample.logprobs[first : first + owner.stop - owner.start]
    if mask_L[0]:
        raise ExportError(f"row {name}: expected a prompt before the first sampled token, got none")
    of = selection.samples[owners[0].sample]
    group = None if of.group is None else str(of.group)
    return Flat(
        name,
        session,
        row.ids[:length],
        mask_L,
        advantage_L,
        logprob_L,
        of.reward,
        group,
        session if of.rollout is None else str(of.rollout),
    )
