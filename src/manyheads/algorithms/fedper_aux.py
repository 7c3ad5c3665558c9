"""FedPer with the auxiliary set as one more client.

A control for methods whose server trains on an auxiliary set D_s, such as pFedKDH: here FedPer has the same images. The
server is a client that takes part in every round, with a head of its own that it keeps.
"""

from dataclasses import dataclass

from manyheads.algorithms.fedavg_aux import FedAvgAux
from manyheads.contract import Algorithm, Part


@dataclass(frozen=True)
class FedPerAux(FedAvgAux):
    """FedPer whose server takes part in every round, with the auxiliary set."""

    shared = Part.BACKBONE
    personal = Algorithm.personal
