"""The papers' CNN in bf16, in oneDNN's own layout and in torch's."""

import copy

import pytest
import torch
from torch import Tensor, nn

from manyheads.local.precision import Half
from manyheads.models import Conv2d, build, set_generator, zoo
from manyheads.models.split import Shape

bf16 = pytest.mark.skipif(not zoo._onednn_takes_bf16(), reason="oneDNN has no bf16 here")


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)


def plain(chain: nn.Sequential) -> nn.Sequential:
    """The same layers in torch's layouts."""
    return nn.Sequential(*copy.deepcopy(chain).to(memory_format=torch.channels_last))


def answers(layers: nn.Module, x: Tensor) -> list[Tensor]:
    """What the layers say of x, with dropout, and the gradients of all weights and of x."""
    set_generator(layers, torch.Generator().manual_seed(2))
    x = x.clone().requires_grad_()
    with autocast():
        found = layers(x)
    seen = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    return [found.detach().float(), *torch.autograd.grad((found.float() * seen).sum(), [*layers.parameters(), x])]


@bf16
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 27, 31)])
@pytest.mark.parametrize("options", [{}, {"kernel": 3, "padding": 1, "widths": (8, 8, 16)}, {"dropout": 0.0}])
def test_it_is_near_the_same_layers_in_torchs_layout(shape: Shape, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    chain = build("cnn", shape=shape, classes=10, options=options).backbone
    x = torch.randn(6, *shape).contiguous(memory_format=torch.channels_last)
    places: list[bool] = []
    chain.pool1.register_forward_hook(lambda layer, inputs, output: places.append(output.is_mkldnn))
    found = answers(chain, x)
    chain.pool1._forward_hooks.clear()
    assert places == [True]
    for ours, theirs in zip(found, answers(plain(chain), x), strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()  # 8 bits, and pools may choose another of two near numbers


@bf16
def test_other_layers_get_and_give_torchs_layout() -> None:
    torch.manual_seed(0)
    layers = [Conv2d(3, 8, 5), zoo._Pool(2), nn.LeakyReLU(), Conv2d(8, 8, 3), nn.ReLU()]
    chain = zoo._Chain(*layers)
    seen: list[bool] = []
    layers[2].register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0].is_mkldnn))
    x = torch.randn(6, 3, 32, 32)
    found = answers(chain, x)
    assert seen == [False]
    for ours, theirs in zip(found, answers(plain(chain), x), strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@bf16
def test_a_relu_works_in_the_layout_of_what_follows() -> None:
    chain = build("cnn", shape=(1, 28, 28), classes=10, options={}).backbone.eval()
    seen: dict[str, bool] = {}
    for name, layer in chain.named_children():
        layer.register_forward_hook(lambda layer, inputs, output, name=name: seen.update({name: inputs[0].is_mkldnn}))
    Half(chain)(torch.randn(2, 1, 28, 28))
    assert [name for name, own in seen.items() if own] == ["conv1", "pool1", "relu1", "conv2", "pool2"]


@bf16
def test_a_piece_of_it_answers_in_torchs_layout() -> None:
    chain = build("cnn", shape=(1, 28, 28), classes=10, options={}).backbone
    assert isinstance(chain, nn.Sequential)
    x = torch.randn(2, 1, 28, 28)
    for piece in (chain[:1], chain[:3], chain[:6]):
        assert not Half(piece)(x).is_mkldnn


@bf16
@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("options", [{}, {"kernel": 3, "padding": 1}])
def test_rows_have_the_same_bits_however_they_are_grouped(shape: Shape, options: dict[str, object], rows: int) -> None:
    chain = build("cnn", shape=shape, classes=10, options=options).backbone.eval()
    x = torch.randn(256, *shape).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert torch.equal(torch.cat([Half(chain)(piece) for piece in x.split(rows)]), Half(chain)(x))


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_outside_of_bf16_nothing_changes(dtype: torch.dtype | None) -> None:
    chain = build("cnn", shape=(1, 28, 28), classes=10, options={}).backbone.eval()
    x = torch.randn(64, 28, 28, 1).permute(0, 3, 1, 2)
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        assert torch.equal(chain(x), nn.Sequential(*chain)(x))
