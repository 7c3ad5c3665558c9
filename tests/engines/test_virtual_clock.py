"""Who is absent and who is slow, on a virtual clock: times by hand, draws by their distribution, and the config."""

import math
import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import fmean, pstdev

import clone
import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from manyheads.algorithms.fedavg import FedAvg
from manyheads.config import Config, RealityConfig
from manyheads.contract import Broadcast, Tree
from manyheads.engines.reality import Reality, told
from manyheads.engines.serial import Serial
from manyheads.errors import InputError
from manyheads.local.client import Task, Turn

MLP = {"model__name": "mlp", "model__hidden": [4]}  # 64 x 4 + 4 and 4 x 4 + 4 numbers


@dataclass
class Many:
    """Clients with ten images each, which nobody looks at."""

    clients: int = 3000
    classes: int = 2

    def train(self, client):
        return range(10)


def task(client, round=0, down=0):
    return Task(client, round, Broadcast(model=Tree()), None, down=down)


def turn(client, down=0, epochs=2, **config):
    """What becomes of a client of the tiny federation in round 0."""
    stage = toys.setting(FedAvg(), train__epochs=epochs, **MLP)
    return Reality(Serial(stage), stage, RealityConfig(**config)).turn(task(client, down=down))


@cache
def tiny():
    return toys.setting(FedAvg(), **MLP)


def many(rounds=1, clients=Many.clients, seed=0, **config):
    """What becomes of many clients, by round and client."""
    reality = Reality(Serial(tiny()), replace(tiny(), parties=Many(), seed=seed), RealityConfig(**config))
    return [[reality.turn(task(client, round)) for client in range(clients)] for round in range(rounds)]


# the clock, by hand: client 1 has 3 images, client 4 has 9, client 0 has 40


def test_time_is_images_times_epochs():
    assert turn(1, epochs=4, sample_seconds=0.5) == Turn(3 * 0.5 * 4)
    assert turn(0, epochs=1, sample_seconds=0.25) == Turn(40 * 0.25)


def test_messages_take_time_in_both_directions():
    numbers = 64 * 4 + 4 + 4 * 4 + 4 + 1  # the network and the weight
    assert turn(1, down=1000, bandwidth=50.0).seconds == pytest.approx((1000 + 4 * numbers) / 50)
    both = turn(1, down=1000, bandwidth=50.0, sample_seconds=0.5).seconds
    assert both == pytest.approx((1000 + 4 * numbers) / 50 + 3 * 0.5 * 2)


@pytest.mark.parametrize(
    ("client", "deadline", "late", "expected"),
    [
        (1, 6.0, "drop", Turn(6.0)),  # four epochs of 1.5 virtual seconds, just in time
        (1, 5.9, "drop", Turn(6.0, "late")),
        (1, 6.0, "partial", Turn(6.0)),
        (1, 5.9, "partial", Turn(4.5, epochs=3)),
        (1, 4.5, "partial", Turn(4.5, epochs=3)),
        (1, 1.5, "partial", Turn(1.5, epochs=1)),
        (1, 1.4, "partial", Turn(6.0, "late")),
        (4, 10.0, "partial", Turn(9.0, epochs=2)),
        (0, 10.0, "partial", Turn(80.0, "late")),
    ],
)
def test_a_deadline(client, deadline, late, expected):
    assert turn(client, epochs=4, sample_seconds=0.5, deadline=deadline, late=late) == expected


def test_messages_count_for_the_deadline():
    clock = {"bandwidth": 1000.0, "sample_seconds": 0.5, "late": "partial", "epochs": 4, "down": 876}  # 2 s of transfer
    assert turn(1, deadline=8.0, **clock) == Turn(8.0)
    assert turn(1, deadline=7.9, **clock) == Turn(6.5, epochs=3)
    assert turn(1, deadline=3.4, **clock).absent == "late"


@pytest.mark.parametrize(
    ("found", "deadline", "seconds"),
    [
        ({2: Turn(3.0), 0: Turn(4.0)}, None, 4.0),
        ({2: Turn(3.0), 0: Turn(4.0)}, 9.0, 4.0),  # all are there: nobody waits for the deadline
        ({2: Turn(3.0), 0: Turn(0.0, "dropped")}, 9.0, 9.0),
        ({2: Turn(3.0), 0: Turn(0.0, "dropped")}, None, 3.0),
        ({2: Turn(3.0), 0: Turn(12.0, "late")}, 9.0, 9.0),
        ({2: Turn(0.0, "dropped")}, None, 0.0),
    ],
)
def test_a_round_ends_with_the_last_answer_or_at_the_deadline(found, deadline, seconds):
    assert told(found, deadline)["seconds"] == seconds


