import math

import pytest
import torch
import toys

from manyheads.contract import Predictor
from manyheads.evaluate import client_rows, global_rows, worst_decile
from manyheads.local.testing import SAMPLE, evaluated


def test_rows_by_hand():
    # accuracies 1/2, 1 and 0; client 7 has no test images
    macro, micro = client_rows("personal", "v", "post_agg", {0: 1, 4: 4, 5: 0, 7: 0}, {0: 2, 4: 4, 5: 2, 7: 0, 9: 3}, 9)
    kind = {"model": "personal", "variant": "v", "data": "client test", "moment": "post_agg"}
    assert macro.items() >= kind.items()
    assert micro.items() >= kind.items()
    assert (macro["average"], micro["average"]) == ("macro", "micro")
    assert macro["accuracy"] == 0.5
    assert micro["accuracy"] == 5 / 8
    assert macro["std"] == pytest.approx(math.sqrt((0 + 0.25 + 0.25) / 3))
    assert macro["worst_decile"] == 0.0
    for row in (macro, micro):
        assert (row["clients"], row["left_out"]) == (3, 1)
    assert macro["tested"] == [0, 4, 5]
    assert macro["correct"] == [1, 4, 0]


def test_no_client_to_test_gives_no_row():
    assert client_rows("personal", "", "post_agg", {}, {0: 3}, 1) == []
    assert client_rows("personal", "", "post_agg", {0: 0}, {0: 0}, 1) == []


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.5], 0.5),
        ([0.9, 0.1], 0.1),
        ([i / 10 for i in range(10)], 0.0),
        ([0.4, 0.2, *[1.0] * 9], 0.3),  # eleven clients: the worst two
        ([0.4, 0.2, *[1.0] * 18], 0.3),
        ([0.4, 0.2, 0.6, *[1.0] * 18], 0.4),
    ],
)
def test_the_worst_tenth_is_rounded_up(accuracies, expected):
    assert worst_decile(accuracies) == pytest.approx(expected)


def test_one_global_model_on_the_whole_test_set_and_on_each_client_s():
    stage = toys.setting()
    tester = stage.tester()
    tests = {client: stage.parties.test_rows(client) for client in range(6)}
    zero = Predictor(stage.network.initial, lambda m, x: torch.eye(4)[torch.zeros(len(x), dtype=torch.int64)])
    whole, macro, micro = global_rows("", zero, tester, tests, 6)
    right = (toys.dataset().test.labels == 0).tolist()
    cut = [right[0:8], right[8:14], right[14:22], right[22:29], right[29:37]]
    assert (whole["data"], whole["accuracy"]) == ("global test", sum(right) / 40)
    assert macro["accuracy"] == pytest.approx(sum(sum(c) / len(c) for c in cut) / 5)
    assert micro["accuracy"] == pytest.approx(sum(map(sum, cut)) / 37)
    assert (macro["left_out"], macro["clients"]) == (1, 5)
    assert {row["model"] for row in (whole, macro, micro)} == {"global"}


def test_many_clients_are_sampled_once():
    assert evaluated(6, 0) == list(range(6))
    assert evaluated(SAMPLE, 0) == list(range(SAMPLE))
    some = evaluated(3 * SAMPLE, 0)
    assert len(set(some)) == SAMPLE
    assert some == sorted(some) == evaluated(3 * SAMPLE, 0) != evaluated(3 * SAMPLE, 1)
    assert max(some) > 2 * SAMPLE
