"""FedAvg.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data. AISTATS 2017.

Every client of the cohort trains the received model for E epochs of SGD; the next model is their mean, weighted by the
numbers of train images.

Details that matter: the weights are normalised over the clients that returned; BatchNorm's statistics are averaged like
the weights. The global model is measured on the whole test set and on each client's, which are different numbers.

The variant ``prior`` is the same model with the log of a client's class shares added to its logits.
"""

from dataclasses import dataclass

from manyheads.contract import Algorithm, Broadcast, ClientContext, Data, Predictor, Predictors, PrivateState
from manyheads.local.prior import with_prior


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """One model for all: the average of what the clients trained."""

    def personal(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Predictors | None:
        """The global model with the client's prior; the model itself where a client keeps some of it, as buffers."""
        model = Predictor(self.assemble(received, private), self.logits)
        kept = {} if super().personal(received, private, data, ctx) is None else {"": model}
        return kept | {"prior": with_prior(model, data.y, ctx.classes)}
