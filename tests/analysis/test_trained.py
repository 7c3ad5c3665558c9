from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import toys
from methods import TwoAnswers

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.local_only import LocalOnly
from manyheads.analysis.trained import Trained, names
from manyheads.contract import Algorithm, Tree
from manyheads.errors import InputError


def trained(algorithm: Algorithm | None = None, **values: object) -> Trained:
    experiment = toys.experiment(algorithm, **values)
    return Trained(experiment, experiment.run())


@dataclass(frozen=True)
class OwnBackbones(FedPer):
    """Client k receives a backbone that is k larger."""

    def broadcast(self, server, client, ctx):
        sent = super().broadcast(server, client, ctx)
        return sent.replace(model=sent.model.map(lambda t: t + client))


@pytest.fixture(scope="module")
def fedper() -> Trained:
    return trained(FedPer())


def test_its_models_are_those_that_the_run_measured(fedper: Trained) -> None:
    tested = [client for client in range(fedper.clients) if len(fedper.test(client))]
    found = [fedper.accuracy(fedper.model(client), fedper.test(client)) for client in tested]
    assert len(set(found)) > 1
    assert np.mean(found) == pytest.approx(fedper.result.accuracy(), abs=1e-6)
    assert fedper.global_model() is None


def test_the_global_model_is_what_clients_use_where_they_keep_nothing() -> None:
    run = trained(FedAvg())
    everything = run.experiment.federation.test
    model = run.global_model()
    assert model is not None
    assert run.model(2) == model
    assert run.personal(2) is None
    expected = run.result.accuracy("global", "global test", average="micro")
    assert run.accuracy(model, everything) == pytest.approx(expected, abs=1e-6)


def test_a_stored_run_is_read(tmp_path: Path) -> None:
    ran = toys.run(FedPer(), tmp_path / "run")
    read = Trained.load(tmp_path / "run", dataset=toys.dataset(), algorithm=FedPer())
    assert read.result.server == ran.server
    assert read.rounds == 3


def test_the_shared_backbone_is_the_one_aggregated_last(fedper: Trained) -> None:
    server = fedper.result.server.model
    assert fedper.shared_backbone == Tree({name: t for name, t in server.items() if name.startswith("backbone.")})
    assert len(fedper.shared_backbone) > 0
    data = fedper.test(0)
    assert torch.equal(fedper.features(fedper.shared_backbone, data), fedper.features(fedper.model(0), data))


@pytest.mark.parametrize(
    ("algorithm", "values", "word"),
    [
        (LocalOnly(), {}, "no whole backbone"),
        (FedPer(), {"model__name": "resnet8", "model__width": 2, "run__buffers": "private"}, "no whole backbone"),
        (OwnBackbones(), {}, "each client another backbone"),
    ],
)
def test_without_one_shared_backbone_there_is_none(algorithm: Algorithm, values: dict[str, object], word: str) -> None:
    run = trained(algorithm, train__rounds=1, **values)
    with pytest.raises(InputError, match=word):
        _ = run.shared_backbone


def test_a_clients_test_images_are_those_of_the_partition(fedper: Trained) -> None:
    assert [len(fedper.test(client)) for client in range(fedper.clients)] == list(toys.TESTS)
    assert fedper.test(1).index.tolist() == [8, 9, 10, 11, 12, 13]
    assert fedper.test(1).y.tolist() == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("client", [-1, 6])
def test_a_client_that_is_not_there(fedper: Trained, client: int) -> None:
    for ask in (fedper.test, fedper.personal, fedper.model):
        with pytest.raises(InputError, match=f"client {client}: the run has clients 0 to 5"):
            ask(client)


def test_a_method_with_named_variants_only() -> None:
    with pytest.raises(InputError, match="neither a personal nor a global model"):
        trained(TwoAnswers(), train__rounds=1).model(0)


def test_names_say_in_what_runs_of_a_method_differ() -> None:
    settings = [
        {"algorithm__name": "fedrep"},
        {"algorithm__name": "fedrep", "algorithm__head_epochs": 3, "run__workers": 1},
        {"algorithm__name": "fedavg"},
        {"algorithm__name": "fedavg", "train__lr": 0.1},
    ]
    runs = [trained(train__rounds=1, **values) for values in settings]
    assert names(runs) == [
        "fedrep, head_epochs = None",
        "fedrep, head_epochs = 3",
        "fedavg, train.lr = 0.2",
        "fedavg, train.lr = 0.1",
    ]
    assert names(runs[1:3]) == ["fedrep", "fedavg"]


def test_runs_of_equal_config_go_by_their_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        toys.run(folder=tmp_path / name, algorithm__name="fedavg", train__rounds=1)
    runs = [Trained.load(tmp_path / name, dataset=toys.dataset()) for name in ("one", "two")]
    assert names(runs) == ["fedavg, one", "fedavg, two"]
