"""The papers' CNN in bf16, in oneDNN's own layout and in torch's."""

import copy

import pytest
import torch
from torch import Tensor, nn

from manyheads.models import build, set_generator, zoo
from manyheads.models.split import Shape


@pytest.fixture(autouse=True)
def _bf16() -> None:
    if not zoo._onednn_takes_bf16():
        pytest.skip("oneDNN has no bf16 here")


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


def test_layers_that_onednn_lacks_stay_in_torchs_layout() -> None:
    network = build("lineage_cnn", shape=(3, 32, 32), classes=10, options={}).backbone
    with autocast():
        assert network(torch.randn(2, 3, 32, 32)).shape == (2, 128)


def test_outside_of_bf16_nothing_changes() -> None:
    chain = build("cnn", shape=(1, 28, 28), classes=10, options={}).backbone.eval()
    x = torch.randn(64, 28, 28, 1).permute(0, 3, 1, 2)
    assert torch.equal(chain(x), nn.Sequential(*chain)(x))
