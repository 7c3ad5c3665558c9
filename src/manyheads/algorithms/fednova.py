"""FedNova.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
NeurIPS 2020.

Clients with more images take more steps, and FedAvg lets them pull further. Here each client's change is divided by its
number of steps (with momentum, by the sum of the weights that its gradients got), and the mean change is multiplied by
the mean number again. Means are by size.

Details that matter: the last small batch of an epoch is a step too; momentum starts anew in every round; a server rule
of this kind may go beyond the clients' models, so it touches parameters only, and buffers follow the mean by size.

Our decision: the paper's proximal term and server momentum are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from manyheads.contract import (
    Algorithm,
    Broadcast,
    ClientContext,
    Data,
    Part,
    PrivateState,
    ServerContext,
    ServerState,
    Tree,
    Update,
    Upload,
)


@dataclass(frozen=True)
class FedNova(Algorithm):
    """FedAvg with changes normalised by the number of local steps."""

    sends: ClassVar = {"steps": ()}

    def update(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        update = super().update(model, received, private, data, ctx)
        steps = weighted_steps(ctx.steps(data), ctx.sgd.momentum)
        return replace(update, upload=update.upload.replace(steps=steps))

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        """``w + sum_k share_k (mean steps / steps_k) (w_k - w)``."""
        total = sum(upload.weight for upload in uploads.values())
        mean_steps = sum(upload.weight * upload.steps for upload in uploads.values()) / total
        weights = {k: upload.weight / total * mean_steps / upload.steps for k, upload in uploads.items()}
        mean = ctx.average(uploads, weight=weights).model
        buffers = ctx.take(ctx.average(uploads).model, Part.BUFFER)
        return server.replace(model=server.model.lerp(mean, sum(weights.values())) | buffers)


def weighted_steps(steps: int, momentum: float) -> float:
    """How often a client's gradients count in its change: with momentum, step j's count 1 + m + ... + m^(n - j)."""
    return sum((1 - momentum**j) / (1 - momentum) for j in range(1, steps + 1))
