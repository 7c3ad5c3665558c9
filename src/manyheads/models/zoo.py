"""The small networks of the papers. Every public function here is a model that a config can name.

Each takes the images' ``shape`` ``(c, h, w)``, the number of ``classes`` and its options as keywords, as a factory of
your own would, and raises ``InputError`` on an option out of range; the message starts with the option's name. Weights
are drawn from torch's global generator, so the caller decides the seed. ReLU comes after the pooling: the function is
the same, at a quarter of the elements.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count, pairwise, zip_longest

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.nn import functional

from manyheads.errors import InputError
from manyheads.models import innermost
from manyheads.models.dropout import Dropout
from manyheads.models.split import Shape, SplitModel
from manyheads.models.winograd import Conv2d, is_fp32


def cnn(
    *,
    shape: Shape,
    classes: int,
    kernel: int = 5,
    padding: int = 0,
    widths: tuple[int, ...] = (32, 64),
    features: int = 512,
    dropout: float = 0.25,
) -> SplitModel:
    """The papers' CNN: two 5x5 convolutions with pooling, dropout, a hidden layer, a linear head.

    The network of PFLlib and of FedAvg's paper (McMahan et al. 2017) plus the dropout that pFedKDH names.
    ``kernel = 3`` with ``padding = 1`` is the variant that fits the values published for CIFAR-10 better.

    Args:
        shape: Images, ``(c, h, w)``, not too small for the convolutions.
        classes: Number of logits.
        kernel: Side of all convolutions, at least 1.
        padding: Their padding, at least 0.
        widths: Their channels, each at least 1; a convolution for each.
        features: Size of the hidden layer, at least 1.
        dropout: Probability in [0, 1), before the hidden layer.
    """
    _at_least(1, kernel=kernel, widths=widths, features=features)
    _at_least(0, padding=padding)
    table = [(width, kernel, padding) for width in widths]
    return _convolutional("cnn", shape, classes, table, nn.ReLU, features, dropout)


def lineage_cnn(*, shape: Shape, classes: int, blocks: int = 0, features: int = 128) -> SplitModel:
    """The CNN of FedeCouple's lineage: 16, 32 and (from 32x32 on) 64 channels, leaky ReLU, 128 features.

    As FedPAC and FedMate have it: conv5x5(16) - pool - conv5x5(32, padding 1) - pool, for 32x32 images
    conv3x3(64, padding 1) - pool as well, then a hidden layer and a linear head.

    Args:
        shape: Images, ``(c, h, w)``, not too small for the convolutions.
        classes: Number of logits.
        blocks: Number of convolutions, 2 or 3; 0 takes 3 for images of at least 32x32 and otherwise 2.
        features: Size of the hidden layer, at least 1.
    """
    _at_least(1, features=features)
    if blocks not in (0, 2, 3):
        raise InputError(f"blocks = {blocks}: must be 2, 3, or 0 for the choice by image size")
    table = [(16, 5, 0), (32, 5, 1), (64, 3, 1)][: blocks or (3 if min(shape[1:]) >= 32 else 2)]
    return _convolutional("lineage_cnn", shape, classes, table, nn.LeakyReLU, features)


def mlp(*, shape: Shape, classes: int, hidden: tuple[int, ...] = (128,), dropout: float = 0.0) -> SplitModel:
    """A multi-layer perceptron, for 8x8 digits and quick tries.

    Args:
        shape: Images, ``(c, h, w)``.
        classes: Number of logits.
        hidden: Sizes of the hidden layers, each at least 1, at least one layer; the last one gives the features.
        dropout: Probability in [0, 1), after each hidden layer.
    """
    _at_least(1, hidden=hidden)
    sizes = [shape[0] * shape[1] * shape[2], *hidden]
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        layers |= {f"fc{i}": nn.Linear(inputs, outputs), f"relu{i}": nn.ReLU(), f"dropout{i}": Dropout(dropout)}
    return SplitModel(nn.Sequential(layers), nn.Linear(sizes[-1], classes))


def resnet8(*, shape: Shape, classes: int, width: int = 16) -> SplitModel:
    """ResNet-8 with BatchNorm: three stages of one block, 64 features.

    The 6n + 2 layer family of He et al. 2016, section 4.2, with n = 1 and 1x1 shortcuts.

    Args:
        shape: Images, ``(c, h, w)``.
        classes: Number of logits.
        width: Channels of the first stage, at least 1; each later one has twice as many.
    """
    return _resnet(shape, classes, width, stages=3, blocks=1)


def resnet18(*, shape: Shape, classes: int, width: int = 64) -> SplitModel:
    """ResNet-18 with BatchNorm: four stages of two blocks, 512 features, first layer for small images.

    He et al. 2016, table 1, with the 3x3 first convolution of stride 1 and no pooling that is usual for 32x32 images.

    Args:
        shape: Images, ``(c, h, w)``.
        classes: Number of logits.
        width: Channels of the first stage, at least 1; each later one has twice as many.
    """
    return _resnet(shape, classes, width, stages=4, blocks=2)


def _at_least(low: int, **options: int | Sequence[int]) -> None:
    """Refuse an option that is below ``low``, has an element below it, or is empty."""
    for name, value in options.items():
        values = [value] if isinstance(value, int) else list(value)
        if min(values, default=low - 1) < low:
            raise InputError(f"{name} = {value if isinstance(value, int) else values}: must be at least {low}")


def _convolutional(
    name: str,
    shape: Shape,
    classes: int,
    table: Sequence[tuple[int, int, int]],
    activation: Callable[[], nn.Module],
    features: int,
    dropout: float = 0.0,
) -> SplitModel:
    """Convolutions of ``table``'s (channels, kernel, padding), each with a 2x2 pooling, and a hidden layer."""

    def pooled(side: int) -> int:
        for _, kernel, padding in table:
            side = max(0, side + 2 * padding - kernel + 1) // 2
        return side

    channels, h, w = shape[0], pooled(shape[1]), pooled(shape[2])
    if min(h, w) < 1:
        smallest = next(side for side in count(1) if pooled(side))
        raise InputError(
            f"name = {name!r}: images of {shape[1]}x{shape[2]} are too small, it needs {smallest}x{smallest} "
            "with these options; 'mlp' takes any size"
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (width, kernel, padding) in enumerate(table, start=1):
        convolution = Conv2d(channels, width, kernel, padding=padding)
        layers |= {f"conv{i}": convolution, f"pool{i}": _Pool(2), f"relu{i}": activation()}
        channels = width
    # flattened first: the mask lies in memory as the features do, whatever the layout before
    layers |= {"flatten": nn.Flatten(), "dropout": Dropout(dropout)}
    layers |= {"fc": nn.Linear(channels * h * w, features), "relu": activation()}
    chain = _Chain if activation is nn.ReLU else nn.Sequential
    return SplitModel(chain(layers), nn.Linear(features, classes))


class _Chain(nn.Sequential):
    """Layers one after the other. In bf16 on a processor, all up to the last pooling work in oneDNN's own layout.

    There pooling notes its places in bytes and fills no zeros, and convolutions are a little quicker: a step takes 0.92
    of the time. But pooling and ReLU leave out what is not a number, and there are no second derivatives.

    In fp32 on a processor, where no gradient is wanted, they go with the samples innermost in memory (``innermost``),
    if that is quicker and no hook wants to see what happens.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, channels, h, w]`` to what the last layer says."""
        layers = list(self)
        if x.device.type == "cpu" and x.dim() == 4:
            if _multiplies_bf16():
                x = x.to_mkldnn(torch.bfloat16)
            elif convolutions := _without_gradient(layers, x):
                x = innermost.through(convolutions, x)
                layers = layers[len(_BLOCK) * len(convolutions) :]
        return _through(layers, x)


def _through(layers: list[nn.Module], x: Tensor) -> Tensor:
    for layer, following in zip_longest(layers, layers[1:]):
        if x.is_mkldnn and not _stays(layer, following):
            x = x.to_dense()
        x = layer(x)
    return x.to_dense() if x.is_mkldnn else x


def _stays(layer: nn.Module, following: nn.Module | None) -> bool:
    """Whether a layer works in oneDNN's layout; a ReLU before a convolution, else it is quicker in torch's."""
    return isinstance(layer, Conv2d | _Pool) or (isinstance(layer, nn.ReLU) and isinstance(following, Conv2d))


def _multiplies_bf16() -> bool:
    """Whether the products on the processor are going to be in bf16, by oneDNN."""
    wanted = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return wanted and _onednn_takes_bf16()


@cache
def _onednn_takes_bf16() -> bool:
    built: Callable[[], bool] = torch.backends.mkldnn.is_available
    return built() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class _Pool(nn.MaxPool2d):
    """2x2 max pooling. Where no gradient is wanted it notes no places, which costs more than the comparisons do."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, channels, h, w]`` to ``[batch, channels, h // 2, w // 2]``."""
        if torch.is_grad_enabled() or x.is_mkldnn:
            return functional.max_pool2d(x, self.kernel_size, self.stride)
        h, w = (side // 2 * 2 for side in x.shape[-2:])
        # rows first: in channels-last order whole rows are compared at once, and only half is left for the columns
        tall = torch.maximum(x[..., 0:h:2, :w], x[..., 1:h:2, :w])
        return torch.maximum(tall[..., 0::2], tall[..., 1::2])


_BLOCK = [Conv2d, _Pool, nn.ReLU]


def _without_gradient(layers: list[nn.Module], x: Tensor) -> list[Conv2d]:
    """The convolutions of the blocks that a chain starts with; none where these better go layer by layer."""
    if torch.is_grad_enabled() or not is_fp32(x) or peek_interpreter_stack() is not None:  # within vmap
        return []
    size, kinds = len(_BLOCK), [*map(type, layers)]
    blocks = layers[: next(start for start in count(0, size) if kinds[start : start + size] != _BLOCK)]
    convolutions = [layer for layer in blocks if isinstance(layer, Conv2d)]
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in blocks)
    fits = bool(convolutions) and len(x) and x.shape[1] == convolutions[0].in_channels
    return convolutions if fits and not hooked and innermost.pays_off(convolutions, *x.shape[2:]) else []


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
        inner = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


def _resnet(shape: Shape, classes: int, width: int, stages: int, blocks: int) -> SplitModel:
    _at_least(1, width=width)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
    layers |= {"bn1": nn.BatchNorm2d(width), "relu": nn.ReLU()}
    inputs = width
    for i in range(stages):
        outputs = width * 2**i
        first = _Block(inputs, outputs, stride=2 if i else 1)
        layers[f"layer{i + 1}"] = nn.Sequential(first, *(_Block(outputs, outputs, 1) for _ in range(blocks - 1)))
        inputs = outputs
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return SplitModel(nn.Sequential(layers), nn.Linear(inputs, classes))
