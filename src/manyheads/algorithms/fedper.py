"""FedPer.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. arXiv 1912.00818, 2019.

Backbone and head are trained together; only the backbone is sent and averaged. The head stays with its client from
round to round.

Our decision: every head starts from the same initial head, also for a client that first takes part late.
"""

from dataclasses import dataclass

from manyheads.contract import Algorithm, Part


@dataclass(frozen=True)
class FedPer(Algorithm):
    """A shared backbone; each client keeps a head of its own."""

    shared = Part.BACKBONE