def test_a_row_says_who_was_absent():
    found = {5: Turn(1.0, "late"), 3: Turn(0.0, "dropped"), 4: Turn(2.0, epochs=1), 1: Turn(0.0, "dropped"), 0: Turn(2)}
    assert told(found, 2.5) == {"seconds": 2.5, "dropped": [1, 3], "late": [5], "partial": {"4": 1}}


# draws


def test_slowness_is_log_normal_with_median_one():
    (spread, again), jitter = many(2, sample_seconds=0.1, spread=0.5), many(2, sample_seconds=0.1, jitter=0.25)
    assert spread == again  # drawn once a run
    assert spread != many(seed=1, sample_seconds=0.1, spread=0.5)[0]
    assert [a.seconds == b.seconds for a, b in zip(*jitter, strict=True)].count(True) == 0
    for found, sigma in ((spread, 0.5), (jitter[0], 0.25), (jitter[1], 0.25)):
        logs = [math.log(turn.seconds / (10 * 0.1 * 2)) for turn in found]
        assert abs(fmean(logs)) < 4 * sigma / math.sqrt(Many.clients)
        assert pstdev(logs) == pytest.approx(sigma, rel=4 / math.sqrt(2 * Many.clients))
        beyond = sum(abs(log) > sigma for log in logs) / len(logs)
        assert beyond == pytest.approx(0.317, abs=4 * 0.0085)


def test_both_kinds_of_slowness_multiply():
    found = [many(sample_seconds=0.1, **which)[0] for which in ({"spread": 0.5}, {"jitter": 0.25})]
    both = many(sample_seconds=0.1, spread=0.5, jitter=0.25)[0]
    for turn, spread, jitter in zip(both, *found, strict=True):
        assert turn.seconds == pytest.approx(spread.seconds * jitter.seconds / 2)


@settings(max_examples=20)
@given(st.integers(0, 2**62), st.floats(0.05, 0.95))
def test_clients_drop_out_with_the_probability_that_is_given(seed, drop):
    found = many(20, 20, seed, drop=drop)
    gone = sum(turn.absent == "dropped" for row in found for turn in row)
    assert gone == pytest.approx(400 * drop, abs=5 * math.sqrt(400 * drop * (1 - drop)))


def test_rounds_are_independent_and_a_higher_probability_drops_the_same_clients_and_more():
    gone = [[{c for c, t in enumerate(row) if t.absent} for row in many(2, drop=p)] for p in (0.0, 0.2, 0.5, 1.0)]
    assert gone[0] == [set(), set()]
    assert gone[3] == [set(range(Many.clients))] * 2
    for (less, _), (more, _) in pairwise(gone):
        assert less <= more
    first, second = gone[2]
    assert len(first & second) == pytest.approx(Many.clients / 4, abs=5 * math.sqrt(Many.clients * 3 / 16))


# the config


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ("drop = 1.5", "reality.drop = 1.5: must be a number at least 0 and at most 1"),
        ("drop = -0.1", "reality.drop = -0.1: must be a number at least 0 and at most 1"),
        ("sample_seconds = -1", "reality.sample_seconds = -1: must be a number at least 0 and at most 1000000.0"),
        ("spread = -1", "reality.spread = -1: must be a number at least 0 and at most 10"),
        ("jitter = 'a'", "reality.jitter = 'a': must be a number at least 0 and at most 10"),
        ("bandwidth = 0", "reality.bandwidth = 0: must be a number at least 1"),
        ("deadline = 0", "reality.deadline = 0: must be a number above 0"),
        ("late = 'partail'", "reality.late: unknown late 'partail'; did you mean 'partial'?"),
        ("dorp = 1", "unknown key 'reality.dorp'; did you mean 'reality.drop'?"),
        ("spread = 1", "reality.spread = 1.0: has no effect without reality.sample_seconds; set it too"),
        ("jitter = 1", "reality.jitter = 1.0: has no effect without reality.sample_seconds; set it too"),
        (
            "deadline = 1",
            "reality.deadline = 1.0: has no effect without reality.sample_seconds or bandwidth; set one",
        ),
        ("late = 'partial'", "reality.late = 'partial': has no effect without reality.deadline; set it too"),
    ],
)
def test_an_error_for_every_key(values, line):
    with pytest.raises(InputError) as caught:
        Config.parse(f"[reality]\n{values}")
    assert str(caught.value) == line


def test_the_page_names_every_key_and_its_config_is_one():
    page = (clone.ROOT / "docs/reality.md").read_text("utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)
    config = Config.parse(block).reality
    defaults = RealityConfig()
    for key in RealityConfig.model_fields:
        assert getattr(config, key) != getattr(defaults, key), key
        assert f"| `{key}` |" in page
