"""``Context``: what a method may ask for while it runs, at the server and at a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from manyheads.contract.averaging import Weight, average
from manyheads.contract.data import Data
from manyheads.contract.model import Model
from manyheads.contract.random import stream
from manyheads.contract.records import Upload
from manyheads.contract.trainer import SGD, Carry, Grad, Loss, Optim, Plan, Trainer
from manyheads.contract.tree import Part, Tree
from manyheads.errors import InputError

SERVER = -1  # the server's place in random streams, where a client has its id


@dataclass(frozen=True)
class Context:
    """What both rooms offer. A method's ``model`` arguments are trees.

    Attributes:
        initial: the initial model, the same for all parties, from the seed.
        tags: every tensor's tags, by name.
        round: this round; rounds before the main stage are negative.
        rounds: rounds of this stage.
        clients: the number of clients.
        classes: the number of classes.
        feature_dim: the length of a feature vector.
        epochs: local epochs.
        sgd: the optimizer of local training.
        batch: the mini-batch size.
        seed: the seed of the run.
        party: the client's id, or ``SERVER``.
        trainer: what runs ``fit`` and ``scan``.
        keep_down: what a broadcast leaves out of the model for the sake of the buffer policy.
        keep_up: what an upload leaves out for the same reason.
        trace: mean loss terms of each fit, in order; filled by the trainer.
    """

    initial: Tree
    tags: Mapping[str, frozenset[str]]
    round: int
    rounds: int
    clients: int
    classes: int
    feature_dim: int
    epochs: int
    sgd: SGD
    batch: int
    seed: int
    party: int
    trainer: Trainer
    keep_down: Part = Part.NONE
    keep_up: Part = Part.NONE
    trace: list[dict[str, float]] = field(default_factory=list)

    def model(self, tree: Tree) -> Model:
        """``tree`` as a frozen model in eval mode."""
        return self.trainer.model(tree)

    def take(self, tree: Tree, part: Part) -> Tree:
        """The tensors of ``tree`` that belong to ``part``."""
        return Tree({name: tensor for name, tensor in tree.items() if part.holds(self.tags[name])})

    def fit(
        self,
        model: Tree,
        loss: Loss,
        data: Data,
        *,
        trains: Part = Part.ALL,
        epochs: int | range | None = None,
        steps: int | None = None,
        optim: Optim | None = None,
        batch: int | None = None,
        phase: str = "",
    ) -> Tree:
        """Trains ``model`` by gradient descent over ``loss`` and returns it; the argument is not changed.

        Args:
            model: the tree to start from.
            loss: named terms, summed. It closes over no tensor: what it needs travels with ``data``.
            data: the samples.
            trains: what is trained. Frozen parts run in eval mode, so what they compute may be computed once.
            epochs: passes over the data; None for the local epochs of the run. A ``range`` numbers them within the
                round, so that two fits need not share an order of samples.
            steps: that many mini-batches, over as many epochs as they need; replaces ``epochs``.
            optim: one optimizer, or one for each part; None for the run's. Its state starts fresh.
            batch: mini-batch size; None for the run's.
            phase: names the fit where a round has several: its loss terms are logged as ``phase/term``.

        Raises:
            RunError: a loss term is not finite.
        """
        plan = self._plan(epochs, steps, batch, phase)
        return self.trainer.fit(self, model, loss, data, trains, plan, optim or self.sgd)

    def scan(
        self,
        carry: Carry,
        step: Callable[[Carry, Any, Grad], Carry],
        data: Data,
        *,
        epochs: int | range | None = None,
        steps: int | None = None,
        batch: int | None = None,
        width: int = 1,
        phase: str = "",
    ) -> Carry:
        """Runs a step rule over the mini-batches that ``fit`` would visit: ``carry = step(carry, b, grad)``.

        Args:
            carry: a tree, a tensor, a number, or a tuple of them.
            step: gets one batch, or a tuple of ``width`` batches, and ``grad(loss, tree, b, trains)``, which gives
                gradient and loss. Buffers of a tree in the carry are updated by ``grad``, as in training; any other
                tree stays as it is. The step rule is all there is: momentum, weight decay and clipping of the run do
                not apply.
            data: the samples.
            epochs: as for ``fit``.
            steps: as for ``fit``; counts calls of ``step``.
            batch: as for ``fit``.
            width: mini-batches a step. A last group of an epoch that lacks batches takes the epoch's first ones again.
            phase: as for ``fit``.
        """
        return self.trainer.scan(self, carry, step, data, self._plan(epochs, steps, batch, phase), width)

    def gradient(self, model: Tree, loss: Loss, data: Data, trains: Part = Part.ALL) -> Tree:
        """The gradient of ``loss`` over all of ``data``, for every parameter of ``trains`` that is not frozen.

        Everything runs in eval mode: no dropout, BatchNorm with its running statistics, which stay as they are. Maps
        (augmentation) are left out; values that the data draws are drawn once, from this round's streams. Large data
        is taken in pieces, each with the weight of its samples: every term of the loss must be a mean over the batch,
        or the same for every batch, as a proximal term.
        """
        return self.trainer.gradient(self, model, loss, data, trains)

    def steps(self, data: Data, epochs: int | None = None, batch: int | None = None) -> int:
        """How many steps a fit over ``data`` takes."""
        return (self.epochs if epochs is None else epochs) * steps_an_epoch(len(data), batch or self.batch)

    def rng(self, *purpose: int | str) -> Generator:
        """A random stream of this party, this round and this purpose."""
        return stream(self.seed, self.round, self.party, *purpose)

    def features(self, model: Model | Tree, data: Data) -> Tensor:
        """The backbone's output for every sample, eval mode, not augmented: ``[n, feature_dim]``."""
        bound = self.model(model) if isinstance(model, Tree) else model
        return self.trainer.rowwise(bound.backbone, data)

    def rowwise(self, fn: Callable[[Tensor], Tensor], data: Data) -> Tensor:
        """A frozen function of every sample's x, not augmented, in large batches: ``[n, ...]``."""
        return self.trainer.rowwise(fn, data)

    def class_means(self, model: Model | Tree, data: Data) -> tuple[Tensor, Tensor]:
        """Mean features ``[classes, feature_dim]``, zeros for a class without samples, and counts ``[classes]``."""
        features = self.features(model, data).double()
        counts = torch.bincount(data.y, minlength=self.classes)
        sums = torch.zeros(self.classes, features.shape[1], dtype=torch.float64).index_add_(0, data.y, features)
        return (sums / counts.clamp(min=1)[:, None]).float(), counts

    def _plan(self, epochs: int | range | None, steps: int | None, batch: int | None, phase: str) -> Plan:
        if epochs is None:
            epochs = self.epochs
        return Plan(range(epochs) if isinstance(epochs, int) else epochs, steps, batch or self.batch, phase)


