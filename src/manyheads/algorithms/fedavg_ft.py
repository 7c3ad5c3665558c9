"""FedAvg with fine-tuning.

FedAvg; for the test each client trains a copy of the global model on its own data, and drops it. The control for every
method that adapts before its test, such as pFedKDH's variant EA: ``tune = "head"`` with ``tune_steps = 10`` gives the
same steps.

``post_agg`` is the global model, ``post_adapt`` the tuned ones.
"""

from dataclasses import dataclass

from manyheads.contract import (
    Algorithm,
    ClientContext,
    Data,
    Part,
    Tree,
    at_least,
    one_of,
)

TUNED = {"all": Part.ALL, "head": Part.HEAD}


@dataclass(frozen=True)
class FedAvgFT(Algorithm):
    """FedAvg, and a fine-tuning of the global model on each client's data for the test.

    Attributes:
        tune: what is fine-tuned, ``all`` or ``head``.
        tune_epochs: epochs of the fine-tuning; None for the local epochs of the run.
        tune_steps: so many mini-batches instead of epochs.
    """

    tune: str = "all"
    tune_epochs: int | None = None
    tune_steps: int | None = None

    def __post_init__(self) -> None:
        one_of(TUNED, self, "tune")
        at_least(0, self, "tune_epochs", "tune_steps")

    def adapts(self) -> Part:
        return TUNED[self.tune]

    def adapt(self, model: Tree, data: Data, ctx: ClientContext) -> Tree:
        return ctx.fit(model, self.loss, data, trains=self.adapts(), epochs=self.tune_epochs, steps=self.tune_steps)
