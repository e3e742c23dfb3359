"""LogitTree rows of small tries, worked out by hand. Each test names the break that was seen to turn it red."""

from __future__ import annotations

from trainer.rows import row
from trainer.trie import Owner, Sample, TokenTrie


def test_a_reply_that_others_fork_inside_is_one_span_of_its_branch() -> None:
    """Red when spans of neighbouring nodes are not joined."""
    trie = TokenTrie.build([Sample([1], [2, 3, 4]), Sample([1, 2], [9])])

    assert [(r.ids.tolist(), r.owners) for r in trie.rows()] == [
        ([1, 2, 3, 4], (Owner(0, 1, 4),)),
        ([1, 2, 9], (Owner(1, 2, 3),)),
    ]


def test_a_branch_forks_from_the_first_branch_through_its_fork_point() -> None:
    """Red when the parent is the branch before: the third branch forks off the trunk, which is the first one's."""
    trie = TokenTrie.build([Sample([1, 2, 3], [4]), Sample([1, 2, 3], [5]), Sample([1, 7], [8])])

    assert [(r.branch, r.parent, r.fork) for r in trie.rows()] == [(0, None, 0), (1, 0, 3), (2, 0, 1)]


def test_a_surviving_reply_is_context_in_the_next_branch() -> None:
    """Red when a token is trained on every branch that shows it: 3 4 were sampled behind 2."""
    trie = TokenTrie.build([Sample([1, 2], [3, 4]), Sample([1, 3, 4, 5], [6])])

    assert [r.loss_mask.tolist() for r in trie.rows()] == [
        [False, False, True, True],
        [False, False, False, False, True],
    ]


def test_one_branch_alone_is_the_same_row() -> None:
    """Red when `row` numbers branches by leaf node."""
    trie = TokenTrie.build([Sample([1, 2], [3]), Sample([1, 4], [5]), Sample([6], [7])])

    assert [row(trie, branch).ids.tolist() for branch in (0, 1, 2)] == [[1, 2, 3], [1, 4, 5], [6, 7]]
