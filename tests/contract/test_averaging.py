import math

import pytest
import torch
import toys
from torch import nn

from manyheads.contract import ServerContext, Tree, Upload
from manyheads.local.network import Network


@pytest.fixture
def server():
    network = Network({"backbone": nn.Flatten(), "head": nn.Linear(1, 2)})
    return ServerContext(**vars(toys.context(network)) | {"party": -1})


def upload(w, weight, mean=0.0, count=0, **more):
    tree = Tree({"w": torch.tensor(w), "bn.running_mean": torch.tensor(mean), "bn.count": torch.tensor(count)})
    return Upload(model=tree, weight=weight, **more)


@pytest.mark.parametrize("counts", [(7, 3), (3, 7)])
def test_average_by_hand(server, counts):
    # two clients with three numbers: (3 * 1 + 1 * 5) / 4, ...; the float buffer likewise, the counter takes the maximum
    uploads = {
        0: upload([1.0, 2.0, -4.0], 3.0, mean=8.0, count=counts[0]),
        5: upload([5.0, 2.0, 4.0], 1.0, mean=0.0, count=counts[1]),
    }
    mean = server.average(uploads)
    assert list(mean) == ["model"]
    values = {name: tensor.tolist() for name, tensor in mean.model.items()}
    assert values == {"w": [2.0, 2.0, -2.0], "bn.running_mean": 6.0, "bn.count": 7}
    assert mean.model["bn.count"].dtype == torch.int64
    assert mean.model["w"].dtype == torch.float32


def test_average_runs_in_float64(server):
    # in float32 1e8 + 1 is 1e8, and the mean would be 0
    uploads = {k: upload([w], 1.0) for k, w in enumerate([1e8, 1.0, -1e8])}
    assert server.average(uploads).model["w"].item() == pytest.approx(1 / 3, rel=1e-6)


def test_average_leaves_uploads_alone(server):
    uploads = {0: upload([1.0], 1.0, count=3), 1: upload([3.0], 1.0, count=9)}
    before = [u.to_bytes() for u in uploads.values()]
    server.average(uploads)
    assert [u.to_bytes() for u in uploads.values()] == before


def test_average_of_other_fields_with_other_weights(server):
    uploads = {
        0: upload([1.0], 3.0, means=torch.tensor([2.0]), loss=1.0),
        1: upload([3.0], 1.0, means=torch.tensor([4.0]), loss=0.0),
    }
    mean = server.average(uploads, "means", "loss", weight=lambda u: 1.0)
    assert list(mean) == ["loss", "means"]
    assert (mean.means.tolist(), mean.loss.item()) == ([3.0], 0.5)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "no upload"),
        ([0.0, 0.0], "all weights are zero"),
        ([2.0, -1.0], r"weight of client 1 is -1\.0; it must be at least 0"),
        ([2.0, math.nan], "weight of client 1 is nan"),
    ],
)
def test_weights_that_make_no_mean(server, weights, message):
    with pytest.raises(ValueError, match=message):
        server.average({k: upload([1.0], w) for k, w in enumerate(weights)})


def test_a_weight_of_zero_leaves_a_client_out(server):
    assert server.average({0: upload([1.0], 0.0), 1: upload([3.0], 2.0)}).model["w"].item() == 3.0


def test_weights_by_client(server):
    uploads = {2: Upload(model=Tree({"w": torch.tensor([1.0])})), 7: Upload(model=Tree({"w": torch.tensor([5.0])}))}
    assert server.average(uploads, weight={7: 3.0, 2: 1.0}).model["w"].item() == 4.0
    assert server.average(uploads, weight={7: 0, 2: 1, 3: 9}).model["w"].item() == 1.0


def test_uploads_without_a_weight(server):
    uploads = {k: Upload(model=Tree({"w": torch.tensor([w])})) for k, w in enumerate([1.0, 5.0])}
    assert server.average(uploads, weight=lambda upload: 1.0).model["w"].item() == 3.0
    with pytest.raises(AttributeError, match="weight"):
        server.average(uploads)


def test_the_mean_of_one_tensor_and_of_a_number(server):
    uploads = {0: upload([1.0], 3.0, n=torch.tensor([2.0, 4.0]), v=1), 1: upload([1.0], 1.0, n=torch.zeros(2), v=5)}
    mean = server.average(uploads, "n", "v")
    assert mean.n.dtype == torch.float32
    assert (mean.n.tolist(), float(mean.v)) == ([1.5, 3.0], 2.0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("others", [{"a": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "c": 1.0}])
def test_uploads_that_hold_different_tensors(server, order, others):
    trees = [{"a": 1.0, "b": 1.0}, others]
    uploads = {k: Upload(weight=1.0, model=Tree({n: torch.tensor(w) for n, w in trees[k].items()})) for k in order}
    with pytest.raises(ValueError, match=r"^uploads hold different tensors: '[bc]' is not in all$"):
        server.average(uploads)


def test_one_client_averages_to_itself(server):
    w = torch.randn(1000, generator=torch.Generator().manual_seed(0)).tolist()
    assert torch.equal(server.average({4: upload(w, 3.0)}).model["w"], torch.tensor(w))
