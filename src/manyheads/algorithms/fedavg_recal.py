"""FedAvg with a recalibrated head.

A control for pFedKDH: FedAvg whose server trains the head on the auxiliary set D_s as pFedKDH's does, before the first
round and after every aggregation, the backbone frozen. The clients train the recalibrated model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from manyheads.algorithms.fedavg import FedAvg
from manyheads.contract import Part, ServerContext, ServerState, Upload, at_least


@dataclass(frozen=True)
class FedAvgRecal(FedAvg):
    """FedAvg whose server trains the head on the auxiliary set after every round.

    Attributes:
        calibration_epochs: before the first round.
        recalibration_epochs: after every round.
    """

    calibration_epochs: int = 3
    recalibration_epochs: int = 3

    def __post_init__(self) -> None:
        at_least(0, self, "calibration_epochs", "recalibration_epochs")

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        return self.calibrated(super().init_server(ctx, previous), ctx, self.calibration_epochs)

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        return self.calibrated(super().aggregate(server, uploads, ctx), ctx, self.recalibration_epochs)

    def calibrated(self, server: ServerState, ctx: ServerContext, epochs: int) -> ServerState:
        """The head trained on D_s."""
        return server.replace(model=ctx.fit(server.model, self.loss, ctx.auxiliary, trains=Part.HEAD, epochs=epochs))
