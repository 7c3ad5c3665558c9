"""A network of three numbers, two clients and three images, and formulas for what training makes of them.

The backbone is z = theta x, the head gives the logits (phi_0 z, phi_1 z). Client 0 has the images 1 and 2 with labels 0
and 1, client 1 the image 3 with label 1, the server the image 4 with label 0.
"""

import itertools
import math

import numpy as np
import torch
import toys
from torch import nn

from manyheads.data.dataset import Dataset, Split
from manyheads.data.partition import Partition
from manyheads.models import SplitModel

LR = 0.1
THETA, PHI = 0.5, (1.0, -1.0)
CLIENTS = {0: ([1.0, 2.0], [0, 1]), 1: ([3.0], [1])}
AUXILIARY = ([4.0], [0])


def linear():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False))
    model = SplitModel(backbone, nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        backbone[1].weight.fill_(THETA)
        model.head.weight.copy_(torch.tensor(PHI)[:, None])
    return model


def run(algorithm, rounds=1, clients=CLIENTS, **values):
    """A run of both clients; ``clients`` gives them other images and labels."""

    def split(pixels, labels):
        return Split(np.array(pixels, np.uint8).reshape(-1, 1, 1, 1), np.array(labels))

    def rows(start=0, end=0):
        return np.arange(start, end, dtype=np.int64)

    held = [*clients.values(), AUXILIARY]
    pixels, labels = (list(itertools.chain(*column)) for column in zip(*held, strict=True))
    data = Dataset("pixels", split(pixels, labels), split([1, 2], [0, 1]), ("0", "1"), (0.0,), (1 / 255,))
    ends = itertools.accumulate(len(images) for images, _ in held)
    *train, auxiliary = (rows(end - len(images), end) for end, (images, _) in zip(ends, held, strict=True))
    parts = Partition(tuple(train), (rows(), rows()), (rows(0, 1), rows(1, 2)), auxiliary)
    values = {"train__rounds": rounds, "train__epochs": 2, "train__batch": 64, "train__lr": LR, **values}
    values = {"cohorts": [[0, 1]] * rounds, **values}
    return toys.run(algorithm, dataset=data, partition=parts, model=linear, **values)


def softmax(logits):
    exp = [math.exp(v) for v in logits]
    return [e / sum(exp) for e in exp]


def trained(theta, phi, images, labels, epochs, body=True, teacher=None, share=0.0, t=1.0, mu=0.0):
    """SGD on (1 - share) CE + share t^2 KL(teacher || student) + mu / 2 (theta - its start)^2, full batch."""
    start = theta
    for _ in range(epochs):
        g_theta, g_phi = mu * (theta - start), [0.0, 0.0]
        for x, y in zip(images, labels, strict=True):
            z = theta * x
            p = softmax([f * z for f in phi])
            soft = softmax([f * z / t for f in phi])
            wanted = softmax([f * start * x / t for f in teacher]) if teacher else soft
            for c in (0, 1):
                g = (1 - share) * (p[c] - (y == c)) + share * t * (soft[c] - wanted[c])
                g_phi[c] += g * z / len(images)
                g_theta += g * phi[c] * x / len(images)
        theta = theta - LR * g_theta if body else theta
        phi = [f - LR * g for f, g in zip(phi, g_phi, strict=True)]
    return theta, phi


def server(result):
    return result.server.model["backbone.1.weight"].item(), result.server.model["head.weight"].flatten().tolist()


def head(kept):
    """The numbers of a head, of a tree that holds it alone or within a model."""
    return next(iter(kept.values())).flatten().tolist()
