"""The small networks of the papers. Every public function here is a model that a config can name.

Each takes the images' ``shape`` ``(c, h, w)``, the number of ``classes`` and its options as keywords, as a factory of
your own would. Weights are drawn from torch's global generator, so the caller decides the seed. ReLU comes after the
pooling: the function is the same, at a quarter of the elements.
"""

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from manyheads.errors import InputError
from manyheads.models.checks import Shape, at_least, pooled, probability
from manyheads.models.dropout import Dropout
from manyheads.models.split import SplitModel


def cnn(
    *,
    shape: Shape,
    classes: int,
    kernel: int = 5,
    padding: int = 0,
    widths: tuple[int, int] = (32, 64),
    features: int = 512,
    dropout: float = 0.25,
) -> SplitModel:
    """The papers' CNN: two 5x5 convolutions with pooling, dropout, a hidden layer, a linear head.

    The network of PFLlib and of FedAvg's paper (McMahan et al. 2017) plus the dropout that pFedKDH names.
    ``kernel = 3`` with ``padding = 1`` is the variant that fits the values published for CIFAR-10 better.

    Args:
        shape: Images, ``(c, h, w)``.
        classes: Number of logits.
        kernel: Side of both convolutions, at least 1.
        padding: Their padding, at least 0.
        widths: Their channels, each at least 1.
        features: Size of the hidden layer, at least 1.
        dropout: Probability in [0, 1), before the hidden layer.

    Raises:
        InputError: On a value out of range or an image that is too small.
    """
    at_least(1, kernel=kernel, widths=widths, features=features)
    at_least(0, padding=padding)
    probability(dropout=dropout)
    if len(widths) != 2:
        raise InputError(f"model.widths = {list(widths)}: must be two numbers, such as [32, 64]")
    first, second = widths
    h, w = pooled("cnn", shape, [(kernel, padding), (kernel, padding)])
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(shape[0], first, kernel, padding=padding)),
        ("pool1", nn.MaxPool2d(2)),
        ("relu1", nn.ReLU()),
        ("conv2", nn.Conv2d(first, second, kernel, padding=padding)),
        ("pool2", nn.MaxPool2d(2)),
        ("relu2", nn.ReLU()),
        ("dropout", Dropout(dropout)),
        ("flatten", nn.Flatten()),
        ("fc", nn.Linear(second * h * w, features)),
        ("relu3", nn.ReLU()),
    ]
    return SplitModel(nn.Sequential(OrderedDict(layers)), nn.Linear(features, classes))


def mlp(*, shape: Shape, classes: int, hidden: tuple[int, ...] = (128,), dropout: float = 0.0) -> SplitModel:
    """A multi-layer perceptron, for 8x8 digits and quick tries.

    Args:
        shape: Images, ``(c, h, w)``.
        classes: Number of logits.
        hidden: Sizes of the hidden layers, each at least 1, at least one layer; the last one gives the features.
        dropout: Probability in [0, 1), after each hidden layer.

    Raises:
        InputError: On a value out of range.
    """
    at_least(1, hidden=hidden)
    probability(dropout=dropout)
    sizes = [shape[0] * shape[1] * shape[2], *hidden]
    layers: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
    for i, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        layers += [(f"fc{i}", nn.Linear(inputs, outputs)), (f"relu{i}", nn.ReLU()), (f"dropout{i}", Dropout(dropout))]
    return SplitModel(nn.Sequential(OrderedDict(layers)), nn.Linear(sizes[-1], classes))


def lineage_cnn(*, shape: Shape, classes: int, blocks: int = 0, features: int = 128) -> SplitModel:
    """The CNN of FedeCouple's lineage: 16, 32 and (from 32x32 on) 64 channels, leaky ReLU, 128 features.

    As FedPAC and FedMate have it: conv5x5(16) - pool - conv5x5(32, padding 1) - pool, for 32x32 images
    conv3x3(64, padding 1) - pool as well, then a hidden layer and a linear head.

    Args:
        shape: Images, ``(c, h, w)``.
        classes: Number of logits.
        blocks: Number of convolutions, 2 or 3; 0 takes 3 for images of at least 32x32 and otherwise 2.
        features: Size of the hidden layer, at least 1.

    Raises:
        InputError: On a value out of range or an image that is too small.
    """
    at_least(1, features=features)
    if blocks not in (0, 2, 3):
        raise InputError(f"model.blocks = {blocks}: must be 2, 3, or 0 for the choice by image size")
    count = blocks or (3 if min(shape[1:]) >= 32 else 2)
    table = [(16, 5, 0), (32, 5, 1), (64, 3, 1)][:count]
    h, w = pooled("lineage_cnn", shape, [(kernel, padding) for _, kernel, padding in table])
    layers: list[tuple[str, nn.Module]] = []
    channels = shape[0]
    for i, (width, kernel, padding) in enumerate(table, start=1):
        layers.append((f"conv{i}", nn.Conv2d(channels, width, kernel, padding=padding)))
        layers += [(f"pool{i}", nn.MaxPool2d(2)), (f"relu{i}", nn.LeakyReLU())]
        channels = width
    layers += [("flatten", nn.Flatten()), ("fc", nn.Linear(channels * h * w, features)), ("relu", nn.LeakyReLU())]
    return SplitModel(nn.Sequential(OrderedDict(layers)), nn.Linear(features, classes))
