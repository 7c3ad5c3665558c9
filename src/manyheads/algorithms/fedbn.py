"""FedBN.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021.

Everything is averaged but the normalisation layers, whose weights and statistics stay with their client.

Our decision: a client that has not taken part yet has the initial statistics (mean 0, variance 1).
"""

from dataclasses import dataclass

from manyheads.contract import Algorithm, Part, ServerContext


@dataclass(frozen=True)
class FedBN(Algorithm):
    """FedAvg with private normalisation layers."""

    shared = Part.ALL - Part.NORM

    def remark(self, ctx: ServerContext) -> str:
        return "" if ctx.take(ctx.initial, Part.NORM) else "this network has no normalisation layers: this is FedAvg"
