import pytest
import torch
import toys
from torch import nn

from manyheads.algorithms.apfl import APFL
from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedrep import FedRep
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.contract import Data, Tree
from manyheads.errors import RunError
from manyheads.events import Warned
from manyheads.local import precision
from manyheads.local.network import Network, channels_last
from manyheads.local.precision import Half, fallback
from manyheads.models.registry import build


@pytest.fixture(autouse=True)
def _has_bf16(monkeypatch):
    """As on a processor with bf16; one without computes the same products, only slowly."""
    monkeypatch.setattr(precision, "has_bf16", lambda: True)


WIDE = {"model__name": "mlp", "model__hidden": (1024, 8)}


def setting(algorithm=None, **values):
    experiment = toys.experiment(algorithm, **values)
    return experiment.setting(experiment.algorithm.stages(experiment.config.train.rounds)[0])


def distance(a, b):
    """Between two trees, over all that is floating point."""
    return sum(float((t.double() - b[name]).square().sum()) for name, t in a.items() if t.is_floating_point()) ** 0.5


def test_products_run_in_bf16_and_nothing_else():
    head = nn.Linear(3, 2)
    inside = []
    head.register_forward_hook(lambda m, args, out: inside.append(out.dtype))
    x = torch.randn(5, 3, requires_grad=True)
    output = Half(head)(x)
    assert inside == [torch.bfloat16]
    assert output.dtype == torch.float32
    # every product of two bf16 numbers is exact in fp32, and so is the sum here up to its last rounding
    exact = x.bfloat16().double() @ head.weight.bfloat16().double().t() + head.bias.bfloat16().double()
    assert (output - exact).abs().max() <= 2**-8 * exact.abs().max()
    assert not torch.equal(output, head(x))
    gradients = torch.autograd.grad(output.sum(), [head.weight, head.bias, x])
    assert {g.dtype for g in gradients} == {torch.float32}
    # of a sum, the gradient of the weights is the sum of the rounded inputs, of the inputs that of the rounded weights
    torch.testing.assert_close(gradients[0][0], x.detach().bfloat16().float().sum(0), rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(gradients[2][0], head.weight.detach().bfloat16().float().sum(0), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(
    ("part", "halved"),
    [
        (nn.Linear(512, 10), False),
        (nn.Linear(512, 127), False),
        (nn.Linear(512, 128), True),
        (nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 512)), True),
        (nn.Conv2d(1, 1, 3), True),  # few weights, many products
        (nn.GRU(8, 8), True),  # each weight many times
        (nn.Flatten(), True),  # whatever it does
    ],
)
def test_a_part_with_few_products_stays_in_fp32(part, halved):
    network = Network({"backbone": part, "head": nn.Linear(2, 2)})
    calls = network.half().bind(network.initial).calls
    assert isinstance(calls["backbone"], Half) == halved
    assert not any(isinstance(call, Half) for call in network.bind(network.initial).calls.values())


def test_a_part_with_several_outputs():
    class Both(nn.Module):
        def forward(self, x, y):
            return x @ y, torch.tensor([1])

    product, whole = Half(Both())(torch.ones(2, 3), torch.ones(3, 2))
    assert product.dtype == torch.float32
    assert whole.dtype == torch.int64
    assert product.tolist() == [[3.0, 3.0], [3.0, 3.0]]


class Mean(nn.Module):
    def forward(self, x):
        return x.float().mean(0, keepdim=True)


class Nested(nn.Module):
    def forward(self, x):
        return (x + 1, (x, None))


def plain(output):
    return [each for one in output for each in plain(one)] if isinstance(output, tuple) else [output]


@pytest.mark.parametrize(
    "part",
    [nn.GRU(8, 4), nn.GRU(8, 4, batch_first=True), Mean(), Nested(), nn.Flatten(0)],
    ids=lambda p: type(p).__name__,
)
@pytest.mark.parametrize("rows", [50, 100, 130, 640])
def test_a_frozen_part_that_says_more_than_a_row_for_each_is_asked_once(part, rows):
    x = torch.randn(rows, 5, 8) if isinstance(part, nn.GRU) else torch.randn(rows, 8)
    with torch.no_grad():
        half = Half(part.eval())(x)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            whole = part(x)
    assert len(plain(half)) == len(plain(whole)) > 0
    for ours, theirs in zip(plain(half), plain(whole), strict=True):
        assert ours is theirs is None or torch.equal(ours, theirs.float())


@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("sizes", [(512, 100), (784, 128), (3136, 512)])  # where AMX cuts the sums by the rows
def test_rows_of_a_frozen_part_do_not_depend_on_the_others(sizes, rows):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(*sizes)

        def forward(self, x):
            return self.linear(x), x[:, 0]

    part, x = Half(Both().eval()), torch.randn(256, sizes[0])
    with torch.no_grad():
        pieces = [part(piece) for piece in x.split(rows)]
        for whole, cut in zip(part(x), zip(*pieces, strict=True), strict=True):
            assert torch.equal(whole, torch.cat(cut))


@pytest.mark.parametrize("train", [True, False])
def test_only_a_frozen_part_is_asked_in_pieces(train):
    seen = []
    part = nn.Linear(2, 2).train(train)
    part.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    Half(part)(torch.randn(100, 2))
    assert seen == [100]  # with a gradient
    with torch.no_grad():
        Half(part)(torch.randn(100, 2))
    assert seen[1:] == ([100] if train else [64, 36])


