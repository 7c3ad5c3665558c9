"""FedGH.

Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header. ACM Multimedia 2023.

Backbones are private. The shared head is trained at the server, on the mean features by class that clients upload;
clients train their backbone with the head that they receive.

Details that matter: the server's step trains the server's head, with an optimizer of its own; features are means over
all of a client's images, in eval mode. ``post_local`` is the client's model right after training, with the head as
trained there.

Our decisions: one epoch of the server, on all pairs of a round at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from manyheads.contract import (
    SGD,
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Model,
    Part,
    PrivateState,
    ServerContext,
    ServerState,
    Terms,
    Tree,
    Update,
    Upload,
    above,
    at_least,
)
from manyheads.local.losses import ce


@dataclass(frozen=True)
class FedGH(Algorithm):
    """Private backbones under a head that the server trains on class means.

    Attributes:
        server_lr: its learning rate, > 0.
        server_epochs: its epochs a round, at least 1.
    """

    server_lr: float = 0.01
    server_epochs: int = 1
    shared = Part.HEAD
    sends: ClassVar = {"model": Part.NONE, "means": ("classes", "features"), "counts": ("classes",)}

    def __post_init__(self) -> None:
        above(0, self, "server_lr")
        at_least(1, self, "server_epochs")

    def update(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        means, counts = ctx.class_means(model, data)
        update = super().update(model, received, private, data, ctx)
        return replace(update, upload=update.upload.replace(means=means, counts=counts))

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        """The head, trained on one pair of mean feature and label for every class of every client."""
        features = torch.cat([upload.means[upload.counts > 0] for upload in uploads.values()])
        labels = torch.cat([upload.counts.nonzero().flatten() for upload in uploads.values()])
        pairs = Data.of(features, labels)
        model = ctx.fit(
            server.model,
            self.head_loss,
            pairs,
            trains=Part.HEAD,
            epochs=self.server_epochs,
            batch=len(pairs),
            optim=SGD(self.server_lr),
        )
        return server.replace(model=model)

    def head_loss(self, m: Model, b: Batch) -> Terms:
        """CE of the head on features."""
        return {"ce": ce(m.head(b.x), b)}
