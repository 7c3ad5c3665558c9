"""MOON.

Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021.

FedAvg on a network with a projection between backbone and head. A client's projections are drawn to those of the
received model and away from those of its own last model:

    CE - contrast_weight log( exp(cos(z, z_global) / T) / (exp(cos(z, z_global) / T) + exp(cos(z, z_previous) / T)) )

Details that matter: both references are frozen and in eval mode; a client without a last model takes the received one
in its place, where the term is the constant log 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, log_softmax

from manyheads.contract import (
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Model,
    PrivateState,
    ServerContext,
    Sizes,
    Terms,
    Tree,
    Update,
    above,
    at_least,
)
from manyheads.local.losses import ce


@dataclass(frozen=True)
class Moon(Algorithm):
    """FedAvg with a contrast between the shared model and a client's last one.

    Attributes:
        contrast_weight: mu, at least 0; the paper's grid is 0.1 to 10.
        temperature: T > 0.
        projection: size of the projection, at least 1.
    """

    contrast_weight: float = 1.0
    temperature: float = 0.5
    projection: int = 256

    def __post_init__(self) -> None:
        at_least(0, self, "contrast_weight")
        above(0, self, "temperature")
        at_least(1, self, "projection")

    def parts(self, base: Mapping[str, nn.Module], sizes: Sizes) -> Mapping[str, nn.Module]:
        """The head stands on the projection, as in the paper."""
        projection = nn.Sequential(
            nn.Linear(sizes.features, sizes.features), nn.ReLU(), nn.Linear(sizes.features, self.projection)
        )
        return {**base, "projection": projection, "head": nn.Linear(self.projection, sizes.classes)}

    def remark(self, ctx: ServerContext) -> str:
        return "with contrast_weight = 0 this is FedAvg on MOON's network" if self.contrast_weight == 0 else ""

    def projected(self, m: Model, x: Tensor) -> Tensor:
        """z, ``[n, projection]``."""
        z: Tensor = m.projection(m.backbone(x))
        return z

    def logits(self, m: Model, x: Tensor) -> Tensor:
        answer: Tensor = m.head(self.projected(m, x))
        return answer

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        shared, last = ctx.model(model), ctx.model(private.get("last", model))
        return data.with_(of_global=lambda x: self.projected(shared, x), of_previous=lambda x: self.projected(last, x))

    def update(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        update = super().update(model, received, private, data, ctx)
        return replace(update, private=update.private.replace(last=model))

    def loss(self, m: Model, b: Batch) -> Terms:
        z = self.projected(m, b.x)
        near = torch.stack([cosine_similarity(z, b.of_global), cosine_similarity(z, b.of_previous)], dim=1)
        contrast = -log_softmax(near / self.temperature, dim=1)[:, 0]
        return {"ce": ce(m.head(z), b), "contrast": self.contrast_weight * b.mean(contrast)}
