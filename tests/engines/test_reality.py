"""What absent clients and partial work do to a round and to every method, and that nothing else changes."""

import hand
import pytest
import toys

from manyheads.algorithms import registry
from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fednova import FedNova
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.fedrep import FedRep
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.config import Config, RealityConfig
from manyheads.contract import Upload
from manyheads.contract.wire import declared_bytes
from manyheads.engines.reality import Reality, with_reality
from manyheads.engines.serial import Serial
from manyheads.errors import RunError
from manyheads.local.client import Task

MLP = {"model__name": "mlp", "model__hidden": [4]}  # 64 x 4 + 4 and 4 x 4 + 4 numbers
ALL_ON = {
    "reality__drop": 0.2,
    "reality__sample_seconds": 0.1,
    "reality__spread": 0.5,
    "reality__jitter": 0.3,
    "reality__bandwidth": 2000.0,
    "reality__deadline": 3.0,
    "reality__late": "partial",
    "train__epochs": 3,
    "cohorts": [list(range(6))] * 3,
}
ENGINES = ("serial", "threads", "processes")


def simulated(result):
    return [row["reality"] for row in result.rows if "reality" in row]


# what it does to a round


def test_who_drops_out_depends_on_no_method_and_on_no_speed():
    runs = [toys.run(method, reality__drop=0.4, **MLP) for method in (FedAvg(), PFedKDH())]
    slow = toys.run(FedAvg(), reality__drop=0.4, reality__sample_seconds=1.0, reality__jitter=1.0, **MLP)
    found = [[row["dropped"] for row in simulated(result)] for result in (*runs, slow)]
    assert found[0] == found[1] == found[2]
    assert 0 < sum(map(len, found[0])) < 9


def test_the_clock_counts_the_bytes_of_the_log():
    result = toys.run(FedAvg(), cohorts=[[1, 2], [0, 2], [4, 5]], reality__bandwidth=50.0, **MLP)
    up = 4 * (64 * 4 + 4 + 4 * 4 + 4 + 1)  # the network and the weight
    for row in result.rows[1:]:
        assert row["reality"]["seconds"] == (max(row["bytes"]["down"].values()) + up) / 50


def test_weights_are_those_of_the_clients_that_returned():
    """Client 0 has two images and needs 4 virtual seconds, client 1 has one and needs 2."""
    clock = {"reality__sample_seconds": 1.0, "reality__deadline": 3.0}
    two, one = (dict.fromkeys((0, 1)) for _ in range(2))
    for client in (0, 1):
        two[client], one[client] = (
            hand.trained(hand.THETA, hand.PHI, *hand.CLIENTS[client], epochs=epochs) for epochs in (2, 1)
        )
    theta, phi = hand.server(hand.run(FedAvg(), **clock))
    assert theta == pytest.approx(two[1][0], rel=1e-6)  # client 1 alone, with all of the weight
    assert phi == pytest.approx(two[1][1], rel=1e-6)
    theta, phi = hand.server(hand.run(FedAvg(), **clock, reality__late="partial"))
    assert theta == pytest.approx((2 * one[0][0] + two[1][0]) / 3, rel=1e-6)
    assert phi == pytest.approx([(2 * a + b) / 3 for a, b in zip(one[0][1], two[1][1], strict=True)], rel=1e-6)
    assert one[0][0] != pytest.approx(two[0][0], rel=1e-3)


def test_an_absent_client_is_as_one_that_was_not_asked(overheard):
    """With half a virtual second an image and epoch, client 0 misses every deadline of 30, and client 2 none."""
    late = toys.run(FedPer(), reality__sample_seconds=0.5, reality__deadline=30.0, **MLP)
    assert [(row["late"], row["dropped"]) for row in simulated(late)] == [([0], []), ([], []), ([0], [])]
    assert sorted(overheard) == [(0, 1), (0, 2), (1, 1), (1, 3), (1, 4), (2, 3), (2, 5)]  # it did not train
    without = toys.run(FedPer(), cohorts=[[1, 2], [1, 3, 4], [3, 5]], **MLP)
    assert late.server == without.server
    assert late.private == without.private
    assert 0 not in late.private  # still a newcomer
    for row, other in zip(late.rows[1:], without.rows[1:], strict=True):
        assert row["metrics"] == other["metrics"]
        assert row["loss"] == other["loss"]
        assert row["bytes"]["up"] == other["bytes"]["up"]
        assert row["bytes"]["down"].keys() == set(map(str, row["cohort"]))  # the broadcast was sent
    assert late.rows[1]["cohort"] == [0, 1, 2]


def test_an_absent_client_keeps_what_it_had():
    """The jitter of seed 0 has it slower in the second round than in the first; the deadline is between."""
    values = {"cohorts": [[0], [0]], "train__rounds": 2, **MLP}
    clock = {"reality__sample_seconds": 0.5, "reality__jitter": 1.0}
    first, second = (row["seconds"] for row in simulated(toys.run(FedPer(), **clock, **values)))
    assert first < second
    late = toys.run(FedPer(), **clock, reality__deadline=(first + second) / 2, **values)
    assert [row["late"] for row in simulated(late)] == [[], [0]]
    once = toys.run(FedPer(), **{**values, "cohorts": [[0], []]})
    assert late.private == once.private
    assert late.private.keys() == {0}
    assert late.server == once.server


def test_a_round_without_answers_leaves_the_server_as_it_is():
    result = toys.run(FedAvg(), reality__drop=1.0, **MLP)
    assert result.server.model == toys.setting(FedAvg(), **MLP).network.initial
    assert result.private == {}
    for row in result.rows[1:]:
        assert row["loss"] == {}
        assert row["bytes"]["up"] == {}
        assert row["reality"] == {"seconds": 0.0, "dropped": row["cohort"], "late": [], "partial": {}}


