"""Ditto.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021.

The clients train a shared model as FedAvg does. Beside it each keeps a model of its own, trained on
``CE + prox_weight / 2 ||v - w_received||^2``.

Details that matter: the reference is the received model, not the locally trained one; only the shared model is sent;
the personal model goes on from where it was.

Our decision: the personal model gets as many epochs as the shared one (``personal_epochs``), so that a round costs
twice FedAvg's.
"""

from dataclasses import dataclass, replace

from manyheads.contract import (
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Model,
    Predictor,
    PrivateState,
    Proximal,
    Terms,
    Update,
    at_least,
)


@dataclass(frozen=True)
class Ditto(Algorithm):
    """FedAvg, and beside it a personal model at each client that is held near the shared one.

    Attributes:
        prox_weight: lambda, at least 0; the paper's grid is 0.1, 1, 2.
        personal_epochs: epochs of the personal model; None for the local epochs of the run.
    """

    prox_weight: float = 1.0
    personal_epochs: int | None = None

    def __post_init__(self) -> None:
        at_least(0, self, "prox_weight", "personal_epochs")

    def init_private(self, received: Broadcast, ctx: ClientContext) -> PrivateState:
        return super().init_private(received, ctx).replace(personal=ctx.initial)

    def local_update(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        near = data.given(reference=received.model)
        mine = ctx.fit(private.personal, self.personal_loss, near, epochs=self.personal_epochs, phase="personal")
        update = super().local_update(received, private, data, ctx)
        return replace(update, private=update.private.replace(personal=mine), trained=Predictor(mine, self.logits))

    def personal_loss(self, m: Model, b: Batch) -> Terms:
        return {**self.loss(m, b), "prox": Proximal(self.prox_weight, m.params, b.reference)}

    def personal(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Predictor:
        return Predictor(private.personal, self.logits)
