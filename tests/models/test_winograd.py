"""Convolutions by tiles beside torch's."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from manyheads.models import Conv2d, build
from manyheads.models.winograd import axis, convolve

CL = torch.channels_last


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def floats(*shape: int, seed: int = 0) -> Tensor:
    return numbers(*shape, seed=seed, dtype=torch.float32)


def by_tiles(layer: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a layer leaves torch's convolution aside."""
    with monkeypatch.context() as patch:
        patch.setattr("manyheads.models.winograd.convolve", lambda *args: "tiles")
        return isinstance(layer(x), str)


few, side = st.integers(1, 3), st.integers(1, 23)


@given(st.sampled_from([0, 1, 3, 15, 16, 17, 33]), few, few, st.integers(0, 2), side, side)
def test_it_is_torchs_convolution(batch: int, inputs: int, outputs: int, padding: int, h: int, w: int) -> None:
    h, w = (max(side, 5 - 2 * padding) for side in (h, w))
    x, weight, bias = numbers(batch, inputs, h, w), numbers(outputs, inputs, 5, 5, seed=1), numbers(outputs, seed=2)
    found = convolve(x, weight, bias, padding)
    torch.testing.assert_close(found, functional.conv2d(x, weight, bias, padding=padding), rtol=1e-9, atol=1e-9)
    assert found.is_contiguous(memory_format=CL)  # the next layer is slower on another one
    without = functional.conv2d(x, weight, padding=padding)
    torch.testing.assert_close(convolve(x, weight, None, padding), without, rtol=1e-9, atol=1e-9)


def test_first_and_second_derivatives() -> None:
    leaves = [x.requires_grad_() for x in (numbers(2, 2, 6, 9), numbers(2, 2, 5, 5, seed=1), numbers(2, seed=2))]
    assert torch.autograd.gradcheck(lambda *args: convolve(*args, 1), leaves)
    assert torch.autograd.gradgradcheck(lambda *args: convolve(*args, 1), leaves)


@pytest.mark.parametrize("side", [12, 14])  # the second convolution of the papers' CNN, gray and colour
def test_rounding_in_fp32_is_below_two_in_a_hundred_thousand(side: int) -> None:
    # how products are summed is the processor's: 9e-6 on AMD's and 1.2e-5 on Intel's were the largest
    exact = [numbers(64, 32, side, side).relu_(), numbers(64, 32, 5, 5, seed=1), numbers(64, seed=2)]
    seen = numbers(64, 64, side - 4, side - 4, seed=3)
    results = []
    for fn, dtype in ((functional.conv2d, torch.float64), (convolve, torch.float32)):
        leaves = [x.to(dtype).requires_grad_() for x in exact]
        found = fn(*leaves)
        results.append([found, *torch.autograd.grad(found, leaves, seen.to(dtype))])
    for right, ours in zip(*results, strict=True):
        assert (ours - right).norm() < 2e-5 * right.norm()


@pytest.mark.parametrize("side", [12, 14])
@pytest.mark.parametrize("trained", [True, False])
def test_a_row_of_a_block_of_64_does_not_depend_on_the_other_blocks(side: int, trained: bool) -> None:
    x = floats(256, 32, side, side).contiguous(memory_format=CL)
    weight, bias = floats(64, 32, 5, 5, seed=1).requires_grad_(trained), floats(64, seed=2)
    alone = torch.cat([convolve(block, weight, bias) for block in x.split(64)])
    for rows in (128, 192, 256):
        assert torch.equal(torch.cat([convolve(block, weight, bias) for block in x.split(rows)]), alone)


@pytest.mark.parametrize("layout", [torch.contiguous_format, CL])
@pytest.mark.parametrize("bias", [True, False])
def test_the_layer_is_torchs(layout: torch.memory_format, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Conv2d(32, 64, 5, padding=1, bias=bias), nn.Conv2d(32, 64, 5, padding=1, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    results = []
    for layer in (copy.deepcopy(ours), theirs):
        x = floats(6, 32, 12, 15)[::2].contiguous(memory_format=layout).requires_grad_()
        assert by_tiles(layer, x, monkeypatch) == (layer is not theirs)
        found = layer(x)
        results.append([found, *torch.autograd.grad(found.square().sum(), [x, *layer.parameters()])])
    for mine, right in zip(*results, strict=True):
        assert (mine - right).norm() < 1e-5 * right.norm()


def test_which_layers_of_the_papers_networks_take_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name in ("cnn", "lineage_cnn"):
        for shape in ((1, 28, 28), (3, 32, 32)):
            x, taken = floats(2, *shape), []
            for layer, module in build(name, shape=shape, classes=10, options={}).backbone.named_children():
                if isinstance(module, Conv2d) and by_tiles(module, x, monkeypatch):
                    taken.append(layer)
                x = x if layer == "dropout" else module(x)
            found[name, shape[0]] = taken
    assert found == {(name, channels): ["conv2"] for name in ("cnn", "lineage_cnn") for channels in (1, 3)}


def test_what_goes_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Conv2d(32, 64, 5), floats(2, 32, 12, 12)
    assert by_tiles(layer, x, monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        assert not by_tiles(layer, x, monkeypatch)
    try:
        torch.set_float32_matmul_precision("medium")
        assert not by_tiles(layer, x, monkeypatch)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not by_tiles(layer, x[0], monkeypatch)
    assert not by_tiles(Conv2d(32, 64, 5).double(), x.double(), monkeypatch)
    assert not by_tiles(Conv2d(32, 64, 5).to("meta"), x.to("meta"), monkeypatch)
    assert not by_tiles(Conv2d(3, 32, 5), floats(2, 3, 32, 32), monkeypatch)
    assert not by_tiles(Conv2d(32, 64, 3), x, monkeypatch)


@pytest.mark.parametrize("shape", [(2, 32, 3, 12), (2, 16, 12, 12), (2, 64, 12, 12)])
def test_images_that_do_not_fit_are_refused_as_by_torch(shape: tuple[int, ...]) -> None:
    errors = []
    for kind in (nn.Conv2d, Conv2d):
        with pytest.raises(RuntimeError) as error:
            kind(32, 64, 5)(floats(*shape))
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_what_is_kept_between_calls_has_no_mode_and_no_device() -> None:
    layer, x = Conv2d(32, 64, 5), floats(2, 32, 12, 12)
    right = layer(x)
    for mode in (torch.inference_mode(), torch.device("meta")):
        axis.cache_clear()
        with mode:
            layer(x)
        assert torch.equal(layer(x), right)
        layer(x).sum().backward()


@pytest.mark.parametrize("stacked", [(0, 0), (0, None), (None, 0)])
def test_a_stack_of_models_is_each_of_them(stacked: tuple[int | None, int | None]) -> None:
    weights, images = floats(3, 32, 16, 5, 5, seed=1), floats(3, 4, 16, 8, 8)

    def gradient(weight: Tensor, x: Tensor) -> Tensor:
        found: Tensor = torch.func.grad(lambda w: convolve(x, w, None).square().sum())(weight)
        return found

    leaves = [stack if place == 0 else stack[0] for stack, place in zip((weights, images), stacked, strict=True)]
    together = torch.func.vmap(gradient, in_dims=stacked)(*leaves)
    each = [
        gradient(*(leaf[k] if place == 0 else leaf for leaf, place in zip(leaves, stacked, strict=True)))
        for k in range(3)
    ]
    torch.testing.assert_close(together, torch.stack(each), rtol=1e-5, atol=1e-3)
