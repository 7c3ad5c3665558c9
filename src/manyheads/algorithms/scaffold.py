"""SCAFFOLD.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML
2020.

Every step goes along ``gradient + c - c_k``, where the control variates c and c_k estimate the gradient of all and of
this client. Afterwards (option II) ``c_k <- c_k - c + (received - trained) / (steps lr)``; the server takes the mean of
the models and moves c by the mean change of c_k times the share of clients that took part.

Details that matter: the last small batch of an epoch is a step too; clients count alike, whatever their size, as in the
paper; buffers have no control variate and follow the mean by size; c_k is kept until the client's next round, and is 0
before its first.

Our decision: momentum, weight decay and clipping of the run do not apply, since option II assumes plain SGD.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from manyheads.contract import (
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Grad,
    Part,
    PrivateState,
    ServerContext,
    ServerState,
    Tree,
    Update,
    Upload,
    above,
)


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """FedAvg with control variates against client drift.

    Attributes:
        server_lr: eta_g > 0, how far the server goes to the clients' mean.
    """

    server_lr: float = 1.0
    sends: ClassVar = {"control": Part.PARAMETERS}

    def __post_init__(self) -> None:
        above(0, self, "server_lr")

    # server room

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        return ServerState(model=ctx.initial, control=ctx.take(ctx.initial, Part.PARAMETERS) * 0.0)

    def broadcast(self, server: ServerState, client: int, ctx: ServerContext) -> Broadcast:
        return super().broadcast(server, client, ctx).replace(control=server.control)

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        """Uniform means of models and of changes of control variates."""
        mean = ctx.average(uploads, "model", "control", weight=dict.fromkeys(uploads, 1.0))
        buffers = ctx.take(ctx.average(uploads).model, Part.BUFFER)
        share = len(uploads) / ctx.clients
        return server.replace(
            model=server.model.lerp(mean.model, self.server_lr) | buffers,
            control=server.control + mean.control * share,
        )

    # client room

    def init_private(self, received: Broadcast, ctx: ClientContext) -> PrivateState:
        return super().init_private(received, ctx).replace(control=ctx.take(ctx.initial, Part.PARAMETERS) * 0.0)

    def local_update(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        start, lr = self.assemble(received, private), ctx.sgd.lr

        def step(y: Tree, b: Batch, grad: Grad) -> Tree:
            gradient, _ = grad(self.loss, y, b)
            return y.descend(b.correction + gradient, lr)  # a frozen parameter has a correction, which is 0

        trained = ctx.scan(start, step, data.given(correction=received.control - private.control))
        moved = ctx.take(start - trained, Part.PARAMETERS)
        control = private.control - received.control + moved * (1 / (ctx.steps(data) * lr))
        update = self.update(trained, received, private, data, ctx)
        upload = update.upload.replace(control=control - private.control)
        return replace(update, private=update.private.replace(control=control), upload=upload)
