"""APFL.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. arXiv 2003.13461, 2020.

Beside the shared model w, a client keeps a model v and a number alpha in [0, 1]; its personal model is the mixture of
parameters ``alpha v + (1 - alpha) w``. In every step w descends its own loss, and v that of the mixture.

Details that matter: parameters are mixed, not answers; all steps of a batch use the values before it; alpha descends
the mixture's loss, along ``<v - w, gradient at the mixture>``.

Our decisions: alpha moves once a round, on the first batch, as in the authors' code; its regulariser there, which the
paper does not have, is left out. Momentum, weight decay and clipping of the run do not apply. Of BatchNorm's statistics
v has those that the mixture gathers while it is trained; for the test they are mixed with w's like the parameters, so
that the personal model is w at alpha 0 and v at alpha 1.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manyheads.contract import (
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Grad,
    Part,
    Predictor,
    PrivateState,
    Tree,
    Update,
    between,
)

Carry = tuple[Tree, Tree, Tensor, int]


@dataclass(frozen=True)
class APFL(Algorithm):
    """FedAvg, and at each client a mixture of the shared model and one of its own.

    Attributes:
        alpha: the own model's share at the start, in [0, 1].
        adaptive: whether alpha is trained.
    """

    alpha: float = 0.5
    adaptive: bool = True

    def __post_init__(self) -> None:
        between(0, 1, self, "alpha")

    def init_private(self, received: Broadcast, ctx: ClientContext) -> PrivateState:
        return super().init_private(received, ctx).replace(own=ctx.initial, alpha=self.alpha)

    def local_update(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        lr = ctx.sgd.lr

        def step(carry: Carry, b: Batch, grad: Grad) -> Carry:
            w, v, alpha, number = carry
            of_w, _ = grad(self.loss, w, b)
            # with the buffers of v, which grad updates
            mixture = v | ctx.take(w.lerp(v, alpha.float()), Part.PARAMETERS)
            mixed, _ = grad(self.loss, mixture, b)
            slope = sum(((v[name] - w[name]) * g).sum().double() for name, g in mixed.items())
            moved = (alpha - lr * slope).clamp(0, 1) if self.adaptive and number == 0 else alpha
            return w.descend(of_w, lr), v.descend(mixed * alpha, lr), moved, number + 1

        share = torch.tensor(private.alpha, dtype=torch.float64)
        w, v, share, _ = ctx.scan((self.assemble(received, private), private.own, share, 0), step, data)
        alpha = float(share)
        ctx.note("alpha", alpha)
        update = self.update(w, received, private, data, ctx)
        return replace(
            update,
            private=update.private.replace(own=v, alpha=alpha),
            trained=Predictor(w.lerp(v, alpha), self.logits),
        )

    def personal(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Predictor:
        return Predictor(self.assemble(received, private).lerp(private.own, private.alpha), self.logits)
