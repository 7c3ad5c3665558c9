"""FedALA.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated Learning. AAAI
2023.

Before it trains, a client mixes what it received into its last model, number by number:
``last + (received - last) W`` with W in [0, 1]. W is learned on a share of its images; only the top layer is mixed, all
below is taken as received.

Details that matter: the first time W is trained until its loss settles, at most ``most_epochs``; later, and for a
test, it gets one epoch from where it was. A test changes neither W nor the last model. A client without a last model
takes the received one. The share of images is drawn at random; batch statistics are frozen while W is learned.

Our decisions: the top layer is the head, the last linear layer; the loss that settles is the mean over an epoch's
batches, where the authors' code takes that of its last batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import pstdev

import torch
from torch import Tensor

from manyheads.contract import (
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Grad,
    Objective,
    Part,
    Predictor,
    PrivateState,
    Tree,
    Update,
    above,
    at_least,
    between,
)

WINDOW, SETTLED = 10, 0.1  # the loss is settled when its values of the last ten epochs spread less than this


@dataclass(frozen=True)
class FedALA(Algorithm):
    """FedAvg whose clients learn how much of the shared model to take, number by number.

    Attributes:
        weight_lr: eta > 0, the learning rate of W.
        share: of the client's images on which W is learned, in (0, 1].
        most_epochs: of W the first time, at least 1.
        learned: whether W is learned; else it stays 1, which is FedAvg.
    """

    weight_lr: float = 1.0
    share: float = 0.8
    most_epochs: int = 50
    learned: bool = True

    def __post_init__(self) -> None:
        above(0, self, "weight_lr", "share")
        between(0, 1, self, "share")
        at_least(1, self, "most_epochs")

    def objective(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Objective:
        """The loss at the mixture."""
        return Objective(self.mixed(received, private, data, ctx, first=self.most_epochs)[0], self.loss, data)

    def local_update(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        start, weights = self.mixed(received, private, data, ctx, first=self.most_epochs)
        trained = self.train(start, received, private, data, ctx)
        update = self.update(trained, received, private, data, ctx)
        return replace(update, private=update.private.replace(last=ctx.take(trained, Part.HEAD), **weights))

    def personal(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Predictor:
        return Predictor(self.mixed(received, private, data, ctx, first=1)[0], self.logits)

    def mixed(
        self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext, first: int
    ) -> tuple[Tree, Mapping[str, Tree]]:
        """The client's mixture, and what it keeps of W; ``first`` bounds the epochs of a W that is new."""
        model = self.assemble(received, private)
        if "last" not in private:
            return model, {}
        last: Tree = private.last
        weights: Tree = private.get("weights", last.map(torch.ones_like))
        if self.learned:
            most = 1 if "weights" in private else first
            weights = self.settled(model, last, weights, data, ctx, most)
        return model | last.lerp(ctx.take(model, Part.HEAD), weights), {"weights": weights}

    def settled(self, model: Tree, last: Tree, weights: Tree, data: Data, ctx: ClientContext, most: int) -> Tree:
        """W after epochs on a share of the images, until the loss is settled or ``most`` are done."""
        rows = torch.randperm(len(data), generator=ctx.rng("share"))[: max(1, int(self.share * len(data)))]
        some = data.take(rows).given(received=model, last=last, new=ctx.take(model, Part.HEAD))

        def step(carry: tuple[Tree, Tensor], b: Batch, grad: Grad) -> tuple[Tree, Tensor]:
            w, total = carry
            # The backbone counts as trained, so that its dropout is on; layers with batch statistics do not.
            gradient, loss = grad(self.loss, b.received | b.last.lerp(b.new, w), b, Part.ALL - Part.NORM)
            slope = Tree({name: g * (b.new[name] - b.last[name]) for name, g in ctx.take(gradient, Part.HEAD).items()})
            return w.descend(slope, self.weight_lr).map(lambda t: t.clamp(0, 1)), total + loss.double()

        losses: list[float] = []
        for epoch in range(most):
            start = (weights, torch.zeros((), dtype=torch.float64))
            weights, total = ctx.scan(start, step, some, epochs=range(epoch, epoch + 1), phase="weights")
            losses.append(float(total) / ctx.steps(some, 1))
            if len(losses) >= WINDOW and pstdev(losses[-WINDOW:]) < SETTLED:
                break
        return weights