@pytest.mark.parametrize("method", [FedPer(), FedRep(), FedNova()], ids=lambda method: type(method).__name__)
def test_partial_work_has_the_bits_of_a_run_with_fewer_epochs(method, overheard):
    """Client 2 has 25 images: of four epochs it has time for three."""
    values = {"cohorts": [[2], [2], [2]], **MLP}
    clock = {"reality__sample_seconds": 0.1, "reality__deadline": 7.6, "reality__late": "partial"}
    partial = toys.run(method, train__epochs=4, **clock, **values)
    assert [row["partial"] for row in simulated(partial)] == [{"2": 3}] * 3
    heard = dict(overheard)
    fewer = toys.run(method, train__epochs=3, **values)
    assert partial.server == fewer.server
    assert partial.private == fewer.private
    assert heard == overheard
    assert [row["loss"] for row in partial.rows] == [row["loss"] for row in fewer.rows]
    toys.run(method, train__epochs=4, **values)
    assert heard != overheard


def test_fednova_counts_the_steps_that_were_taken(overheard):
    clock = {"reality__sample_seconds": 0.1, "reality__deadline": 7.6, "reality__late": "partial"}
    toys.run(FedNova(), train__epochs=4, cohorts=[[1, 2]], train__rounds=1, **clock, **MLP)
    steps = {client: Upload.from_bytes(message).steps for (_, client), message in overheard.items()}
    assert steps == {1: 4 * 1, 2: 3 * 3}  # 3 and 25 images in batches of 8, of which a single last one is none


@pytest.mark.parametrize("name", registry.names())
def test_every_method_bears_absent_clients(name, overheard):
    given = {"reality__drop": 0.5, "reality__sample_seconds": 0.1, "reality__deadline": 3.0, "reality__late": "partial"}
    result = toys.run(toys.method(name), train__epochs=3, **given, **MLP)
    found = simulated(result)
    assert any(row["dropped"] for row in found)
    assert any(row["partial"] for row in found)
    asked = {(row["round"], client) for row in result.rows for client in row["cohort"]}
    gone = {
        (row["round"], client)
        for row in result.rows
        if "reality" in row
        for client in (*row["reality"]["dropped"], *row["reality"]["late"])
    }
    assert set(overheard) == asked - gone


def test_fedfed_needs_somebody_who_shares():
    with pytest.raises(RunError, match=r"^no client answered in the round of sharing: FedFed has no images to share$"):
        toys.run(toys.method("fedfed"), reality__drop=1.0, **MLP)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "fedpac", "fedproto", "fedgh", "fedper", "fedrod"])
def test_the_size_of_an_upload_is_known_before(name, overheard):
    method = toys.method(name)
    toys.run(method, **MLP)
    stage = toys.setting(method, **MLP)
    for (round, client), message in overheard.items():
        upload = Upload.from_bytes(message)
        numbers = sum(isinstance(upload.get(field), int | float) for field in upload)
        size = sum(tensor.numel() for tensor in upload.tensors().values()) + numbers
        assert declared_bytes(stage.algorithm, stage.client(round, client), stage.words(client)) == 4 * size


# nothing else changes


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_the_same_bits_with_everything_on(engine, everything):
    if engine == "serial":
        found = simulated(everything)
        for kind in ("dropped", "late", "partial"):
            assert any(row[kind] for row in found), kind
        return
    other = toys.run(PFedKDH(), run__engine=engine, run__workers=2, **ALL_ON)
    assert other.server == everything.server
    assert other.private == everything.private
    assert toys.plain(other.rows) == toys.plain(everything.rows)


@pytest.fixture(scope="module")
def everything():
    return toys.run(PFedKDH(), **ALL_ON)


@pytest.mark.parametrize("after", [0, 1])
def test_a_run_that_was_stopped_ends_with_the_same_bits(after, everything, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(PFedKDH(), **ALL_ON).run(tmp_path, toys.raising(after))
    resumed = toys.resume(tmp_path, PFedKDH())
    assert resumed.server == everything.server
    assert resumed.private == everything.private
    assert toys.plain(resumed.rows) == toys.plain(everything.rows)


def test_by_default_there_is_nothing_around_the_engine():
    stage = toys.setting(FedAvg(), **MLP)
    engine = Serial(stage)
    assert with_reality(engine, stage, Config().reality) is engine
    assert all("reality" not in row for row in toys.run(FedAvg(), **MLP).rows)


def test_a_clock_that_nobody_misses_changes_nothing_else():
    timed = toys.run(PFedKDH(), reality__sample_seconds=1.0, reality__spread=1.0, reality__deadline=1e6)
    plain = toys.run(PFedKDH())
    rows = [{key: value for key, value in row.items() if key != "reality"} for row in toys.plain(timed.rows)]
    assert len(simulated(timed)) == 3
    assert rows == toys.plain(plain.rows)
    assert timed.server == plain.server
    assert timed.private == plain.private


def test_tasks_are_taken_one_at_a_time():
    stage = toys.setting(FedAvg(), **MLP)
    server = stage.algorithm.init_server(stage.server(0))
    made, done = [], []

    def tasks():
        for number in range(30):
            made.append(number)
            assert len(made) - len(done) == 1
            yield Task(number % 6, number, stage.algorithm.broadcast(server, number % 6, stage.server(0)), None)

    running = Reality(Serial(stage), stage, RealityConfig(sample_seconds=1.0))
    for reply in running.update(tasks(), False):
        done.append(reply.client)
    assert done == [number % 6 for number in range(30)]
