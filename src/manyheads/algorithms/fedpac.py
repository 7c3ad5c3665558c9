"""FedPAC.

Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier Collaboration. ICLR 2023.

A client first trains its head, then its backbone, whose features are drawn to the classes' global prototypes. The
server averages backbones and prototypes, and mixes a head for each client of the round out of the round's heads: the
weights minimise an estimate of the client's test loss, a quadratic programme over statistics of features that clients
send.

Details that matter: statistics are taken under the received backbone, every round anew; prototypes under the trained
one, weighted by their numbers of images; a class without a global prototype has the client's own, under the received
backbone; the first round has no such term. All are in eval mode, on images that are not augmented.

Our decisions: weights below 0.001 are dropped, as in the authors' code; the programme's matrix is made positive
semidefinite by clipping eigenvalues. A client's head stays until it takes part again; before, it is the initial one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from scipy.optimize import nnls
from torch import Tensor

from manyheads.contract import (
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
from manyheads.local.losses import ce, mse
from manyheads.local.prototypes import pooled

LEAST_WEIGHT = 1e-3


@dataclass(frozen=True)
class FedPAC(Algorithm):
    """Aligned features, and a head for each client mixed out of all.

    Attributes:
        proto_weight: lambda, at least 0.
        head_epochs: epochs of the head before the backbone's.
        head_lr: their learning rate; None for the run's.
    """

    proto_weight: float = 1.0
    head_epochs: int = 1
    head_lr: float | None = 0.1
    shared = Part.BACKBONE
    sends: ClassVar = {
        "model": Part.ALL,
        "class_features": ("classes", "features"),
        "variance": (),
        "means": ("classes", "features"),
        "counts": ("classes",),
    }

    def __post_init__(self) -> None:
        at_least(0, self, "proto_weight", "head_epochs")
        above(0, self, "head_lr")

    # server room

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        nothing = torch.zeros(ctx.classes, ctx.feature_dim)
        return ServerState(model=ctx.initial, prototypes=nothing, known=torch.zeros(ctx.classes), heads={})

    def broadcast(self, server: ServerState, client: int, ctx: ServerContext) -> Broadcast:
        """Backbone, prototypes, and the head that was mixed for the client, if it has taken part."""
        received = super().broadcast(server, client, ctx)
        head = server.heads.get(client, Tree())
        return received.replace(head=head, prototypes=server.prototypes, known=server.known)

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        prototypes, known = pooled(uploads, server.prototypes, server.known)
        heads = {client: Upload(model=ctx.take(upload.model, Part.HEAD)) for client, upload in uploads.items()}
        mixed = {
            client: ctx.average({other: heads[other] for other in mix}, weight=mix).model
            for client, mix in collaboration(uploads).items()
        }
        return ServerState(
            model=server.model | ctx.take(ctx.average(uploads).model, Part.BACKBONE),
            prototypes=prototypes,
            known=known,
            heads={**server.heads, **mixed},
        )

    # client room

    def assemble(self, received: Broadcast, private: PrivateState) -> Tree:
        """The received backbone under the received head; under the initial one before the client has taken part."""
        head: Tree = received.head
        return super().assemble(received, private) | head

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        own, _ = ctx.class_means(model, data)
        return data.given(
            prototypes=torch.where(received.known[:, None] > 0, received.prototypes, own),
            proto_weight=self.proto_weight if received.known.any() else 0.0,
        )

    def loss(self, m: Model, b: Batch) -> Terms:
        z = m.backbone(b.x)
        return {"ce": ce(m.head(z), b), "proto": b.proto_weight * mse(z, b.prototypes[b.y], b)}

    def train(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Tree:
        """The head, then the backbone."""
        aligned = self.prepare(model, received, private, data, ctx)
        optim = ctx.sgd if self.head_lr is None else replace(ctx.sgd, lr=self.head_lr)
        h = self.head_epochs
        model = ctx.fit(model, super().loss, data, trains=Part.HEAD, epochs=range(h), optim=optim, phase="head")
        epochs = range(h, h + ctx.epochs)
        return ctx.fit(model, self.loss, aligned, trains=Part.BACKBONE, epochs=epochs, phase="backbone")

    def update(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        start = self.assemble(received, private)
        class_features, variance = statistics(ctx.features(start, data), data.y, ctx.classes)
        means, counts = ctx.class_means(model, data)
        update = super().update(model, received, private, data, ctx)
        upload = update.upload.replace(class_features=class_features, variance=variance, means=means, counts=counts)
        return replace(update, upload=upload)


def statistics(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, float]:
    """What the server's programme needs of a client.

    Args:
        features: ``[n, d]``.
        y: labels, ``[n]``.
        classes: how many there are.

    Returns:
        Mean features by class times the class's share, ``[classes, d]``; and the variance of their estimate,
        ``1/n (E ||z||^2 - sum over classes of ||share times mean||^2)``.
    """
    z = features.double()
    weighted = torch.zeros(classes, z.shape[1], dtype=torch.float64).index_add_(0, y, z) / len(z)
    # sum_c share_c^2 ||mean_c||^2 = sum_c ||share_c mean_c||^2, and sum_c share_c E[||z||^2 | c] = E ||z||^2
    variance = (z.square().sum() / len(z) - weighted.square().sum()) / len(z)
    return weighted.float(), float(variance)


def collaboration(uploads: Mapping[int, Upload]) -> dict[int, dict[int, float]]:
    """For each client of a round, how much each of the round's heads counts in its own; they sum to 1.

    Client i's weights a minimise ``sum_j a_j^2 variance_j + ||sum_j a_j (h_i - h_j)||^2``, where h are
    ``class_features``.
    """
    clients = list(uploads)
    variance = torch.tensor([float(uploads[client].variance) for client in clients], dtype=torch.float64)
    h = torch.stack([uploads[client].class_features for client in clients]).double().flatten(1)
    h = h - h.mean(dim=0)  # no difference of two changes, and less is lost to rounding
    inner = h @ h.T
    found = {}
    for i, client in enumerate(clients):
        apart = inner - inner[i] - inner[:, i, None] + inner[i, i]  # <h_i - h_j, h_i - h_k>
        weights = simplex_minimum(variance.diag() + apart).tolist()
        least = min(LEAST_WEIGHT, max(weights))
        mix = {other: weight for other, weight in zip(clients, weights, strict=True) if weight >= least}
        found[client] = {other: weight / sum(mix.values()) for other, weight in mix.items()}
    return found


def simplex_minimum(q: Tensor) -> Tensor:
    """``argmin a^T q a`` over ``a >= 0, sum a = 1``, for a symmetric q ``[n, n]``, made positive semidefinite.

    By non-negative least squares ``||r a||^2 + (1 - sum a)^2`` with ``q = r^T r``. For any a on the simplex, the best
    multiple of it gives ``q(a) / (1 + q(a))``, so the answer is a multiple of the minimum.
    """
    values, vectors = torch.linalg.eigh(q / q.abs().max().clamp(min=torch.finfo(q.dtype).tiny))
    root = values.clamp(min=0).sqrt()[:, None] * vectors.T
    rows = torch.cat([root, torch.ones(1, len(q), dtype=q.dtype)])
    wanted = torch.tensor([0.0] * len(q) + [1.0], dtype=q.dtype)
    found, _ = nnls(rows.numpy(), wanted.numpy(), maxiter=100 * len(q))
    return torch.from_numpy(found / found.sum())
