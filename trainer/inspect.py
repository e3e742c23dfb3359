"""A row as text: trained tokens stand out, long context is cut in the middle of each stretch."""

from itertools import pairwise

from rich.text import Text
from transformers import PreTrainedTokenizerBase

from trainer.rows import Row

TRAINED = "bold black on green"
CONTEXT = "dim"


def inspect(row: Row, tokenizer: PreTrainedTokenizerBase, *, around: int | None = 60) -> Text:
    """The row's tokens in order. `around`: context tokens shown on each side of what is trained; None = all."""
    said = Text()
    share = int(row.loss_mask.sum()) / max(len(row), 1)
    above = "" if row.parent is None else f", forked from branch {row.parent} at token {row.fork:,}"
    said.append(f"branch {row.branch}: {len(row):,} tokens, {share:.1%} trained{above}\n", style="bold")
    borders = [0, *((row.loss_mask[1:] != row.loss_mask[:-1]).nonzero()[0] + 1).tolist(), len(row)]
    for start, stop in pairwise(borders):
        ids = row.ids[start:stop].tolist()
        if not ids:
            continue
        if row.loss_mask[start]:
            said.append(tokenizer.decode(ids), style=TRAINED)
        elif around is None or len(ids) <= 2 * around:
            said.append(tokenizer.decode(ids), style=CONTEXT)
        else:
            said.append(tokenizer.decode(ids[:around]), style=CONTEXT)
            said.append(f" ⋯ {len(ids) - 2 * around:,} tokens ⋯ ", style="italic cyan")
            said.append(tokenizer.decode(ids[-around:]), style=CONTEXT)
    return said
