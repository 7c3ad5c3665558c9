"""FedFed.

Yang, Zhang, Zheng, Tian, Peng, Liu, Han: FedFed: Feature Distillation against Data Heterogeneity in Federated Learning.
NeurIPS 2023.

First clients learn together which part of an image says its class: a variational autoencoder G paints what can be
shared without harm to performance, and a classifier must still tell the class from what is left, ``x - G(x)``, under
noise. Then every client sends what is left of its images, with noise of two strengths, and the server hands the pool to
all. Last comes FedAvg, whose clients train on their own images and on as many of either pool, in equal shares.

Details that matter: every image has noise of its own; what is sent comes from the trained generator in eval mode; the
clients draw from the pool anew in every round, every class alike. The rounds of the first stages stand in the log with
the bytes that they cost; a step of the last stage sees three times the images of FedAvg's.

Noise of a fixed strength bounds nothing by itself: with ``bound`` the images that are sent have a largest norm, which a
Gaussian mechanism needs; privacy is not accounted here in either case. Labels are sent as they are.

Our decisions: the classifier of the first stage is the run's network, trained by the run's optimizer, and the last
stage starts from its initial weights; images are not resized; the pre-training of the generator on mosaics, which the
authors' code has as an option, is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from manyheads.contract import (
    AdamW,
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Model,
    Optimizer,
    Part,
    PrivateState,
    ServerContext,
    ServerState,
    Sizes,
    Stage,
    Terms,
    Tree,
    Update,
    Upload,
    above,
    at_least,
)
from manyheads.errors import InputError, RunError
from manyheads.local.losses import ce
from manyheads.models.vae import VAE

GENERATOR = Part.of("generator")
CLASSIFIER = Part.BACKBONE | Part.HEAD
POOL = ("weak", "strong", "labels")


@dataclass(frozen=True)
class FedFed(Algorithm):
    """FedAvg on own images and on shared ones, of which only the part that says the class is left, under noise.

    Attributes:
        distill_rounds: rounds of the first stage, at least 1.
        distill_epochs: its local epochs, at least 1.
        weak_noise: standard deviation of the weaker noise, in units of pixels in [0, 1].
        strong_noise: of the stronger one.
        bound: the largest Euclidean norm of what is left of an image before noise; None sets none.
        rebuild_weight: of the distance between G(x) and x.
        rest_weight: of the cross-entropy on what is left, under both noises.
        image_weight: of the cross-entropy on whole images.
        kl_weight: of the latent vectors' divergence from the standard normal distribution.
        mixup: the parameter of the Beta distribution of the classifier's warm-up on mixed images, > 0.
        channels: of the generator, even.
        latent: the length of its latent vectors.
        generator_lr: its learning rate, with AdamW.
    """

    distill_rounds: int = 15
    distill_epochs: int = 1
    weak_noise: float = 0.15
    strong_noise: float = 0.25
    bound: float | None = None
    rebuild_weight: float = 5.0
    rest_weight: float = 2.0
    image_weight: float = 0.4
    kl_weight: float = 0.005
    mixup: float = 2.0
    channels: int = 32
    latent: int = 2048
    generator_lr: float = 1e-3

    def __post_init__(self) -> None:
        at_least(1, self, "distill_rounds", "distill_epochs", "latent")
        at_least(0, self, "weak_noise", "strong_noise", "rebuild_weight", "rest_weight", "image_weight", "kl_weight")
        above(0, self, "bound", "mixup", "generator_lr")
        if self.channels < 2 or self.channels % 2:
            raise InputError(f"algorithm.channels = {self.channels}: must be even and at least 2")

    def remark(self, ctx: ServerContext) -> str:
        return "clients share images under noise, with their labels; privacy is not accounted"

    def stages(self, rounds: int) -> list[Stage]:
        """Distillation, one round of sharing by everyone, FedAvg."""
        return [
            Stage(Distilling(self), self.distill_rounds),
            Stage(Sharing(self), 1, everyone=True),
            Stage(self, rounds, fresh=True),
        ]

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        """The initial model, and the pool."""
        if previous is not None and "labels" not in previous:
            raise RunError("no client answered in the round of sharing: FedFed has no images to share")
        return ServerState(model=ctx.initial) if previous is None else previous.replace(model=ctx.initial)

    def broadcast(self, server: ServerState, client: int, ctx: ServerContext) -> Broadcast:
        """The model and the pool, which a client holds after its first round."""
        return super().broadcast(server, client, ctx).replace(**{name: server.get(name) for name in POOL})

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        """Beside each image one of either pool."""
        columns: dict[str, Tensor] = {}
        for name in ("weak", "strong"):
            rows = balanced(received.labels, len(data), ctx.rng("pool", name))
            columns |= {name: received.get(name)[rows], f"{name}_y": received.labels[rows]}
        return data.with_(**columns)

    def loss(self, m: Model, b: Batch) -> Terms:
        """CE over own and shared images alike."""
        own, weak, strong = self.logits(m, torch.cat([b.x, b.weak, b.strong])).chunk(3)
        return {
            "ce": ce(own, b) / 3,
            "weak": ce(weak, b.replace(y=b.weak_y)) / 3,
            "strong": ce(strong, b.replace(y=b.strong_y)) / 3,
        }


@dataclass(frozen=True)
class Distilling(Algorithm):
    """The first stage: generator and classifier, averaged like any model.

    Attributes:
        method: whose stage it is.
    """

    method: FedFed = field(default_factory=FedFed)

    def parts(self, base: Mapping[str, nn.Module], sizes: Sizes) -> Mapping[str, nn.Module]:
        return {**base, "generator": VAE(sizes.image, self.method.channels, self.method.latent)}

    def train(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Tree:
        """Each epoch: the classifier on mixed images, then generator and classifier together."""
        method = self.method
        mixed, noisy = data.map(self.mixed), self.prepare(model, received, private, data, ctx)
        optim: Mapping[Part, Optimizer] = {
            GENERATOR: AdamW(method.generator_lr, weight_decay=1e-6),
            CLASSIFIER: ctx.sgd,
        }
        for epoch in range(method.distill_epochs):
            one = range(epoch, epoch + 1)
            model = ctx.fit(model, self.mixed_loss, mixed, trains=CLASSIFIER, epochs=one, phase="warm-up")
            model = ctx.fit(model, self.loss, noisy, epochs=one, optim=optim, phase="distillation")
        return model

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        """With noise for the latent vectors and for what is left of the images."""
        scale, shift = normalisation(data)
        return data.given(scale=scale, shift=shift).draw(
            latent=lambda n, rng: torch.randn(n, self.method.latent, generator=rng),
            weak=self.noise(data, self.method.weak_noise),
            strong=self.noise(data, self.method.strong_noise),
        )

    def noise(self, data: Data, strength: float) -> "Noise":
        """Noise for every pixel of every image."""
        return Noise(tuple(data.x(torch.arange(1)).shape[1:]), strength)

    def mixed(self, b: Batch, rng: Generator) -> Batch:
        """Each image mixed with another one of its batch, in one proportion (mixup: Zhang et al., ICLR 2018)."""
        seed = int(torch.randint(2**62, (), generator=rng))
        share = float(np.random.default_rng(seed).beta(self.method.mixup, self.method.mixup))
        other = torch.randperm(len(b), generator=rng)
        shares = torch.full((len(b),), share)
        return b.replace(x=share * b.x + (1 - share) * b.x[other], other=b.y[other], share=shares)

    def mixed_loss(self, m: Model, b: Batch) -> Terms:
        """CE against both labels, in the proportion of the images."""
        logits = self.logits(m, b.x)
        first, second = (functional.cross_entropy(logits, y, reduction="none") for y in (b.y, b.other))
        return {"ce": b.mean(b.share * first + (1 - b.share) * second)}

    def loss(self, m: Model, b: Batch) -> Terms:
        method = self.method
        pixels = b.x * b.scale + b.shift
        painted, mean, log_variance = m.generator(pixels, b.latent)
        rest = pixels - painted
        seen = [(rest + noise - b.shift) / b.scale for noise in (b.weak, b.strong)]
        weak, strong, whole = self.logits(m, torch.cat([*seen, b.x])).chunk(3)
        divergence = -(1 + log_variance - mean.square() - log_variance.exp()).sum(dim=1) / 2
        return {
            "rebuild": method.rebuild_weight * b.mean(rest.square().flatten(1).mean(dim=1)),
            "rest": method.rest_weight / 2 * (ce(weak, b) + ce(strong, b)),
            "image": method.image_weight * ce(whole, b),
            "kl": method.kl_weight / (3 * method.latent) * b.mean(divergence),  # the 3 is the authors'
        }


@dataclass(frozen=True)
class Sharing(Distilling):
    """The second stage: one round in which nothing is trained and everybody sends what is left of its images."""

    sends: ClassVar = {
        "model": Part.NONE,
        "weak": ("n", "image"),
        "strong": ("n", "image"),
        "labels": ("n",),
    }

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        """Goes on with the trained generator."""
        return super().init_server(ctx) if previous is None else previous

    def local_update(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        method, frozen = self.method, ctx.model(self.assemble(received, private))
        scale, shift = normalisation(data)

        def rest(x: Tensor) -> Tensor:
            pixels = x * scale.to(x) + shift.to(x)
            painted: Tensor = frozen.generator(pixels, torch.zeros(len(x), method.latent, device=x.device))[0]
            return pixels - painted

        left = bounded(ctx.rowwise(rest, data), method.bound)
        shared = {
            name: (left + self.noise(data, strength)(len(data), ctx.rng("noise", name)) - shift) / scale
            for name, strength in (("weak", method.weak_noise), ("strong", method.strong_noise))
        }
        return Update(private, Upload(model=Tree(), weight=float(len(data)), labels=data.y, **shared))

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        """The pool, and no model: the last stage has one of its own."""
        pool = {name: torch.cat([upload.get(name) for upload in uploads.values()]) for name in POOL}
        return ServerState(model=server.model, **pool)


@dataclass(frozen=True)
class Noise:
    """Gaussian noise for images of one shape, another for each image."""

    image: tuple[int, ...]
    strength: float

    def __call__(self, n: int, rng: Generator) -> Tensor:
        """``[n, *image]``."""
        return torch.randn(n, *self.image, generator=rng) * self.strength


def normalisation(data: Data) -> tuple[Tensor, Tensor]:
    """Scale and shift, ``[c, 1, 1]`` each: ``x * scale + shift`` are pixels in [0, 1]."""
    return torch.tensor(data.std)[:, None, None], torch.tensor(data.mean)[:, None, None]


def bounded(images: Tensor, bound: float | None) -> Tensor:
    """Images ``[n, ...]`` scaled down where their norm is above ``bound``."""
    if bound is None:
        return images
    norm = images.flatten(1).norm(dim=1).clamp(min=1e-12)
    scale: Tensor = (bound / norm).clamp(max=1)
    return images * scale[:, None, None, None]


def balanced(labels: Tensor, n: int, rng: Generator) -> Tensor:
    """The rows of ``n`` random samples, every class that there is as often as any other; few are taken repeatedly."""
    classes = torch.bincount(labels).nonzero().flatten()
    chosen = []
    for place, label in enumerate(classes):
        rows = (labels == label).nonzero().flatten()
        wanted = n // len(classes) + (place < n % len(classes))
        order = torch.randperm(len(rows), generator=rng)
        chosen.append(rows[order[torch.arange(wanted) % len(rows)]])
    return torch.cat(chosen)[torch.randperm(n, generator=rng)]
