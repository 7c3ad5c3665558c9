"""LG-FedAvg.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning with
Local and Global Representations. NeurIPS Workshop on Federated Learning 2019, arXiv 2001.01523.

The top of the network is averaged; the representation below it is private. It is FedPer the other way round.

Our decisions: the shared top is the head, the last linear layer; clients start from the initial model, not from one
that FedAvg has trained before.
"""

from dataclasses import dataclass

from manyheads.contract import Algorithm, Part


@dataclass(frozen=True)
class LGFedAvg(Algorithm):
    """A shared head on private backbones."""

    shared = Part.HEAD
