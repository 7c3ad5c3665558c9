"""FedProto.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients. AAAI 2022.

Clients share nothing but prototypes, their mean features by class. A client's loss is
``CE + proto_weight MSE(f(x), prototype of y)``, and its prediction is the class of the nearest prototype.

Details that matter: prototypes are computed after training, in eval mode, on images that are not augmented; all known
classes compete, not only the client's own. The variant ``classifier`` predicts with the model's head instead.

Our decisions: a class that nobody in a round holds keeps its prototype; prototypes are weighted by their number of
images (the paper's equation; the authors' code takes the plain mean); a label without prototype adds no term; while no
prototype is known, the head predicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

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
    ServerContext,
    ServerState,
    Terms,
    Tree,
    Update,
    Upload,
    at_least,
)
from manyheads.local.losses import ce
from manyheads.local.prototypes import pooled


@dataclass(frozen=True)
class FedProto(Algorithm):
    """Private models that share class prototypes.

    Attributes:
        proto_weight: lambda, at least 0.
    """

    proto_weight: float = 1.0
    shared = Part.NONE
    sends: ClassVar = {"means": ("classes", "features"), "counts": ("classes",)}

    def __post_init__(self) -> None:
        at_least(0, self, "proto_weight")

    # server room

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        """No class has a prototype yet."""
        nothing = torch.zeros(ctx.classes, ctx.feature_dim)
        return ServerState(model=Tree(), prototypes=nothing, known=torch.zeros(ctx.classes))

    def broadcast(self, server: ServerState, client: int, ctx: ServerContext) -> Broadcast:
        return super().broadcast(server, client, ctx).replace(prototypes=server.prototypes, known=server.known)

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        prototypes, known = pooled(uploads, server.prototypes, server.known)
        return server.replace(prototypes=prototypes, known=known)

    # client room

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        return data.given(prototypes=received.prototypes, known=received.known)

    def update(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        means, counts = ctx.class_means(model, data)
        update = super().update(model, received, private, data, ctx)
        return replace(update, upload=update.upload.replace(means=means, counts=counts))

    def loss(self, m: Model, b: Batch) -> Terms:
        z = m.backbone(b.x)
        far = (z - b.prototypes[b.y]).square().mean(dim=1)
        return {"ce": ce(m.head(z), b), "proto": self.proto_weight * b.mean(b.known[b.y] * far)}

    def predictors(self, model: Tree, received: Broadcast, data: Data, ctx: ClientContext) -> Mapping[str, Predictor]:
        """By the nearest prototype, as the paper does, and by the head."""
        by_head = Predictor(model, self.logits)
        if not received.known.any():
            return {"": by_head, "classifier": by_head}
        nearest = partial(by_distance, prototypes=received.prototypes, known=received.known)
        return {"": Predictor(model, nearest), "classifier": by_head}


def by_distance(m: Model, x: Tensor, *, prototypes: Tensor, known: Tensor) -> Tensor:
    """Minus the distance of features to every prototype, ``[n, classes]``; a class without one is never nearest."""
    z = m.backbone(x)
    return torch.where(known.to(z) > 0, -torch.cdist(z, prototypes.to(z)), -torch.inf)
