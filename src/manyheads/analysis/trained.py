"""``Trained``: the models of a run, as the analyses use them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyheads.contract import ClientContext, Data, Predictor, ServerContext
from manyheads.data.dataset import Dataset
from manyheads.errors import InputError
from manyheads.experiment import Experiment
from manyheads.local.client import by_variant
from manyheads.local.setting import Setting
from manyheads.result import Result


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
        if not 0 <= client < self.clients:
            raise InputError(f"client {client}: the run has clients 0 to {self.clients - 1}")
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

    def logits(self, predictor: Predictor, data: Data) -> Tensor:
        """What a model answers, eval mode, not augmented: ``[n, classes]``."""
        model = self._server.model(predictor.tree)
        with torch.no_grad():
            return self._server.rowwise(lambda x: predictor.logits(model, x), data)

    def features(self, predictor: Predictor, data: Data) -> Tensor:
        """The features of a model's backbone, eval mode, not augmented: ``[n, feature_dim]``."""
        with torch.no_grad():
            return self._server.features(predictor.tree, data)

    def accuracy(self, predictor: Predictor, data: Data) -> float:
        """The share of right answers, in [0, 1]; not a number where there are no samples."""
        return float((self.logits(predictor, data).argmax(dim=1) == data.y).float().mean())

    @cached_property
    def _server(self) -> ServerContext:
        return self.setting.server(self._upcoming)

    def _client(self, client: int) -> ClientContext:
        return self.setting.client(self._upcoming, client)

    @property
    def _upcoming(self) -> int:
        """The round that would follow."""
        return max((row["round"] for row in self.result.rows), default=-1) + 1
