"""Masks as they are drawn in trainer/masks.py. Each test names the break seen to turn it red."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.engines.step import Targets
from trainer.engines.units import plan
from trainer.masks import ancestor_mask, causal_mask, needed, subtree_end
from trainer.trie import Sample, TokenTrie


def drawn(mask: Tensor) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]


def test_a_token_sees_its_ancestors_and_not_its_siblings() -> None:
    """Red when `end` is dropped from the comparison."""
    trie = TokenTrie.build([Sample([1, 2], [3]), Sample([1, 2], [4, 5])])

    assert trie.ids_T.tolist() == [1, 2, 3, 4, 5]
    assert drawn(ancestor_mask(torch.arange(5), torch.as_tensor(subtree_end(trie)))) == [
        "x....",
        "xx...",
        "xxx..",
        "xx.x.",
        "xx.xx",
    ]


def test_a_unit_behind_a_prefix_sees_all_of_it() -> None:
    """Red when the triangle starts at the first key."""
    assert drawn(causal_mask(2, seen=3, device=torch.device("cpu"))) == ["xxxx.", "xxxxx"]


def test_tokens_behind_the_last_predictor_are_not_computed() -> None:
    """Red when every token of the trie is taken: 4 and 9 9 predict nothing that is trained."""
    trie = TokenTrie.build([Sample([1, 2], [3, 4]), Sample([1, 2, 3, 9, 9], [])])

    assert trie.ids_T.tolist() == [1, 2, 3, 4, 9, 9]
    assert trie.ids_T[needed(trie, Targets.of(trie).before_U)].tolist() == [1, 2, 3]


def test_units_of_a_trunk_three_legs_and_a_spine() -> None:
    """Red when a bush may grow past its size, or a chunk forgets the one before it."""
    trunk, spine = list(range(10, 18)), list(range(30, 36))
    legs = [Sample([*trunk, 1], [2, 3]), Sample([*trunk, 4], [5, 6]), Sample([*trunk, 8], [9, 9])]
    trie = TokenTrie.build([*legs, Sample([*trunk, *spine], [7])])
    cut = plan(trie, Targets.of(trie).before_U, chunk_tokens=5, bush_tokens=4)

    units = [(trie.ids_T[u.token_L].tolist(), u.seen, u.parent, u.runs) for u in cut.units]
    assert units == [
        ([10, 11, 12, 13, 14], 0, -1, ((0, 5, False),)),
        ([15, 16, 17], 5, 0, ((0, 3, False),)),
        ([8, 9], 8, 1, ((0, 2, False),)),
        ([30, 31, 32, 33, 34], 8, 1, ((0, 5, False),)),
        ([35], 13, 3, ((0, 1, False),)),
        ([1, 2, 4, 5], 8, 1, ((0, 2, False), (2, 4, False))),
    ]
    assert (cut.computed_tokens, cut.longest_path) == (20, 14)