@dataclass(frozen=True)
class ClientContext(Context):
    """The client room's context.

    Attributes:
        notes: what the method wants to be seen of this client in this round, by name.
    """

    notes: dict[str, float] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        """Puts a number into the round's row of the log, under ``name`` and the client."""
        self.notes[name] = float(value)


@dataclass(frozen=True)
class ServerContext(Context):
    """The server room's context.

    Attributes:
        server_data: the auxiliary set D_s, if there is one.
        notes: what the method wants to be seen of this round, such as aggregation weights: by name, by client.
    """

    server_data: Data | None = None
    notes: dict[str, dict[int, float]] = field(default_factory=dict)

    def note(self, name: str, values: Mapping[int, float]) -> None:
        """Puts a number for each client into the round's row of the log, under ``name``."""
        self.notes[name] = {client: float(value) for client, value in values.items()}

    @property
    def auxiliary(self) -> Data:
        """The labelled auxiliary set D_s.

        Raises:
            InputError: the run has none.
        """
        if self.server_data is None:
            raise InputError(
                "data.auxiliary = 0: this method trains on an auxiliary set at the server; give it a size, such as 400"
            )
        return self.server_data

    def average(
        self, uploads: Mapping[int, Upload], *fields: str, weight: Weight = lambda upload: upload.weight
    ) -> Upload:
        """The weighted mean of ``fields`` (default: the model), in float64 and cohort order, in one pass.

        Floating-point tensors, buffers among them, are averaged; integer tensors (BatchNorm's step counter) take the
        maximum. ``weight`` is a function of an upload, or a number by client.

        Raises:
            ValueError: there is no upload, uploads hold different tensors, a weight is negative, or all are zero.
        """
        return average(uploads, fields or ("model",), weight)


def steps_an_epoch(n: int, batch: int) -> int:
    """Mini-batches in one epoch: a last one of a single sample is merged into the one before it."""
    count, last = -(-n // batch), n % batch or batch
    return max(1, count - (last == 1))


def buffer_policy(name: str) -> tuple[Part, Part]:
    """What a policy for the buffers of shared layers keeps out of broadcasts, and out of uploads.

    ``average`` treats them as the parameters. ``private`` leaves each client its own. ``reset`` broadcasts the
    server's, which stay the initial ones.
    """
    return {
        "average": (Part.NONE, Part.NONE),
        "private": (Part.BUFFER, Part.BUFFER),
        "reset": (Part.NONE, Part.BUFFER),
    }[name]
