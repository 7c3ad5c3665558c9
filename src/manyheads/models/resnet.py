"""Small residual networks with BatchNorm. Every public function here is a model that a config can name."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from manyheads.models.checks import Shape, at_least
from manyheads.models.split import SplitModel


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, inputs, h, w]`` to ``[batch, outputs, h / stride, w / stride]``."""
        inner = nn.functional.relu(self.bn1(self.conv1(x)))
        return nn.functional.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


def _resnet(shape: Shape, classes: int, widths: Sequence[int], blocks: int) -> SplitModel:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(shape[0], widths[0], 3, padding=1, bias=False)
    layers["bn1"] = nn.BatchNorm2d(widths[0])
    layers["relu"] = nn.ReLU()
    inputs = widths[0]
    for i, width in enumerate(widths, start=1):
        stage = nn.Sequential()
        for j in range(blocks):
            stage.append(_Block(inputs, width, stride=2 if i > 1 and j == 0 else 1))
            inputs = width
        layers[f"layer{i}"] = stage
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    return SplitModel(nn.Sequential(layers), nn.Linear(inputs, classes))


def resnet8(*, shape: Shape, classes: int, width: int = 16) -> SplitModel:
    """ResNet-8 with BatchNorm: three stages of one block, 64 features.

    The 6n + 2 layer family of He et al. 2016, section 4.2, with n = 1 and 1x1 shortcuts.

    Args:
        shape: Images, ``(c, h, w)``.
        classes: Number of logits.
        width: Channels of the first stage, at least 1; each later one has twice as many.

    Raises:
        InputError: On a width below 1.
    """
    at_least(1, width=width)
    return _resnet(shape, classes, [width, 2 * width, 4 * width], blocks=1)


def resnet18(*, shape: Shape, classes: int, width: int = 64) -> SplitModel:
    """ResNet-18 with BatchNorm: four stages of two blocks, 512 features, first layer for small images.

    He et al. 2016, table 1, with the 3x3 first convolution of stride 1 and no pooling that is usual for 32x32 images.

    Args:
        shape: Images, ``(c, h, w)``.
        classes: Number of logits.
        width: Channels of the first stage, at least 1; each later one has twice as many.

    Raises:
        InputError: On a width below 1.
    """
    at_least(1, width=width)
    return _resnet(shape, classes, [width, 2 * width, 4 * width, 8 * width], blocks=2)
