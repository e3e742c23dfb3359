"""Which edit a token's trained context is wrong about, read off the tokens: kinds only give the edits their names.

naive-compressed knows the end of the story, so the first edit after a call is to blame; naive-full still sees what had
gone, so the last edit before it is. Where the trained context is token for token the one the model had, none is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from trainer.episodes import Episode
from trainer.physical import stream, threads
from trainer.schemes import OWN_ENGINE, Plan
from trainer.trie import Ids, Sample

Decode = Callable[[list[int]], str]
"""Token ids to text."""

NONE = "none"
"""The trained context is the one the token was sampled in: the floor."""
EDIT = "edit"
"""An edit whose kind nobody said."""
RETOKENISED = "retokenisation"
"""Messages only grew and their text is the same, in other tokens: decoded text was encoded again."""
TEMPLATE = "template/client"
"""Messages only grew, yet the text of a reply changed: the chat template tells it otherwise once it is history, or the
client sent it back so (Claude Code: the arguments of a tool call in another order, a default filled in)."""
UNTOLD = "rendering"
"""One of these two; which one takes a tokenizer to say."""
FINAL_WALK = ("naive-compressed", "sdcc")
"""Schemes whose contexts are those of `R_N`."""
GROWING = ("root", "append", "forked", "model_switched")
"""Kinds that leave everything before them in place."""


def causes(one: Plan, decode: Decode | None = None) -> Iterator[str]:
    """For each of the plan's samples the edit that its context is wrong about."""
    samples = one.episode.samples
    edits = {
        index: found for members in threads(samples) for found in [_edits(one, members, decode)] for index in members
    }
    for part, origin in zip(one.samples, one.origins, strict=True):
        if one.scheme not in OWN_ENGINE and _same(part, samples[origin.sample], origin.start):
            yield NONE
        elif one.scheme in FINAL_WALK:  # knows the end of the story: the first edit after the call
            yield next((kind for index, kind in edits[origin.sample] if index > origin.sample), UNTOLD)
        else:  # still sees, or was encoded seeing, what had gone: the last edit before the call
            last = next((kind for index, kind in reversed(edits[origin.sample]) if index <= origin.sample), None)
            yield last or (NONE if one.scheme in OWN_ENGINE else UNTOLD)


def _edits(one: Plan, members: Sequence[int], decode: Decode | None) -> list[tuple[int, str]]:
    """The calls of a thread whose context did not go on from all of the one before, each with the edit's name."""
    samples = one.episode.samples
    views = stream([samples[i] for i in members]).views
    found = []
    for before, view, previous, index in zip(views, views[1:], members, members[1:], strict=False):
        if not np.array_equal(view[: len(before)], before):
            kind = one.episode.kinds[index]
            if kind in GROWING:
                kind = _rendered(samples[previous].ids(), np.asarray(samples[index].prompt_ids), decode)
            found.append((index, kind or EDIT))
    return found


def _rendered(before: Ids, after: Ids, decode: Decode | None) -> str:
    """Why the tokens of messages that only grew are not what they were."""
    if decode is None:
        return UNTOLD
    differs = np.flatnonzero(before[: len(after)] != after[: len(before)])
    at = int(differs[0]) if len(differs) else min(len(before), len(after))
    return RETOKENISED if decode(after[at:].tolist()).startswith(decode(before[at:].tolist())) else TEMPLATE


def _same(part: Sample, original: Sample, start: int) -> bool:
    prompt = np.asarray(part.prompt_ids)
    return len(prompt) == len(original.prompt_ids) + start and bool((prompt == original.ids()[: len(prompt)]).all())


def evicted_share(episode: Episode) -> float:
    """Share of the tokens that ever stood in a context of the episode and were evicted later."""
    streams = [stream([episode.samples[i] for i in members]) for members in threads(episode.samples)]
    total = sum(len(one.ids_H) for one in streams)
    return sum(int((one.omega_H < len(one.ids_H)).sum()) for one in streams) / total if total else 0.0
