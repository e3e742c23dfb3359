"""Which edit a token's trained context is wrong about, read off the tokens: kinds only give the edits their names.

naive-compressed knows the end of the story, so the first edit after a call is to blame; naive-full still sees what had
gone, so the last edit before it is. Where the trained context is token for token the one the model had, none is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trainer.episodes import Episode
from trainer.physical import stream, threads
from trainer.schemes import OWN_ENGINE, Plan
from trainer.trie import Sample

NONE = "none"
"""The trained context is the one the token was sampled in: the floor."""
EDIT = "edit"
"""An edit whose kind nobody said."""
UNTOLD = "retokenised"
"""Messages only grew, yet tokens differ: a reply was rendered otherwise when it came back."""
FINAL_WALK = ("naive-compressed", "sdcc")
"""Schemes whose contexts are those of `R_N`."""
GROWING = ("root", "append", "forked", "model_switched")
"""Kinds that leave everything before them in place."""


def causes(one: Plan) -> Iterator[str]:
    """For each of the plan's samples the edit that its context is wrong about."""
    samples = one.episode.samples
    edits = {index: found for members in threads(samples) for found in [_edits(one, members)] for index in members}
    for part, origin in zip(one.samples, one.origins, strict=True):
        if one.scheme not in OWN_ENGINE and _same(part, samples[origin.sample], origin.start):
            yield NONE
        elif one.scheme in FINAL_WALK:  # knows the end of the story: the first edit after the call
            yield next((kind for index, kind in edits[origin.sample] if index > origin.sample), UNTOLD)
        else:  # still sees, or was encoded seeing, what had gone: the last edit before the call
            last = next((kind for index, kind in reversed(edits[origin.sample]) if index <= origin.sample), None)
            yield last or (NONE if one.scheme in OWN_ENGINE else UNTOLD)


def _edits(one: Plan, members: Sequence[int]) -> list[tuple[int, str]]:
    """The calls of a thread whose context did not go on from all of the one before, each with the edit's name."""
    views = stream([one.episode.samples[i] for i in members]).views
    found = []
    for before, view, index in zip(views, views[1:], members[1:], strict=False):
        if not np.array_equal(view[: len(before)], before):
            kind = one.episode.kinds[index]
            found.append((index, EDIT if not kind else UNTOLD if kind in GROWING else kind))
    return found


def _same(part: Sample, original: Sample, start: int) -> bool:
    prompt = np.asarray(part.prompt_ids)
    return len(prompt) == len(original.prompt_ids) + start and bool((prompt == original.ids()[: len(prompt)]).all())


def evicted_share(episode: Episode) -> float:
    """Share of the tokens that ever stood in a context of the episode and were evicted later."""
    streams = [stream([episode.samples[i] for i in members]) for members in threads(episode.samples)]
    total = sum(len(one.ids_H) for one in streams)
    return sum(int((one.omega_H < len(one.ids_H)).sum()) for one in streams) / total if total else 0.0
