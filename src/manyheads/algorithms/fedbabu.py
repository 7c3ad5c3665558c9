"""FedBABU.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022.

Only the backbone is trained and averaged, under a random head that is the same for all clients and never changes. A
client's personal model is the global one after a fine-tuning on its own data.

Details that matter: the head has no gradient at all, so that neither momentum nor weight decay moves it; the tuned
model is dropped after the test. ``post_agg`` is the model before the fine-tuning, ``post_adapt`` after it; the paper's
numbers are of the second kind.
"""

from dataclasses import dataclass

from manyheads.contract import (
    Algorithm,
    Broadcast,
    ClientContext,
    Data,
    Part,
    PrivateState,
    Tree,
    at_least,
    one_of,
)

TUNED = {"all": Part.ALL, "head": Part.HEAD}


@dataclass(frozen=True)
class FedBABU(Algorithm):
    """A shared backbone under a random head; clients fine-tune for the test.

    Attributes:
        tune: what is fine-tuned, ``all`` or ``head``.
        tune_epochs: epochs of the fine-tuning.
    """

    tune: str = "all"
    tune_epochs: int = 5
    shared = Part.BACKBONE

    def __post_init__(self) -> None:
        one_of(TUNED, self, "tune")
        at_least(0, self, "tune_epochs")

    def train(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Tree:
        return ctx.fit(model, self.loss, data, trains=Part.BACKBONE)

    def adapts(self) -> Part:
        return TUNED[self.tune]

    def adapt(self, model: Tree, data: Data, ctx: ClientContext) -> Tree:
        return ctx.fit(model, self.loss, data, trains=self.adapts(), epochs=self.tune_epochs)
