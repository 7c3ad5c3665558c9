"""pFedMe.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.

A client's personal model theta minimises ``CE(theta) + prox_weight / 2 ||theta - w||^2``, approximately: on every batch
it takes some steps, after which ``w <- w - eta prox_weight (w - theta)``. The server moves to the mean of the clients'
w.

Details that matter: theta is kept as a copy of its own, not as a name for w, and is what is tested; one batch serves
all inner steps; both w and theta start a round at the received model, and theta goes on from batch to batch.

Our decisions: only the cohort trains, for the run's epochs, as in every other method here. In the paper all clients
train in every round, for R mini-batches, and a random part of them is averaged: ``train.participation = 1`` with
``local_rounds`` and ``averaged``, as in the profile ``pfedme``, where those who are not averaged count as senders too,
and a simulated clock goes by the run's epochs, which do not apply. The hidden weight decay of the authors' code is left
out. The learning rate, momentum, weight decay and clipping of the run do not apply. Only theta sees images, so that w
takes over its buffers; at the server these follow the mean by size, whatever beta is. A round of as many batches costs
``inner_steps`` times FedAvg's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

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
    ServerContext,
    ServerState,
    Tree,
    Update,
    Upload,
    above,
    at_least,
    between,
)

Carry = tuple[Tree, Tree]


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """Personal models within reach of a shared one, by Moreau envelopes.

    Attributes:
        prox_weight: lambda > 0.
        inner_steps: K, steps of theta on a batch, at least 1.
        personal_lr: their learning rate, > 0.
        lr: eta > 0, the learning rate of w, which descends ``prox_weight (w - theta)``.
        beta: how far the server goes to the clients' mean, > 0.
        local_rounds: R, mini-batches a round, at least 1; the epochs of the run if not given.
        averaged: the share of the round's clients whose w the server averages, drawn anew every round, in (0, 1].
    """

    prox_weight: float = 15.0
    inner_steps: int = 5
    personal_lr: float = 0.01
    lr: float = 0.005
    beta: float = 1.0
    local_rounds: int | None = None
    averaged: float = 1.0

    def __post_init__(self) -> None:
        above(0, self, "prox_weight", "personal_lr", "lr", "beta", "averaged")
        at_least(1, self, "inner_steps", "local_rounds")
        between(0, 1, self, "averaged")

    def init_private(self, received: Broadcast, ctx: ClientContext) -> PrivateState:
        return super().init_private(received, ctx).replace(theta=ctx.initial)

    def local_update(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        def parameters(tree: Tree) -> Tree:
            return ctx.take(tree, Part.PARAMETERS)

        def step(carry: Carry, b: Batch, grad: Grad) -> Carry:
            w, theta = carry
            for _ in range(self.inner_steps):
                gradient, _ = grad(self.loss, theta, b)
                pull = parameters(theta - w) * self.prox_weight
                theta = theta.descend(pull + gradient, self.personal_lr)
            return w.descend(parameters(w - theta), self.lr * self.prox_weight), theta

        start = self.assemble(received, private)
        w, theta = ctx.scan((start, start), step, data, steps=self.local_rounds)
        update = self.update(w | ctx.take(theta, Part.BUFFER), received, private, data, ctx)
        return replace(update, private=update.private.replace(theta=theta), trained=Predictor(theta, self.logits))

    def personal(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Predictor:
        return Predictor(private.theta, self.logits)

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        count = max(1, int(self.averaged * len(uploads) + 0.5))
        drawn = set(torch.randperm(len(uploads), generator=ctx.rng("averaged"))[:count].tolist())
        mean = ctx.average({k: upload for i, (k, upload) in enumerate(uploads.items()) if i in drawn}).model
        return server.replace(model=server.model.lerp(mean, self.beta) | ctx.take(mean, Part.BUFFER))
