"""FedRep.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning. ICML
2021.

Only the backbone is sent and averaged. A client first trains its head on the received backbone, then the backbone on
its new head.

Details that matter: each phase has an optimizer of its own, and what is frozen has no gradient at all, so neither
momentum nor weight decay moves it. There is no last round of head training only, as in the authors' scripts: it would
give this method a budget that others do not have.

Our decision: head and backbone epochs together are the local epochs of the run, with at least one each. The paper
trains the head for 10 epochs and the backbone for one: ``head_epochs = 10``.
"""

from dataclasses import dataclass

from manyheads.contract import Algorithm, Broadcast, ClientContext, Data, Part, PrivateState, Tree, at_least


@dataclass(frozen=True)
class FedRep(Algorithm):
    """A shared backbone and private heads, trained one after the other.

    Attributes:
        backbone_epochs: epochs on the backbone.
        head_epochs: epochs on the head before them; None for what the local epochs leave, at least 1.
    """

    backbone_epochs: int = 1
    head_epochs: int | None = None
    shared = Part.BACKBONE

    def __post_init__(self) -> None:
        at_least(0, self, "backbone_epochs", "head_epochs")

    def train(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Tree:
        b = self.backbone_epochs
        h = max(1, ctx.epochs - b) if self.head_epochs is None else self.head_epochs
        model = ctx.fit(model, self.loss, data, trains=Part.HEAD, epochs=range(h), phase="head")
        # Epochs are numbered within the round, so that the phases share no order of samples.
        return ctx.fit(model, self.loss, data, trains=Part.BACKBONE, epochs=range(h, h + b), phase="backbone")
