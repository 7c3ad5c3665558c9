"""FedCP.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy. KDD 2023.

A small network, the policy, looks at each image's features and at the client's head, and says for every feature which
share r of it is for the personal head; the rest is for the global one:

    logits = personal head (r z) + global head ((1 - r) z)

A client trains backbone, policy and personal head under a frozen copy of the global head; the loss is
``CE + mmd_weight MMD(z, features under the received backbone)``.

Details that matter: the shares are drawn at random in training (Gumbel softmax), but not for a test; the context, the
sum of the personal head's class vectors, normalised, is fixed during a client's round and fresh for a test; backbone,
policy and global head are all sent at the start of a round.

Our decisions: the head that is uploaded is the mean of the personal and the global one, as in the authors' code; a
client that has not taken part has the initial head as its personal one.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import normalize

from manyheads.contract import (
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Model,
    Objective,
    Part,
    PrivateState,
    Sizes,
    Terms,
    Tree,
    Update,
    at_least,
)
from manyheads.errors import InputError
from manyheads.local.losses import ce

TRAINED = Part.ALL - Part.HEAD  # the global head is held fixed at a client
BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)


class Policy(nn.Module):
    """Says how much of each feature is for the personal head and how much for the global one, as logits of the two."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 2 * features)
        self.norm = nn.LayerNorm(2 * features)

    def forward(self, z: Tensor) -> Tensor:
        """``[n, features]`` to ``[n, 2, features]``."""
        return torch.relu(self.norm(self.linear(z))).reshape(len(z), 2, -1)


@dataclass(frozen=True)
class FedCP(Algorithm):
    """Features are divided between a personal and a global head, image by image.

    Attributes:
        mmd_weight: lambda, at least 0; the paper's grid is 0.1, 1, 5, 10.
    """

    mmd_weight: float = 5.0
    shared = Part.ALL - Part.of("personal_head")

    def __post_init__(self) -> None:
        at_least(0, self, "mmd_weight")

    def parts(self, base: Mapping[str, nn.Module], sizes: Sizes) -> Mapping[str, nn.Module]:
        if not isinstance(base["head"], nn.Linear):
            raise InputError(f"the policy of FedCP needs one linear layer as head, not a {type(base['head']).__name__}")
        return {**base, "personal_head": copy.deepcopy(base["head"]), "policy": Policy(sizes.features)}

    def logits(self, m: Model, x: Tensor) -> Tensor:
        """Without noise in the shares."""
        return divided(m, m.backbone(x), context(m.params), torch.zeros(()))

    def train(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Tree:
        prepared = self.prepare(model, received, private, data, ctx)
        return ctx.fit(model, self.loss, prepared, trains=TRAINED)

    def objective(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Objective:
        return super().objective(received, private, data, ctx)._replace(trains=TRAINED)

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        def gumbel(n: int, rng: Generator) -> Tensor:
            return -torch.empty(n, 2, ctx.feature_dim).exponential_(generator=rng).log()

        reference = ctx.model(model).backbone
        return data.with_(reference=reference).given(context=context(model)).draw(noise=gumbel)

    def loss(self, m: Model, b: Batch) -> Terms:
        z = m.backbone(b.x)
        return {
            "ce": ce(divided(m, z, b.context, b.noise), b),
            "mmd": self.mmd_weight * mmd(z, b.reference, b.mask),
        }

    def update(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        update = super().update(model, received, private, data, ctx)
        both = model.part("head").lerp(model.part("personal_head"), 0.5)
        return replace(update, upload=update.upload.replace(model=update.upload.model.replace(head=both)))


def context(tree: Tree) -> Tensor:
    """What the policy knows of a client: the sum of its head's class vectors, normalised, ``[features]``."""
    return normalize(tree["personal_head.weight"].detach().sum(dim=0), dim=0)


def divided(m: Model, z: Tensor, about: Tensor, noise: Tensor) -> Tensor:
    """The answer of both heads, each on its share of the features."""
    share = (m.policy(z * about) + noise).softmax(dim=1)
    answer: Tensor = m.personal_head(share[:, 0] * z) + m.head(share[:, 1] * z)
    return answer


def mmd(a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
    """The squared maximum mean discrepancy of two samples, ``[n, d]`` each, with Gaussian kernels of four widths.

    ``mask`` is a batch's: 1 for a real sample and 0 for padding, ``[n]``.
    """

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        apart = x.square().sum(dim=1)[:, None] + y.square().sum(dim=1) - 2 * x @ y.T  # squared distances
        each = torch.stack([torch.exp(-apart / (2 * width)) for width in BANDWIDTHS]).sum(dim=0)
        if mask is None:
            return each.mean()
        real = mask[:, None] * mask
        return (each * real).sum() / real.sum()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
