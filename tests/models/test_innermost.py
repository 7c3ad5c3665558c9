"""Passes without a gradient, samples innermost in memory, beside the layers one after the other."""

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

from manyheads.models import Conv2d, build, innermost
from manyheads.models.split import Shape

PAPERS: list[Shape] = [(1, 28, 28), (3, 32, 32)]
few, side = st.integers(1, 4), st.integers(2, 29)


def images(batch: int, *shape: int) -> Tensor:
    x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=torch.channels_last)


def in_turn(convolutions: list[Conv2d], x: Tensor) -> Tensor:
    """By torch's own functions, in fp64."""
    x = x.double()
    for layer in convolutions:
        bias = None if layer.bias is None else layer.bias.double()
        x = max_pool2d(conv2d(x, layer.weight.double(), bias, padding=layer.padding), 2).relu()
    return x


def chain(shape: Shape, **options: object) -> nn.Sequential:
    backbone = build("cnn", shape=shape, classes=10, options=options).backbone.eval()
    assert isinstance(backbone, nn.Sequential)
    return backbone.to(memory_format=torch.channels_last)


def ways(layers: nn.Sequential, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a pass goes with the samples innermost; one entry for each time that it does."""
    met = []
    with monkeypatch.context() as patch:
        through = innermost.through
        patch.setattr(innermost, "through", lambda *args: met.append(True) or through(*args))
        layers(x)
    return met


@pytest.mark.parametrize("tiles", [False, True])
@given(
    batch=st.sampled_from([1, 3, 64, 65]),
    channels=st.lists(few, min_size=2, max_size=3),
    kernel=st.integers(1, 5),
    padding=st.integers(0, 2),
    sides=st.tuples(side, side),
    bias=st.booleans(),
)
@torch.no_grad()
def test_it_is_the_layers_in_turn(
    tiles: bool, batch: int, channels: list[int], kernel: int, padding: int, sides: tuple[int, int], bias: bool
) -> None:
    kernel = 5 if tiles else kernel
    last = sides
    for _ in channels[1:]:
        last = tuple((each + 2 * padding - kernel + 1) // 2 for each in last)
        assume(min(last) > 0)
    torch.manual_seed(0)
    layers = [Conv2d(*pair, kernel, padding, bias) for pair in pairwise(channels)]
    x = images(batch, channels[0], *sides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(innermost, "_by_tiles", lambda *about: tiles)
        found = innermost.through(layers, x)
    wanted = in_turn(layers, x)
    assert found.shape == wanted.shape
    assert (found - wanted).norm() <= 1e-4 * wanted.norm() + 1e-5


@pytest.mark.parametrize("rows", [1, 63, 64, 256])
@pytest.mark.parametrize("shape", PAPERS)
@torch.no_grad()
def test_the_papers_network_says_the_same(shape: Shape, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x = chain(shape), images(rows, *shape)
    assert ways(layers, x, monkeypatch) == [True]
    found, plain = layers(x), nn.Sequential(*layers)(x)
    assert (found - plain).norm() < 2e-5 * plain.norm()


@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("shape", PAPERS)
@torch.no_grad()
def test_rows_have_the_same_bits_however_blocks_are_grouped(shape: Shape, rows: int) -> None:
    layers, x = chain(shape), images(256, *shape)
    assert torch.equal(torch.cat([layers(piece) for piece in x.split(rows)]), layers(x))


@torch.no_grad()
def test_what_is_not_a_number_stays_in_its_sample() -> None:
    layers, x = chain((1, 28, 28)), images(64, 1, 28, 28)
    expected = layers(x)
    x[5, 0, 3, 4] = torch.nan
    found = layers(x)
    assert found[5].isnan().all()
    others = torch.arange(64) != 5
    assert torch.equal(found[others], expected[others])


@torch.no_grad()
def test_a_hook_sees_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x = chain((1, 28, 28)), images(70, 1, 28, 28)
    for place, name in enumerate(("register_forward_hook", "register_forward_pre_hook")):
        seen: list[int] = []
        handle = getattr(layers[place], name)(lambda layer, inputs, *_, seen=seen: seen.append(len(inputs[0])))
        assert ways(layers, x, monkeypatch) == []
        assert seen == [70]
        handle.remove()
    layers[6].register_forward_hook(lambda *_: None)  # behind them
    assert ways(layers, x, monkeypatch) == [True]


def test_only_where_it_can_be_and_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x = chain((1, 28, 28)), images(64, 1, 28, 28)
    assert ways(layers, x, monkeypatch) == []
    with torch.no_grad():
        assert ways(chain((1, 28, 28), kernel=3, padding=1), x, monkeypatch) == []  # torch's are quicker
        assert ways(chain((1, 28, 28), widths=(32,)), x, monkeypatch) == []
        assert ways(chain((1, 28, 28), widths=(4, 8)), x, monkeypatch) == []
        assert ways(layers, x[:0], monkeypatch) == []
        assert ways(layers.double(), x.double(), monkeypatch) == []
        layers.float()
        with torch.autocast("cpu", torch.float16):
            assert ways(layers, x, monkeypatch) == []
        with pytest.raises(RuntimeError, match="channels"):
            layers(x.expand(-1, 3, -1, -1))


@torch.no_grad()
def test_stacked_models_go_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x = chain((1, 28, 28)), images(4, 1, 28, 28)
    weights = {name: torch.stack([p, 2 * p]) for name, p in layers.named_parameters()}

    def one(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layers, weights, x)

    found = torch.vmap(one)(weights)
    alone = [one({name: w[k] for name, w in weights.items()}) for k in range(2)]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)
