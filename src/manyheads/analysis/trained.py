"""``Trained``: the models of a run, as the analyses use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyheads.contract import ClientContext, Data, Part, Predictor, ServerContext, Tree
from manyheads.data.dataset import Dataset
from manyheads.errors import InputError
from manyheads.experiment import Experiment
from manyheads.local.client import by_variant
from manyheads.local.setting import Setting
from manyheads.result import Result

_IDLE = {"data.dir", "run.engine", "run.workers"}  # keys of a config that change no result


@dataclass(frozen=True)
class Trained:
    """A run and its models, as they stand after its last round.

    Attributes:
        experiment: what was run.
        result: what it gave.
    """

    experiment: Experiment
    result: Result

    @classmethod
    def load(cls, folder: Path | str, *, dataset: Dataset | None = None, **own: Any) -> Trained:
        """Reads a stored run; arguments and errors as for ``Experiment.resume``."""
        return cls(*Experiment.load(folder, dataset=dataset, **own))

    @property
    def name(self) -> str:
        """The method's."""
        return self.experiment.config.algorithm.name

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.experiment.federation.clients

    @property
    def rounds(self) -> int:
        """How many rounds of the main stage are done; the number of the one that would follow."""
        return max((row["round"] for row in self.result.rows), default=-1) + 1

    @cached_property
    def setting(self) -> Setting:
        """Of the main stage."""
        return self.experiment.setting(self.experiment.algorithm.stages(self.experiment.config.train.rounds)[-1])

    def global_model(self, variant: str = "") -> Predictor | None:
        """The model that is one for all; None where the method has none of this variant."""
        ctx = self._server
        return by_variant(self.setting.algorithm.global_model(self.result.server, ctx)).get(variant)

    def personal(self, client: int, variant: str = "") -> Predictor | None:
        """A client's personal model before local training (``post_agg``); None where the method has none.

        Raises:
            InputError: there is no such client.
        """
        self._check(client)
        algorithm, ctx = self.setting.algorithm, self._client(client)
        received = algorithm.broadcast(self.result.server, client, self._server)
        private = self.result.private.get(client) or algorithm.init_private(received, ctx)
        models = algorithm.personal(received, private, self.experiment.federation.train(client), ctx)
        return by_variant(models).get(variant)

    def model(self, client: int) -> Predictor:
        """What a client uses: its personal model, or the global one where the method keeps nothing at clients."""
        found = self.personal(client) or self.global_model()
        if found is None:
            raise InputError(f"{self.name} has neither a personal nor a global model of its own name")
        return found

    @cached_property
    def shared_backbone(self) -> Tree:
        """The backbone that every client would receive next: as aggregated last, before local training.

        Raises:
            InputError: clients receive no whole backbone, or not all the same one.
        """
        wanted = self._server.take(self._server.initial, Part.BACKBONE)
        broadcast = self.setting.algorithm.broadcast
        received = (broadcast(self.result.server, client, self._server).model for client in range(self.clients))
        first, *others = (self._server.take(model, Part.BACKBONE) for model in received)
        if list(first) != list(wanted):
            raise InputError(f"{self.name} sends clients no whole backbone: look at clients' own (--clients 0,1)")
        if any(other != first for other in others):
            raise InputError(f"{self.name} sends each client another backbone: look at clients' own (--clients 0,1)")
        return first

    def test(self, client: int) -> Data:
        """A client's own test images, which may be none.

        Raises:
            InputError: there is no such client.
        """
        self._check(client)
        return self.experiment.federation.test.take(self.experiment.federation.test_rows(client))

    def logits(self, predictor: Predictor, data: Data) -> Tensor:
        """What a model answers, eval mode, not augmented: ``[n, classes]``."""
        model = self._server.model(predictor.tree)
        with torch.no_grad():
            return self._server.rowwise(lambda x: predictor.logits(model, x), data)

    def features(self, model: Predictor | Tree, data: Data) -> Tensor:
        """The features of a model's backbone, eval mode, not augmented: ``[n, feature_dim]``."""
        with torch.no_grad():
            return self._server.features(model if isinstance(model, Tree) else model.tree, data)

    def accuracy(self, predictor: Predictor, data: Data) -> float:
        """The share of right answers, in [0, 1]; not a number where there are no samples."""
        return float((self.logits(predictor, data).argmax(dim=1) == data.y).float().mean())

    @cached_property
    def _server(self) -> ServerContext:
        return self.setting.server(self.rounds)

    def _client(self, client: int) -> ClientContext:
        return self.setting.client(self.rounds, client)

    def _check(self, client: int) -> None:
        if not 0 <= client < self.clients:
            raise InputError(f"client {client}: the run has clients 0 to {self.clients - 1}")


def names(runs: Sequence[Trained]) -> list[str]:
    """A name for each run: its method, and in what its config differs from the other runs of that method."""
    configs = [_flat(run) for run in runs]
    found = [_name(run, config, configs) for run, config in zip(runs, configs, strict=True)]
    return [
        f"{name}, {run.result.folder.name}" if found.count(name) > 1 and run.result.folder else name
        for run, name in zip(runs, found, strict=True)
    ]


def _name(run: Trained, mine: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> str:
    alike = [config for config in configs if config["algorithm.name"] == mine["algorithm.name"]]
    differing = [key for key in mine if key not in _IDLE and any(config.get(key) != mine[key] for config in alike)]
    return ", ".join([run.name, *(f"{key.removeprefix('algorithm.')} = {mine[key]}" for key in differing)])


def _flat(run: Trained) -> dict[str, Any]:
    tables = run.experiment.config.model_dump()
    return {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}
