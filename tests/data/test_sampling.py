import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from manyheads.data.sampling import apportion, deal, stratified, stream


def test_apportion_by_hand() -> None:
    assert apportion(np.array([5, 3, 2]), 4).tolist() == [2, 1, 1]  # quotas 2.0, 1.2, 0.8
    assert apportion(np.array([1, 1, 1]), 2).tolist() == [1, 1, 0]
    assert apportion(np.array([0, 0]), 7).tolist() == [0, 0]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(0, 10**6))
def test_apportion_sums_up_and_stays_within_one(weights: list[int], total: int) -> None:
    parts = apportion(np.array(weights), total)
    whole = sum(weights)
    assert parts.sum() == (total if whole else 0)
    for weight, part in zip(weights, parts.tolist(), strict=True):
        assert abs(part * whole - weight * total) < max(whole, 1)


def test_deal_gives_what_the_table_says_and_keeps_the_rest() -> None:
    cells = np.array([0, 1, 0, 1, 0, 2])
    mine = deal(cells, np.array([[1, 2, 0], [1, 0, 0]]), stream(0, "deal"))
    assert [np.bincount(cells[part], minlength=3).tolist() for part in mine] == [[1, 2, 0], [1, 0, 0]]
    assert not set(mine[0]) & set(mine[1])
    assert all((np.diff(part) > 0).all() for part in mine)


def test_deal_is_uniform_over_the_items_of_a_cell() -> None:
    cells, table = np.zeros(4, np.int64), np.array([[1], [1]])
    first = np.array([[part[0] for part in deal(cells, table, stream(seed, "deal"))] for seed in range(2000)])
    for column in first.T:
        assert (np.abs(np.bincount(column, minlength=4) - 500) < 100).all()


def test_stratified_keeps_proportions() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    assert np.bincount(labels[stratified(labels, 10, stream("x"))]).tolist() == [6, 3, 1]


def test_streams_differ_by_key_and_repeat() -> None:
    keys: list[tuple[int | str, ...]] = [(0, "a"), (0, "b"), (1, "a"), ("0", "a")]
    draws = {key: stream(*key).random() for key in keys}
    assert len(set(draws.values())) == 4
    assert stream(0, "a").random() == draws[0, "a"]
    assert stream(int(np.int64(0)), "a").random() == stream(np.int64(0), "a").random()
