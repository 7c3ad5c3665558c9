import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from manyheads.errors import InputError
from manyheads.models import build, catalog, probe, set_generator
from manyheads.models.split import Shape, SplitModel

GRAY, COLOUR = (1, 28, 28), (3, 32, 32)


def made(name: str, shape: Shape, **options: object) -> SplitModel:
    return build(name, shape=shape, classes=10, options=options)


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tensor_bytes(module: nn.Module) -> int:
    return sum(4 * p.numel() for p in module.parameters())


@pytest.mark.parametrize(("shape", "size"), [(GRAY, 2_307_584), (COLOUR, 3_493_632)])
def test_cnn_backbone_has_the_papers_size(shape: Shape, size: int) -> None:
    model = made("cnn", shape)
    assert tensor_bytes(model.backbone) == size
    assert list(model.state_dict()) == [
        f"{layer}.{kind}"
        for layer in ("backbone.conv1", "backbone.conv2", "backbone.fc", "head")
        for kind in ("weight", "bias")
    ]


def test_cnn_equals_relu_before_the_pool_as_the_papers_write_it() -> None:
    model = made("cnn", COLOUR).double().eval()
    w = model.state_dict()
    x = images(4, *COLOUR).double()
    y = x
    for layer in ("backbone.conv1", "backbone.conv2"):
        y = functional.max_pool2d(functional.relu(functional.conv2d(y, w[f"{layer}.weight"], w[f"{layer}.bias"])), 2)
    z = functional.relu(functional.linear(y.flatten(1), w["backbone.fc.weight"], w["backbone.fc.bias"]))
    torch.testing.assert_close(model(x), functional.linear(z, w["head.weight"], w["head.bias"]), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(3, 5, 8, 6), (1, 1, 2, 2), (2, 4, 7, 5), (2, 3, 3, 2)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pooling_is_torchs_with_and_without_gradient(shape: Shape, layout: torch.memory_format) -> None:
    pool = next(layer for layer in made("cnn", GRAY).backbone if isinstance(layer, nn.MaxPool2d))
    x = images(*shape).round(decimals=0).contiguous(memory_format=layout)  # rounded, so that there are ties
    x[0, 0, 0, 0] = math.nan
    expected = functional.max_pool2d(x, 2)
    with torch.no_grad():
        found = pool(x)
    assert torch.equal(found.nan_to_num(99), expected.nan_to_num(99))
    assert found[0, 0, 0, 0].isnan()
    assert found.is_contiguous(memory_format=layout)  # the next layer is slower on another one
    x.requires_grad_()
    theirs = torch.autograd.grad(functional.max_pool2d(x, 2).sum(), x)[0]
    assert torch.equal(torch.autograd.grad(pool(x).sum(), x)[0], theirs)


def test_cnn_drops_before_the_hidden_layer_in_train_mode_only() -> None:
    model, x = made("cnn", GRAY, dropout=0.5), images(2, *GRAY)
    seen: list[Tensor] = []
    model.backbone.get_submodule("dropout").register_forward_hook(lambda m, args, out: seen.append(out))
    set_generator(model, torch.Generator().manual_seed(0))
    model(x)
    model.eval()(x)
    trained, evaluated = seen
    assert torch.equal(trained[trained != 0], 2 * evaluated[trained != 0])
    assert (trained == 0).sum() > (evaluated == 0).sum()


def test_cnn_options() -> None:
    model = made("cnn", GRAY, kernel=3, padding=1, widths=[8, 12], features=20)
    assert model.backbone.get_submodule("fc").get_parameter("weight").shape == (20, 12 * 7 * 7)
    assert model.head.get_parameter("weight").shape == (10, 20)
    assert model.backbone.get_submodule("conv1").get_parameter("weight").shape == (8, 1, 3, 3)
    deeper = made("cnn", GRAY, kernel=3, padding=1, widths=[8, 12, 16])
    assert deeper.backbone.get_submodule("fc").get_parameter("weight").shape == (512, 16 * 3 * 3)


def test_mlp_sizes() -> None:
    model = made("mlp", (1, 8, 8), hidden=[32, 16])
    assert [tuple(p.shape) for p in model.parameters()] == [(32, 64), (32,), (16, 32), (16,), (10, 16), (10,)]


@pytest.mark.parametrize(
    ("shape", "options", "flat", "convolutions"),
    [(GRAY, {}, 32 * 5 * 5, 2), (COLOUR, {}, 64 * 3 * 3, 3), (COLOUR, {"blocks": 2}, 32 * 6 * 6, 2)],
)
def test_lineage_cnn(shape: Shape, options: dict[str, int], flat: int, convolutions: int) -> None:
    model = made("lineage_cnn", shape, **options)
    assert model.backbone.get_submodule("fc").get_parameter("weight").shape == (128, flat)
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == convolutions


@pytest.mark.parametrize(("name", "convolutions", "features"), [("resnet8", 9, 64), ("resnet18", 20, 512)])
def test_resnet_layers(name: str, convolutions: int, features: int) -> None:
    model = made(name, COLOUR)
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == convolutions
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == convolutions
    assert probe(model, COLOUR, 10) == features


def test_resnet_halves_the_image_in_each_later_stage() -> None:
    model, sides = made("resnet18", COLOUR, width=4), []
    for i in range(1, 5):
        stage = model.backbone.get_submodule(f"layer{i}")
        stage.register_forward_hook(lambda m, args, out: sides.append(tuple(out.shape[1:])))
    model(images(2, *COLOUR))
    assert sides == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]


