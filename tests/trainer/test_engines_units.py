"""How a trie is cut into calls of the model: few and large, each behind one path."""

from __future__ import annotations

from trainer.engines.step import Targets
from trainer.engines.units import plan
from trainer.trie import Sample, TokenTrie

#  1 2 3 4 ─┬─ 5 6 7 8              a spine of three short nodes with a leg at each fork; the last token of a
#           └─ 9 ─┬─ 10 11 12       branch predicts nothing and is not computed
#                 └─ 13 ─┬─ 14 15
#                        └─ 16 17 18 19 20 21
SPINE = [
    Sample([1, 2, 3, 4, 5, 6, 7], [8]),
    Sample([1, 2, 3, 4, 9, 10, 11], [12]),
    Sample([1, 2, 3, 4, 9, 13, 14], [15]),
    Sample([1, 2, 3, 4, 9, 13, 16, 17, 18, 19, 20], [21]),
]


def cut(samples: list[Sample], *, bush_tokens: int, spines: bool = True) -> list[tuple[list[int], int, int, int]]:
    trie = TokenTrie.build(samples)
    made = plan(trie, Targets.of(trie).before_U, chunk_tokens=None, bush_tokens=bush_tokens, spines=spines)
    return [(trie.ids_T[unit.token_L].tolist(), unit.path, unit.seen, unit.parent) for unit in made.units]


def test_a_spine_is_computed_with_the_legs_beside_it() -> None:
    """Red when a fork ends a unit, and when what units below go on from does not come first."""
    assert cut(SPINE, bush_tokens=9) == [
        ([1, 2, 3, 4, 9, 5, 6, 7], 5, 0, -1),
        ([10, 11, 13, 14, 16, 17, 18, 19, 20], 0, 5, 0),
    ]


def test_what_does_not_fit_goes_on_behind_the_path() -> None:
    """Red when the units below count the legs beside the path as seen."""
    assert cut(SPINE, bush_tokens=7) == [
        ([1, 2, 3, 4], 4, 0, -1),
        ([5, 6, 7], 0, 4, 0),
        ([9, 13, 10, 11], 2, 4, 0),
        ([14, 16, 17, 18, 19, 20], 0, 6, 2),
    ]


def test_without_spines_every_fork_ends_a_unit() -> None:
    """Caches cannot hold what hangs beside a path. Red when `spines` is not looked at."""
    assert [ids for ids, *_ in cut(SPINE, bush_tokens=7, spines=False)] == [
        [1, 2, 3, 4],
        [5, 6, 7],
        [9],
        [13, 14, 16, 17, 18, 19, 20],
        [10, 11],
    ]
