"""Convolutions by tiles beside torch's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from manyheads.models import build
from manyheads.models.winograd import Conv2d, convolve

CL = torch.channels_last


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_tiles(layer: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a layer leaves torch's convolution aside."""
    with monkeypatch.context() as patch:
        patch.setattr("manyheads.models.winograd.convolve", lambda *args: "tiles")
        return isinstance(layer(x), str)


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 23), st.integers(1, 23)
)
def test_it_is_torchs_convolution(batch: int, inputs: int, outputs: int, padding: int, h: int, w: int) -> None:
    h, w = (max(side, 5 - 2 * padding) for side in (h, w))
    x, weight, bias = numbers(batch, inputs, h, w), numbers(outputs, inputs, 5, 5, seed=1), numbers(outputs, seed=2)
    found = convolve(x, weight, bias, padding)
    torch.testing.assert_close(found, functional.conv2d(x, weight, bias, padding=padding), rtol=1e-9, atol=1e-9)
    assert found.is_contiguous(memory_format=CL)  # the next layer is slower on another one
    without = functional.conv2d(x, weight, padding=padding)
    torch.testing.assert_close(convolve(x, weight, None, padding), without, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", [3, 4, 6, 7])
def test_other_kernels_are_right_too(kernel: int) -> None:
    x, weight = numbers(2, 3, 11, 14), numbers(4, 3, kernel, kernel, seed=1)
    torch.testing.assert_close(convolve(x, weight, None), functional.conv2d(x, weight), rtol=1e-9, atol=1e-9)


def test_first_and_second_derivatives() -> None:
    given = [x.requires_grad_() for x in (numbers(2, 2, 6, 9), numbers(2, 2, 5, 5, seed=1), numbers(2, seed=2))]
    assert torch.autograd.gradcheck(lambda *args: convolve(*args, 1), given)
    assert torch.autograd.gradgradcheck(lambda *args: convolve(*args, 1), given)


@pytest.mark.parametrize("side", [12, 14])  # the second convolution of the papers' CNN, gray and colour
def test_rounding_in_fp32_is_below_one_in_a_hundred_thousand(side: int) -> None:
    exact = [numbers(64, 32, side, side).relu_(), numbers(64, 32, 5, 5, seed=1), numbers(64, seed=2)]
    seen = numbers(64, 64, side - 4, side - 4, seed=3)
    results = []
    for fn, dtype in ((functional.conv2d, torch.float64), (convolve, torch.float32)):
        given = [x.to(dtype).requires_grad_() for x in exact]
        found = fn(*given)
        results.append([found, *torch.autograd.grad(found, given, seen.to(dtype))])
    for right, ours in zip(*results, strict=True):
        assert (ours - right).norm() < 1e-5 * right.norm()


def test_a_row_of_a_block_of_64_does_not_depend_on_the_other_blocks() -> None:
    x = numbers(256, 32, 14, 14, dtype=torch.float32).contiguous(memory_format=CL)
    weight, bias = numbers(64, 32, 5, 5, seed=1, dtype=torch.float32), numbers(64, seed=2, dtype=torch.float32)
    assert torch.equal(convolve(x, weight, bias)[64:128], convolve(x[64:128], weight, bias))


def test_which_layers_of_the_papers_networks_take_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name in ("cnn", "lineage_cnn"):
        for shape in ((1, 28, 28), (3, 32, 32)):
            x, taken = numbers(2, *shape, dtype=torch.float32), []
            for layer, module in build(name, shape=shape, classes=10, options={}).backbone.named_children():
                if isinstance(module, Conv2d) and by_tiles(module, x, monkeypatch):
                    taken.append(layer)
                x = x if layer == "dropout" else module(x)
            found[name, shape[0]] = taken
    assert found == {(name, channels): ["conv2"] for name in ("cnn", "lineage_cnn") for channels in (1, 3)}


def test_what_goes_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Conv2d(32, 64, 5), numbers(2, 32, 12, 12, dtype=torch.float32)
    assert by_tiles(layer, x, monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        assert not by_tiles(layer, x, monkeypatch)  # its own rounding is larger, and the processor's bf16 is quick
    assert not by_tiles(Conv2d(32, 64, 5).double(), x.double(), monkeypatch)
    assert not by_tiles(Conv2d(32, 64, 5).to("meta"), x.to("meta"), monkeypatch)
    assert not by_tiles(Conv2d(3, 32, 5), numbers(2, 3, 32, 32, dtype=torch.float32), monkeypatch)
    assert not by_tiles(Conv2d(32, 64, 3), x, monkeypatch)


def test_an_image_that_is_too_small_is_refused_as_by_torch() -> None:
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        Conv2d(32, 64, 5)(numbers(2, 32, 3, 12, dtype=torch.float32))


def test_a_stack_of_models_is_each_of_them() -> None:
    x, weight = numbers(3, 4, 16, 8, 8, dtype=torch.float32), numbers(3, 32, 16, 5, 5, seed=1, dtype=torch.float32)

    def gradient(weight: Tensor, x: Tensor) -> Tensor:
        found: Tensor = torch.func.grad(lambda w: convolve(x, w, None).square().sum())(weight)
        return found

    together = torch.func.vmap(gradient)(weight, x)
    torch.testing.assert_close(together, torch.stack([*map(gradient, weight, x)]), rtol=1e-5, atol=1e-5)
