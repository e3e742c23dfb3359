"""A row as text: trained tokens stand out, long context is cut in the middle of each stretch.

in colour      a stretch that is trained on a ground of green, context dim
without        system rules ⋯ 812 tokens ⋯ user hi assistant ⟦hello<|im_end|>⟧
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text
from transformers import PreTrainedTokenizerBase

from recorder.errors import ExportError
from trainer.render import Renderer
from trainer.rollouts import Rollout
from trainer.rows import Row, row
from trainer.samples import Choice, Selection, samples
from trainer.trie import TokenTrie
from treebuilder.tree import Trajectory

TRAINED = "bold black on green"
CONTEXT = "dim"
BRACKETS = "⟦", "⟧"


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One row of what an export would write, and whose it is."""

    session: str
    row: Row
    selection: Selection

    def title(self) -> str:
        """One line for the row, one for each call that owns tokens of it."""
        one = self.row
        share = int(one.loss_mask.sum()) / max(len(one), 1)
        above = "" if one.parent is None else f", forked from branch {one.parent} at token {one.fork:,}"
        lines = [f"{self.session}:{one.branch}: {len(one):,} tokens, {share:.1%} trained{above}"]
        for owner in one.owners:
            turn, sample = self.selection.turns[owner.sample], self.selection.samples[owner.sample]
            size = owner.stop - owner.start
            what = f"{turn.lane}, {turn.kind}, {self.selection.grades[owner.sample]}, advantage {sample.advantage:g}"
            lines.append(f"  call {turn.call.seq}: {size:,} tokens from {owner.start:,} on; {what}")
        return "\n".join(lines)


def find(
    families: Sequence[Trajectory],
    renderer: Renderer,
    number: int,
    *,
    sessions: Collection[str] | None = None,
    choice: Choice = Choice(),  # noqa: B008  frozen
    rollouts: Mapping[str, Rollout] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Found:
    """Row `number` of an export, from 0, as `rows.jsonl` has them. ExportError where there are fewer."""
    count = 0
    for session, selection in _selections(families, renderer, sessions, choice, rollouts, progress):
        trie = TokenTrie.build(selection.samples)
        if number < count + len(trie.leaf_B):
            return Found(session, row(trie, number - count), selection)
        count += len(trie.leaf_B)
    raise ExportError(f"row {number}: expected one of {count:,}, counted from 0")


def _selections(
    families: Sequence[Trajectory],
    renderer: Renderer,
    sessions: Collection[str] | None,
    choice: Choice,
    rollouts: Mapping[str, Rollout] | None,
    progress: Callable[[], None],
) -> Iterator[tuple[str, Selection]]:
    for family in families:
        for session in family.sessions:
            if sessions is None or session in sessions:
                chosen = samples(family, renderer, session=session, choice=choice, rollouts=rollouts, progress=progress)
                yield session, chosen
        renderer.forget()


def inspect(row: Row, tokenizer: PreTrainedTokenizerBase, *, around: int | None = 60, brackets: bool = False) -> Text:
    """The row's tokens in order. `around`: context tokens shown on each side of what is trained; None = all.
    `brackets`: around what is trained, for readers without colour."""
    said = Text()
    borders = [0, *((row.loss_mask[1:] != row.loss_mask[:-1]).nonzero()[0] + 1).tolist(), len(row)]
    for start, stop in pairwise(borders):
        ids = row.ids[start:stop].tolist()
        if not ids:
            continue
        if row.loss_mask[start]:
            text = tokenizer.decode(ids)
            said.append(f"{BRACKETS[0]}{text}{BRACKETS[1]}" if brackets else text, style=TRAINED)
        elif around is None or len(ids) <= 2 * around:
            said.append(tokenizer.decode(ids), style=CONTEXT)
        else:
            said.append(tokenizer.decode(ids[:around]), style=CONTEXT)
            said.append(f" ⋯ {len(ids) - 2 * around:,} tokens ⋯ ", style="italic cyan")
            said.append(tokenizer.decode(ids[-around:]), style=CONTEXT)
    return said
