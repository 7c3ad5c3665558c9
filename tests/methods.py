"""Methods that only tests need: each uses something of the contract that no shipped method uses."""

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.contract import (
    SGD,
    Algorithm,
    Part,
    Predictor,
    ServerState,
    Stage,
    Tree,
)


@dataclass(frozen=True)
class FedPerSharingAll(FedPer):
    """FedPer, but nothing is private."""

    shared = Part.ALL


@dataclass(frozen=True)
class ScanAvg(FedAvg):
    """FedAvg with a step rule of its own that does what SGD does."""

    trains: Part = Part.ALL

    def train(self, model, received, private, data, ctx):
        def step(tree, b, grad):
            gradient, _ = grad(self.loss, tree, b, self.trains)
            return tree.descend(gradient, ctx.sgd.lr)

        return ctx.scan(model, step, data)


@dataclass(frozen=True)
class WideAvg(FedAvg):
    """Each step descends along the mean gradient of two mini-batches."""

    def train(self, model, received, private, data, ctx):
        def step(tree, pair, grad):
            one, other = (grad(self.loss, tree, b, Part.ALL)[0] for b in pair)
            return tree.descend((one + other) * 0.5, ctx.sgd.lr)

        return ctx.scan(model, step, data, width=2)


@dataclass(frozen=True)
class Warm(Algorithm):
    """A stage before the main one: FedPer whose clients count their rounds."""

    shared = Part.BACKBONE

    def init_private(self, received, ctx):
        return super().init_private(received, ctx).replace(rounds=0)

    def local_update(self, received, private, data, ctx):
        update = super().local_update(received, private, data, ctx)
        return replace(update, private=update.private.replace(rounds=private.rounds + 1, last=ctx.round))


@dataclass(frozen=True)
class Staged(Warm):
    """Two rounds of ``Warm`` with everyone, then the same method as the main stage."""

    fresh: bool = False
    everyone: bool = True

    def stages(self, rounds):
        return [Stage(Warm(), 2, everyone=self.everyone), Stage(self, rounds, fresh=self.fresh)]

    def init_server(self, ctx, previous=None):
        return ServerState(model=previous.model, began=ctx.round)


@dataclass(frozen=True)
class Adapter(Algorithm):
    """FedAvg with a module more, beside the backbone's features."""

    def parts(self, base, sizes):
        size = base["head"].in_features
        return {**base, "adapter": nn.Linear(size, size)}

    def logits(self, m, x):
        z = m.backbone(x)
        return m.head(z + m.adapter(z))


@dataclass(frozen=True)
class TwoAnswers(FedPer):
    """Answers with the head or, as another variant, with one that always says class 0."""

    def answers(self, tree):
        return {"head": Predictor(tree, self.logits), "zero": Predictor(tree, self.zero)}

    def zero(self, m, x):
        return torch.eye(4)[torch.zeros(len(x), dtype=torch.int64)]

    def personal(self, received, private, data, ctx):
        return self.answers(self.assemble(received, private))

    def global_model(self, server, ctx):
        return self.answers(server.model)

    def local_update(self, received, private, data, ctx):
        update = super().local_update(received, private, data, ctx)
        return replace(update, trained=self.answers(update.trained.tree))


@dataclass(frozen=True)
class Addressed(FedPer):
    """Client k is sent k + 1 numbers of its own besides."""

    def broadcast(self, server, client, ctx):
        return super().broadcast(server, client, ctx).replace(letter=torch.full((client + 1,), float(client)))

    def init_private(self, received, ctx):
        return super().init_private(received, ctx).replace(got=received.letter)

    def assemble(self, received, private):
        assert bool((received.letter == len(received.letter) - 1).all())
        return super().assemble(received, private)


@dataclass(frozen=True)
class Remembering(FedAvg):
    """The server keeps what every client sent last and averages all of that."""

    def init_server(self, ctx, previous=None):
        return ServerState(model=ctx.initial, last={})

    def aggregate(self, server, uploads, ctx):
        last = {**server.last, **{client: upload.model for client, upload in uploads.items()}}
        mean = sum((tree * (1 / len(last)) for tree in last.values()), start=ctx.initial * 0.0)
        return ServerState(model=mean, last=last)


@dataclass(frozen=True)
class HeadUp(FedAvg):
    """The backbone comes down, the head goes up."""

    shared = Part.BACKBONE
    sends: ClassVar = {"model": Part.HEAD}


@dataclass(frozen=True)
class Noisy(FedAvg):
    """Adds noise to the images at every step, and a label column of its own."""

    noise: float = 0.1

    def train(self, model, received, private, data, ctx):
        return ctx.fit(model, self.loss, data.map(self.blur))

    def blur(self, b, generator):
        return b.replace(x=b.x + self.noise * torch.randn(b.x.shape, generator=generator))


@dataclass(frozen=True)
class PartSteps(FedAvg):
    """A step size for each part."""

    backbone: float = 0.05
    head: float = 0.05

    def train(self, model, received, private, data, ctx):
        optim = {Part.HEAD: SGD(self.head), Part.BACKBONE: SGD(self.backbone)}
        return ctx.fit(model, self.loss, data, optim=optim)


@dataclass(frozen=True)
class Constant(FedPer):
    """Broadcasts 1,000 numbers that never change."""

    def broadcast(self, server, client, ctx):
        return super().broadcast(server, client, ctx).replace(table=torch.arange(1000.0))


@dataclass(frozen=True)
class HeadFirst(FedPer):
    """Trains the head alone."""

    def train(self, model, received, private, data, ctx):
        return ctx.fit(model, self.loss, data, trains=Part.HEAD)


@dataclass(frozen=True)
class Poisoned(FedPer):
    """One client's upload is not finite in one round."""

    client: int = 1
    at: int = 1

    def local_update(self, received, private, data, ctx):
        update = super().local_update(received, private, data, ctx)
        if (ctx.party, ctx.round) != (self.client, self.at):
            return update
        model = update.upload.model
        spoiled = model | Tree({"backbone.fc.bias": torch.full_like(model["backbone.fc.bias"], float("nan"))})
        return replace(update, upload=update.upload.replace(model=spoiled))


@dataclass(frozen=True)
class Sends(FedPer):
    """FedPer that sends besides what it is told to."""

    more: Any = None

    def local_update(self, received, private, data, ctx):
        update = super().local_update(received, private, data, ctx)
        return replace(update, upload=self.more(update, ctx))


@dataclass(frozen=True)
class Once(FedPer):
    """FedPer, one of whose clients kills its process where a file does not say that it did so before."""

    file: str = ""

    def train(self, model, received, private, data, ctx):
        if self.file and ctx.party == 3 and not Path(self.file).exists():
            Path(self.file).write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(model, received, private, data, ctx)


@dataclass(frozen=True)
class Wrong(FedPer):
    """A method with a mistake."""

    def train(self, model, received, private, data, ctx):
        return {}["absent"]
