"""Which episodes a step trains on: all of an epoch once, none twice in a step, the same for every rank."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.schedule import shares, steps_of

counts = st.integers(1, 9)


@given(episodes=counts, group=counts, accumulate=counts, seed=st.integers(0, 99))
def test_an_epoch_takes_every_episode_once(episodes: int, group: int, accumulate: int, seed: int) -> None:
    tries = -(-episodes // group)
    steps = -(-tries // accumulate)
    found = steps_of(episodes, group=group, accumulate=accumulate, steps=2 * steps, seed=seed)
    for epoch in (found[:steps], found[steps:]):
        taken = [episode for step in epoch for together in step for episode in together]
        assert sorted(taken) == list(range(episodes))
        assert all(len(step) <= accumulate and all(len(one) <= group for one in step) for step in epoch)


def test_a_trie_holds_neighbours_and_an_epoch_ends_with_a_short_step() -> None:
    found = steps_of(5, group=2, accumulate=2, steps=2, seed=0)
    assert sorted(one for step in found for one in step) == [(0, 1), (2, 3), (4,)]
    assert [len(step) for step in found] == [2, 1]


def test_the_order_is_the_seeds_and_another_in_each_epoch() -> None:
    one, again, other = (steps_of(20, group=1, accumulate=1, steps=40, seed=seed) for seed in (0, 0, 1))
    assert one == again
    assert one != other
    assert one[:20] != one[20:]


def test_the_largest_try_goes_alone_where_the_others_weigh_as_much() -> None:
    """Red when tries are given out as they come: 20 and 40 against 30 and 90."""
    assert shares([20, 30, 40, 90], 2) == ((3,), (0, 1, 2))


@given(sizes=st.lists(st.integers(0, 1000), max_size=12), ranks=st.integers(1, 5))
def test_every_try_has_one_rank_and_none_has_more_than_its_share_and_the_largest(sizes: list[int], ranks: int) -> None:
    found = shares(sizes, ranks)
    assert sorted(at for mine in found for at in mine) == list(range(len(sizes)))
    assert max(sum(sizes[at] for at in mine) for mine in found) <= sum(sizes) / ranks + max(sizes, default=0)
