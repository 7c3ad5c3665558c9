"""Per-FedAvg.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach. NeurIPS 2020.

The shared model is trained to be good after one step of gradient descent on a client's data:
``w' = w - inner_lr gradient(w; first batch)``, then ``w <- w - outer_lr gradient(w'; second batch)`` (the first-order
variant). The Hessian-free variant adds the derivative of the inner step, by finite differences on a third batch.

Details that matter: an epoch visits every batch once, in groups of two or three; a client with fewer batches uses them
again, so that it trains like any other; the step for the test is plain, on a batch of the client's train images, and
dropped after it. ``post_adapt`` is the method's answer.

Our decisions: beta is the run's learning rate unless given; momentum, weight decay and clipping of the run do not
apply; every forward pass of a step updates BatchNorm's statistics.
"""

from dataclasses import dataclass

from manyheads.contract import (
    SGD,
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Grad,
    Part,
    PrivateState,
    Tree,
    above,
    at_least,
    one_of,
)

WIDTH = {"first_order": 2, "hessian_free": 3}


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """FedAvg trained to be one step away from every client.

    Attributes:
        variant: ``first_order`` or ``hessian_free``.
        inner_lr: alpha > 0, the learning rate of the inner step and of the test's.
        outer_lr: beta > 0; None for the run's learning rate.
        delta: > 0, how far finite differences go.
        adapt_steps: steps before the test.
    """

    variant: str = "first_order"
    inner_lr: float = 0.01
    outer_lr: float | None = None
    delta: float = 1e-3
    adapt_steps: int = 1

    def __post_init__(self) -> None:
        one_of(WIDTH, self, "variant")
        above(0, self, "inner_lr", "outer_lr", "delta")
        at_least(0, self, "adapt_steps")

    def train(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Tree:
        lr = ctx.sgd.lr if self.outer_lr is None else self.outer_lr

        def step(w: Tree, batches: tuple[Batch, ...], grad: Grad) -> Tree:
            inner, _ = grad(self.loss, w, batches[0])
            outer, _ = grad(self.loss, w.descend(inner, self.inner_lr), batches[1])
            if self.variant == "hessian_free":
                ahead, _ = grad(self.loss, w.descend(outer, -self.delta), batches[2], Part.ALL, 1)
                behind, _ = grad(self.loss, w.descend(outer, self.delta), batches[2], Part.ALL, 1)
                outer = outer - (ahead - behind) * (self.inner_lr / (2 * self.delta))
            return w.descend(outer, lr)

        return ctx.scan(model, step, data, width=WIDTH[self.variant])

    def adapt(self, model: Tree, data: Data, ctx: ClientContext) -> Tree:
        return ctx.fit(model, self.loss, data, steps=self.adapt_steps, optim=SGD(self.inner_lr))
