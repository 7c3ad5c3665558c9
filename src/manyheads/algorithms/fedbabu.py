"""FedBABU.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022.

Only the backbone is trained and averaged, under a random head that is the same for all clients and never changes. A
client's personal model is the global one after a fine-tuning on its own data.

Details that matter: the head has no gradient at all, so that neither momentum nor weight decay moves it; the tuned
model is dropped after the test. ``post_agg`` is the model before the fine-tuning, ``post_adapt`` after it; the paper's
numbers are of the second kind.
"""

from dataclasses import dataclass

from manyheads.algorithms.fedavg_ft import FedAvgFT
from manyheads.contract import Broadcast, ClientContext, Data, Objective, Part, PrivateState, Tree


@dataclass(frozen=True)
class FedBABU(FedAvgFT):
    """A shared backbone under a random head; clients fine-tune for the test.

    Attributes:
        tune: what is fine-tuned, ``all`` or ``head``.
        tune_epochs: epochs of the fine-tuning; None for the local epochs of the run.
        tune_steps: so many mini-batches instead of epochs.
    """

    tune_epochs: int | None = 5
    shared = Part.BACKBONE

    def train(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Tree:
        return ctx.fit(model, self.loss, data, trains=Part.BACKBONE)

    def objective(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Objective:
        return super().objective(received, private, data, ctx)._replace(trains=Part.BACKBONE)
