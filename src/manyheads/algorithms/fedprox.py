"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.

FedAvg whose clients minimise ``CE + prox_weight / 2 ||w - w_received||^2``.

Details that matter: the term covers all parameters and stands in the loss, so that momentum and weight decay treat its
gradient like any other. The paper's partial work is the run's to simulate (``[reality]``, ``late = "partial"``); unless
it does, every client trains for the local epochs of the run.
"""

from dataclasses import dataclass

from manyheads.algorithms.fedavg import FedAvg
from manyheads.contract import (
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Model,
    PrivateState,
    Proximal,
    ServerContext,
    Terms,
    Tree,
    at_least,
)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with clients held near the model that they received.

    Attributes:
        prox_weight: mu, at least 0; the paper's grid is 0.001 to 1.
    """

    prox_weight: float = 0.01

    def __post_init__(self) -> None:
        at_least(0, self, "prox_weight")

    def remark(self, ctx: ServerContext) -> str:
        return "with prox_weight = 0 this is FedAvg" if self.prox_weight == 0 else ""

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        return data.given(reference=received.model)

    def loss(self, m: Model, b: Batch) -> Terms:
        return {**super().loss(m, b), "prox": Proximal(self.prox_weight, m.params, b.reference)}
