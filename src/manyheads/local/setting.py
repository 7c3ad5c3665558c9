"""``Setting``: one stage of a run, from which every party's context is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from manyheads.contract import SGD, Algorithm, ClientContext, Context, Data, ServerContext, Sizes
from manyheads.contract.context import SERVER, buffer_policy
from manyheads.contract.random import seed_of
from manyheads.contract.trainer import Trainer
from manyheads.errors import InputError
from manyheads.local.network import Network, channels_last
from manyheads.local.outputs import Outputs
from manyheads.local.placement import PlacedTrainer, Placement
from manyheads.local.testing import Tester, evaluated
from manyheads.local.training import LocalTrainer
from manyheads.models.dropout import replace_dropout
from manyheads.models.probing import probe
from manyheads.models.split import SplitModel

C = TypeVar("C", bound=Context)

_SEEDING = threading.Lock()


class Parties(Protocol):
    """The data of all parties; ``data.federated.Federation`` is one."""

    clients: int
    classes: int
    shape: tuple[int, int, int]

    @property
    def auxiliary(self) -> Data | None:
        """The server's data."""

    @property
    def test(self) -> Data:
        """The test set."""

    def train(self, client: int, /) -> Data:
        """A client's train data."""

    def test_rows(self, client: int, /) -> torch.Tensor:
        """A client's places in the test set."""


@dataclass(frozen=True)
class Budget:
    """How much a client trains in a round.

    Attributes:
        epochs: local epochs.
        batch: mini-batch size.
        sgd: the optimizer.
    """

    epochs: int
    batch: int
    sgd: SGD


@dataclass(frozen=True)
class Setting:
    """What stays the same over the rounds of a stage.

    Attributes:
        algorithm: the method of the stage.
        network: its network.
        parties: the data.
        budget: local training.
        rounds: rounds of the stage.
        seed: of the run.
        buffers: the buffer policy.
        feature_dim: the length of a feature vector.
        gradients: note the squared gradient norm of every client's local objective.
        stopped: asked before every step; training ends where it says True.
        trainer: runs ``fit`` and ``scan``; None for the reference.
        placement: the device of training and tests; None for the CPU.
        training: the network as the reference trains it, such as with products in bf16; None for ``network``.
        threads: how many the server may use on the CPU, while the clients wait.
        outputs: of the parts of tested models, for all testers of the stage.
    """

    algorithm: Algorithm
    network: Network
    parties: Parties
    budget: Budget
    rounds: int
    seed: int
    buffers: str
    feature_dim: int
    gradients: bool = False
    stopped: Callable[[], bool] = lambda: False
    trainer: Trainer | None = None
    placement: Placement | None = None
    training: Network | None = None
    threads: int = 1
    outputs: Outputs = field(kw_only=True)

    @classmethod
    def make(
        cls,
        algorithm: Algorithm,
        model: Callable[[], SplitModel],
        parties: Parties,
        budget: Budget,
        rounds: int,
        seed: int,
        buffers: str,
        *,
        gradients: bool = False,
        device: str = "cpu",
        half: bool = False,
    ) -> Setting:
        """Builds the network. The base model and a method's own modules are drawn from a stream each.

        With ``half``, training multiplies in bf16; tests never do.
        """
        with _SEEDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, "init", "model"))
            base = model()
            feature_dim = probe(base, parties.shape, parties.classes)
            torch.manual_seed(seed_of(seed, "init", "parts"))
            sizes = Sizes(parties.shape, feature_dim, parties.classes)
            parts = algorithm.parts(base.parts(), sizes)
            network = Network({name: replace_dropout(part) for name, part in parts.items()})
            _check_bound(base, Network(base.parts()), parties.shape)
        wanted = torch.cat([parties.test_rows(client) for client in evaluated(parties.clients, seed)])
        placement = None if device == "cpu" else Placement(device)
        return cls(
            algorithm,
            network,
            parties,
            budget,
            rounds,
            seed,
            buffers,
            feature_dim,
            gradients,
            placement=placement,
            training=network.half() if half else None,
            outputs=Outputs(placement.data(parties.test) if placement else parties.test, wanted),
        )

    def tester(self) -> Tester:
        """Tests models; one for each thread that does."""
        return Tester(self.network, self.outputs.test, self.outputs)

    def client(self, round: int, client: int, epochs: int | None = None) -> ClientContext:
        """The context of a client in a round; with ``epochs`` for a turn of another length than the run's."""
        ctx = self._context(ClientContext, round, client)
        return ctx if epochs is None else replace(ctx, epochs=epochs)

    def server(self, round: int) -> ServerContext:
        """The server's context in a round."""
        return replace(self._context(ServerContext, round, SERVER), server_data=self.parties.auxiliary)

    def words(self, client: int) -> dict[str, tuple[int, ...]]:
        """What the words of a declared shape mean for a client."""
        sizes = {"n": len(self.parties.train(client)), "classes": self.parties.classes, "features": self.feature_dim}
        return {"image": self.parties.shape, **{word: (size,) for word, size in sizes.items()}}

    def _context(self, kind: type[C], round: int, party: int) -> C:
        down, up = buffer_policy(self.buffers)
        threads = self.threads if party == SERVER and self.placement is None else 1
        trainer = self.trainer or LocalTrainer(self.training or self.network, self.stopped, threads)
        return kind(
            initial=self.network.initial,
            tags=self.network.tags,
            round=round,
            rounds=self.rounds,
            clients=self.parties.clients,
            classes=self.parties.classes,
            feature_dim=self.feature_dim,
            epochs=self.budget.epochs,
            sgd=self.budget.sgd,
            batch=self.budget.batch,
            seed=self.seed,
            party=party,
            trainer=PlacedTrainer(trainer, self.placement) if self.placement else trainer,
            keep_down=down,
            keep_up=up,
        )


def _check_bound(base: SplitModel, network: Network, shape: tuple[int, int, int]) -> None:
    """Refuses a network whose layers are reached by other ways than its modules: copies of it would not be trained."""
    bound = network.bind(channels_last(network.initial))
    x = torch.zeros(2, *shape).contiguous(memory_format=torch.channels_last)
    try:
        used = _reached(lambda: bound.calls["head"](bound.calls["backbone"](x)), bound.modules)
    except RuntimeError:  # such as torch's word on tensors without memory
        used = set()
    if lost := _reached(lambda: base.eval()(x), base) - used:
        raise InputError(
            f"the network uses {sorted(lost)[0]} by a reference of its own, such as a lambda or a bound method that "
            "it stored: call its layers in forward(), as self.layer(x)"
        )


def _reached(run: Callable[[], Tensor], module: nn.Module) -> set[str]:
    """The parameters of ``module`` that an output depends on."""
    floating = {name: p for name, p in module.named_parameters() if p.is_floating_point()}
    frozen = [p.requires_grad_() for p in floating.values() if not p.requires_grad]
    try:
        with torch.enable_grad():
            gradients = torch.autograd.grad(run().sum(), list(floating.values()), allow_unused=True)
    finally:
        for p in frozen:
            p.requires_grad_(False)
    return {name for name, gradient in zip(floating, gradients, strict=True) if gradient is not None}