def test_resnet18_has_the_usual_size_for_small_images() -> None:
    assert sum(p.numel() for p in made("resnet18", COLOUR).parameters()) == 11_173_962


@pytest.mark.parametrize("name", catalog.names())
@pytest.mark.parametrize("shape", [GRAY, COLOUR, (3, 28, 40)])
def test_every_model_fits_every_usual_image(name: str, shape: Shape) -> None:
    options: dict[str, object] = {"width": 4} if name == "resnet18" else {}
    model = made(name, shape, **options)
    features = probe(model, shape, 10)
    assert model.backbone.eval()(images(3, *shape)).shape == (3, features)


@pytest.mark.parametrize("name", catalog.names())
def test_same_torch_seed_gives_the_same_bits(name: str) -> None:
    options: dict[str, object] = {"width": 4} if name == "resnet18" else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        first = made(name, COLOUR, **options).state_dict()
        torch.manual_seed(11)
        second = made(name, COLOUR, **options).state_dict()
        third = made(name, COLOUR, **options).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["head.weight"], third["head.weight"])


@pytest.mark.parametrize("name", ["cnn", "resnet8"])
def test_layout_changes_the_result_by_rounding_only(name: str) -> None:
    model, x = made(name, COLOUR).eval(), images(4, *COLOUR)
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x), model(last), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("cnn", {"dropout": 1.0}, "model.dropout = 1.0: must be at least 0 and less than 1"),
        ("cnn", {"dropout": -0.5}, "model.dropout = -0.5: must be at least 0 and less than 1"),
        ("mlp", {"dropout": math.nan}, "model.dropout = nan: must be at least 0 and less than 1"),
        ("cnn", {"widths": [32, 0]}, "model.widths = [32, 0]: must be at least 1"),
        ("cnn", {"widths": []}, "model.widths = []: must be at least 1"),
        ("cnn", {"kernel": 0}, "model.kernel = 0: must be at least 1"),
        ("cnn", {"padding": -1}, "model.padding = -1: must be at least 0"),
        ("cnn", {"features": 0}, "model.features = 0: must be at least 1"),
        ("mlp", {"hidden": []}, "model.hidden = []: must be at least 1"),
        ("lineage_cnn", {"blocks": 4}, "model.blocks = 4: must be 2, 3, or 0 for the choice by image size"),
        ("resnet8", {"width": 0}, "model.width = 0: must be at least 1"),
    ],
)
def test_values_out_of_range(name: str, options: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as caught:
        made(name, GRAY, **options)
    assert str(caught.value) == line


@pytest.mark.parametrize(("name", "smallest"), [("cnn", 16), ("lineage_cnn", 12)])
def test_image_too_small_names_the_smallest_that_fits(name: str, smallest: int) -> None:
    with pytest.raises(InputError, match=f"images of 8x8 are too small, it needs {smallest}x{smallest} "):
        made(name, (1, 8, 8))
    with pytest.raises(InputError, match="too small"):
        made(name, (1, smallest, smallest - 1))
    fits = (1, smallest, smallest)
    assert probe(made(name, fits), fits, 10) > 0
