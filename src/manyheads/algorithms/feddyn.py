"""FedDyn.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization. ICLR 2021.

A client minimises ``CE - <g_k, w> + alpha / 2 ||w - w_received||^2`` and then sets
``g_k <- g_k - alpha (w_k - w_received)``. The server keeps ``h <- h - alpha / K sum over the cohort of (w_k - w)`` and
sends ``mean of w_k - h / alpha``.

Details that matter: the norm is squared; K counts all clients, not the cohort; the mean is not weighted by size;
buffers follow the mean by size; g_k is kept until the client's next round. The model that is sent is the method's
answer; the variant ``mean`` is the clients' mean without the correction.

Our decisions: the run's optimizer and learning rate, without the authors' decay of the rate by round and their scaling
of alpha by a client's size; momentum, weight decay and clipping of the run apply to the gradient of all three terms.
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
    Model,
    Part,
    Predictor,
    PrivateState,
    Proximal,
    ServerContext,
    ServerState,
    Terms,
    Tree,
    Update,
    Upload,
    above,
)


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """FedAvg whose local objectives are bent so that their minima meet.

    Attributes:
        alpha: > 0; the paper's values are 0.1, 0.01 and 0.001.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        above(0, self, "alpha")

    # server room

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        return ServerState(model=ctx.initial, mean=ctx.initial, h=ctx.take(ctx.initial, Part.PARAMETERS) * 0.0)

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        uniform = ctx.average(uploads, weight=dict.fromkeys(uploads, 1.0)).model
        mean = server.model | ctx.average(uploads).model | ctx.take(uniform, Part.PARAMETERS)
        moved = ctx.take(mean - server.model, Part.PARAMETERS)
        h = server.h - moved * (self.alpha * len(uploads) / ctx.clients)
        return ServerState(model=mean - h * (1 / self.alpha), mean=mean, h=h)

    def global_model(self, server: ServerState, ctx: ServerContext) -> Mapping[str, Predictor] | None:
        if super().global_model(server, ctx) is None:  # clients keep their buffers
            return None
        return {"": Predictor(server.model, self.logits), "mean": Predictor(server.mean, self.logits)}

    # client room

    def init_private(self, received: Broadcast, ctx: ClientContext) -> PrivateState:
        return super().init_private(received, ctx).replace(g=ctx.take(ctx.initial, Part.PARAMETERS) * 0.0)

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        return data.given(g=private.g, reference=model)

    def update(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        update = super().update(model, received, private, data, ctx)
        moved = ctx.take(model - self.assemble(received, private), Part.PARAMETERS)
        return replace(update, private=update.private.replace(g=private.g - moved * self.alpha))

    def loss(self, m: Model, b: Batch) -> Terms:
        linear = sum(((m.params[name] * g).sum() for name, g in b.g.items()), torch.zeros(()))
        return {**super().loss(m, b), "linear": -linear, "prox": Proximal(self.alpha, m.params, b.reference)}
