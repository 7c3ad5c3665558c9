import pytest

from manyheads.algorithms.fedavg import FedAvg
from manyheads.contract import Stage
from manyheads.schedule import cohort, moments


def listed(*rounds):
    return [
        (m.position, m.stage, m.round, m.main, m.last, m.upcoming)
        for m in moments([Stage(FedAvg(), r) for r in rounds])
    ]


def test_one_stage():
    assert listed(2) == [(0, 0, None, True, False, 0), (1, 0, 0, True, False, 1), (2, 0, 1, True, True, 2)]


def test_earlier_stages_count_up_to_minus_one():
    assert listed(1, 2, 1) == [
        (0, 0, None, False, False, -3),
        (1, 0, -3, False, False, -2),
        (2, 1, None, False, False, -2),
        (3, 1, -2, False, False, -1),
        (4, 1, -1, False, False, 0),
        (5, 2, None, True, False, 0),
        (6, 2, 0, True, True, 1),
    ]


def test_no_round_at_all():
    assert listed(0) == [(0, 0, None, True, True, 0)]


@pytest.mark.parametrize(
    ("clients", "participation", "size"),
    [(20, 0.5, 10), (5, 0.5, 3), (3, 0.5, 2), (7, 0.5, 4), (10, 0.01, 1), (1, 0.1, 1), (10, 0.24, 2), (10, 1.0, 10)],
)
def test_cohort_sizes_are_rounded_half_up(clients, participation, size):
    members = cohort(0, 3, clients, participation)
    assert len(members) == len(set(members)) == size
    assert members == sorted(members)
    assert set(members) <= set(range(clients))


def test_cohorts_depend_on_seed_and_round():
    assert cohort(0, 1, 20, 0.5) == cohort(0, 1, 20, 0.5)
    drawn = {tuple(cohort(seed, round, 20, 0.5)) for seed in range(3) for round in range(-2, 8)}
    assert len(drawn) == 30


def test_every_client_has_the_same_chance():
    counts = [0] * 10
    for round in range(2000):
        for client in cohort(0, round, 10, 0.3):
            counts[client] += 1
    assert all(abs(count - 600) < 5 * (2000 * 0.3 * 0.7) ** 0.5 for count in counts)
