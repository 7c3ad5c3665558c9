"""FedAvg with the auxiliary set as one more client.

A control for methods whose server trains on an auxiliary set D_s, such as pFedKDH: here FedAvg has the same images. The
server trains the model that it has sent on D_s, for the local epochs of the run, in every round, and its result counts
in the mean by the size of D_s. Nothing else changes, and nothing more is sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from manyheads.algorithms.fedavg import FedAvg
from manyheads.contract import ServerContext, ServerState, Upload


@dataclass(frozen=True)
class FedAvgAux(FedAvg):
    """FedAvg whose server takes part in every round, with the auxiliary set."""

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        """FedAvg's; a run without an auxiliary set is refused before anything is stored."""
        _ = ctx.auxiliary
        return super().init_server(ctx, previous)

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        """The mean over the cohort and the server. What is not shared, the server keeps as it has trained it."""
        mine = ctx.fit(server.model, self.loss, ctx.auxiliary)
        upload = Upload(model=ctx.take(mine, self.uploaded(ctx)), weight=float(len(ctx.auxiliary)))
        return super().aggregate(server.replace(model=mine), {**uploads, ctx.clients: upload}, ctx)
