import copy

import pytest
import torch
from torch import Tensor, nn

from manyheads.errors import InputError
from manyheads.models import Dropout, SplitModel, probe, set_generator


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.downsample(x)
        result: Tensor = self.relu(y)
        return result


class ResNet(nn.Module):
    """Laid out as torchvision's: in-place ReLU, flatten in forward, ``fc`` last."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = torch.flatten(self.avgpool(self.layer1(x)), 1)
        logits: Tensor = self.fc(self.drop(x))
        return logits


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def test_split_resnet_is_the_same_function_and_leaves_the_original_alone() -> None:
    network = ResNet().eval()
    before = copy.deepcopy(network.state_dict())
    split = SplitModel.from_module(network)
    x = images(3, 3, 32, 32)
    assert torch.equal(split(x), network(x))
    assert split.backbone(x).shape == (3, 16)
    assert probe(split, (3, 32, 32), 10) == 16
    with torch.no_grad():
        for parameter in split.parameters():
            parameter.zero_()
    assert isinstance(network.fc, nn.Linear)
    assert isinstance(network.drop, nn.Dropout)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_names_of_parts_and_tensors() -> None:
    split = SplitModel.from_module(ResNet())
    assert split.parts() == {"backbone": split.backbone, "head": split.head}
    names = {f"backbone.{name}" for name in ResNet().state_dict() if not name.startswith("fc.")}
    assert set(split.state_dict()) == names | {"head.weight", "head.bias"}


def test_dropout_layers_become_ours() -> None:
    drop = SplitModel.from_module(ResNet()).backbone.get_submodule("drop")
    assert isinstance(drop, Dropout)
    assert drop.p == 0.2


@pytest.mark.parametrize("path", ["1.2", "body.1"])
def test_dotted_head(path: str) -> None:
    inner = nn.Sequential(nn.ReLU(), nn.Linear(4, 5), nn.Linear(5, 3))
    network = nn.Sequential(nn.Flatten(), inner)
    if path == "body.1":
        network = nn.Sequential()
        network.add_module("flat", nn.Flatten())
        network.add_module("body", nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)))
    split = SplitModel.from_module(network, head=path)
    x = images(2, 1, 2, 2)
    assert torch.equal(split(x), network(x))
    assert split.backbone(x).shape == (2, 5)


def test_to_module_undoes_from_module() -> None:
    network = ResNet().eval()
    split = SplitModel.from_module(network)
    with torch.no_grad():
        split.head.get_parameter("bias").add_(1)
    whole, x = split.to_module(), images(2, 3, 32, 32)
    assert isinstance(whole, ResNet)
    assert torch.equal(whole(x), split(x))
    assert set(whole.state_dict()) == set(network.state_dict())
    assert isinstance(split.backbone.get_submodule("fc"), nn.Identity)
    assert whole.fc.weight is not split.head.get_parameter("weight")


@pytest.mark.parametrize(
    ("head", "parts"),
    [
        ("fcc", ["ResNet has no module 'fcc'", "linear layers are: fc"]),
        ("zzzzzz", ["ResNet has no module 'zzzzzz'", "linear layers are: fc"]),
        ("", ["ResNet has no module ''"]),
        ("relu", ["ResNet has no module 'relu' with weights", "linear layers are: fc"]),
        ("forward", ["linear layers are: fc"]),
    ],
)
def test_wrong_head_is_one_line(head: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        SplitModel.from_module(ResNet(), head=head)
    line = str(caught.value)
    assert "\n" not in line
    assert all(part in line for part in parts), line


def test_network_without_a_linear_layer() -> None:
    with pytest.raises(InputError, match="it has no linear layer"):
        SplitModel.from_module(nn.Sequential(nn.Conv2d(1, 1, 1)))


def test_training_a_split_model_reaches_all_its_parameters() -> None:
    split = SplitModel.from_module(ResNet())
    set_generator(split, torch.Generator().manual_seed(0))
    split(images(4, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in split.parameters())