@pytest.mark.parametrize("model", [{}, {"model__name": "resnet8", "model__width": 2}, WIDE])
def test_a_run_stays_near_fp32(model):
    # one round: three clients, up to ten steps each. bf16 keeps 8 bits, so a product errs by some 0.4 %
    values = {"train__rounds": 1, "cohorts": [[0, 2, 3]], "train__lr": 0.05, **model}
    half, full = (toys.run(FedAvg(), train__precision=p, **values).server.model for p in ("bf16", "fp32"))
    assert {t.dtype for t in half.values()} <= {torch.float32, torch.int64}
    moved = distance(full, setting(FedAvg(), **values).network.initial)
    assert 1e-4 * moved < distance(half, full) < 0.05 * moved


@pytest.mark.parametrize("engine", ["threads", "processes", "wire"])
@pytest.mark.parametrize("algorithm", [PFedKDH(), APFL(), FedRep()])  # a teacher, a scan, a frozen backbone
def test_engines_have_the_same_bits(algorithm, engine, overheard, monkeypatch):
    monkeypatch.setattr(precision, "FEW_WEIGHTS", 0)  # heads too, which are small here
    serial = toys.run(algorithm, train__precision="bf16")
    heard = dict(overheard)
    overheard.clear()
    other = toys.run(algorithm, train__precision="bf16", run__engine=engine, run__workers=2)
    assert overheard == heard
    assert other.server == serial.server
    assert other.private == serial.private
    assert toys.plain(other.rows) == toys.plain(serial.rows)
    assert toys.run(algorithm).server != serial.server


def test_models_are_tested_in_fp32(monkeypatch):
    half, full = (setting(train__precision=p) for p in ("bf16", "fp32"))
    model = half.algorithm.global_model(half.algorithm.init_server(half.server(0)), half.server(0))

    def refuse(self, *inputs):
        raise AssertionError

    monkeypatch.setattr(Half, "__call__", refuse)
    rows = torch.arange(40)
    assert torch.equal(half.tester().right(model, rows), full.tester().right(model, rows))
    with pytest.raises(AssertionError):  # while training does go through it
        half.client(0, 0).features(model.tree, half.parties.train(0))


def test_what_is_computed_once_has_the_same_bits_however_rows_are_grouped():
    parts = build("cnn", shape=(1, 28, 28), classes=4, options={}).parts()
    network = Network(parts).half()
    backbone = network.model(channels_last(network.initial)).backbone
    x = torch.randn(256, 28, 28, 1).permute(0, 3, 1, 2)
    with torch.no_grad():
        assert torch.equal(torch.cat([backbone(piece) for piece in x.split(64)]), backbone(x))


def test_a_processor_without_bf16_goes_on_in_fp32(monkeypatch):
    values = {"train__rounds": 1, "cohorts": [[0, 1]]}
    half = toys.run(FedAvg(), train__precision="bf16", **values).server
    full = toys.run(FedAvg(), **values).server
    assert fallback("bf16") == ""
    monkeypatch.setattr(precision, "has_bf16", lambda: False)
    assert toys.run(FedAvg(), train__precision="bf16", **values).server == full != half
    assert fallback("bf16") == ("train.precision = 'bf16': this processor has no bf16 instructions; going on in fp32")
    assert fallback("fp32") == ""


def test_where_else_bf16_cannot_be_had():
    assert "run.engine = 'vectorized' trains in fp32" in fallback("bf16", engine="vectorized")
    assert "run.device = 'cuda' trains in fp32" in fallback("bf16", device="cuda")
    assert fallback("fp32", engine="vectorized", device="cuda") == ""


def test_a_run_says_that_it_goes_on_in_fp32():
    said = []
    toys.experiment(FedAvg(), train__precision="bf16", run__engine="vectorized").run(
        on_event=lambda event: said.append(event.message) if isinstance(event, Warned) else None
    )
    assert said == ["train.precision = 'bf16': run.engine = 'vectorized' trains in fp32; going on in fp32"]


def test_the_processor_is_asked(monkeypatch):
    monkeypatch.undo()
    for answer in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda answer=answer: answer)
        assert precision.has_bf16() is answer


@pytest.mark.parametrize("where", ["backbone.conv1.weight", "backbone.conv1.bias", "backbone.conv2.bias"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("train__precision", ["fp32", "bf16"])
def test_a_number_that_is_none_ends_training(where, bad, train__precision):
    stage = setting(FedAvg(), train__precision=train__precision, model__name="cnn", model__kernel=3)
    ctx = stage.client(3, 1)
    spoilt = ctx.initial[where].clone()
    spoilt[0] = bad
    with pytest.raises(
        RunError, match=r"^round 3, client 1: .*; a smaller train\.lr \(now .*\) or train\.clip may help$"
    ):
        ctx.fit(ctx.initial | Tree({where: spoilt}), stage.algorithm.loss, stage.parties.train(1), epochs=1)


@pytest.mark.parametrize("how", ["fit", "scan"])
def test_an_image_that_is_none_ends_training(how):
    stage = setting(FedAvg(), train__precision="bf16", model__name="cnn", model__kernel=3)
    ctx, data = stage.client(3, 1), stage.parties.train(1)
    x = data.x(torch.arange(len(data)))
    x[0, 0, 2, 2] = float("nan")
    data = Data.of(x, data.y)
    loss = stage.algorithm.loss

    def step(tree, b, grad):
        found, _ = grad(loss, tree, b)
        return tree.descend(found, 0.1)

    with pytest.raises(RunError, match=r"^round 3, client 1: .* is (nan|not finite)"):
        ctx.fit(ctx.initial, loss, data, epochs=1) if how == "fit" else ctx.scan(ctx.initial, step, data, epochs=1)
