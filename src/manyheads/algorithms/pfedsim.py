"""pFedSim.

Tan, Lyu, Chen, Wang, Wu, Zhang: pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning.
arXiv 2305.15706, 2023.

After a warm-up with FedAvg every client has a head of its own, and the server mixes a backbone for each client out of
those of all clients that it knows, by the similarity of their heads: the mean over classes of the cosine of their
weight vectors, s. Client j's backbone counts ``-log(1 - s_ij)`` for client i.

Details that matter: s is computed between clients of one round, after they have trained; it stays until both are in a
round again, and is 0 for pairs that never were; a client's own backbone counts as one of similarity 0.9999, the largest
there can be. At the end of the warm-up every client starts from the global model.

The server's state grows with the clients that have taken part since then: a backbone each, and a number for every pair
that has been in a round together.

Our decisions: the warm-up's rounds are among those of the run, so that all methods have as many; a client that has not
taken part since its end has the global model still.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from manyheads.contract import (
    Algorithm,
    Broadcast,
    Context,
    Part,
    Predictor,
    ServerContext,
    ServerState,
    Sizes,
    Tree,
    Upload,
    between,
)
from manyheads.errors import InputError

LARGEST = 0.9999  # a similarity of 1 would count infinitely


@dataclass(frozen=True)
class PFedSim(Algorithm):
    """Private heads, whose similarity decides from whom a client's backbone comes.

    Attributes:
        warmup: the share of the rounds that FedAvg gets, in [0, 1]; the last round is always the method's own.
    """

    warmup: float = 0.5

    def __post_init__(self) -> None:
        between(0, 1, self, "warmup")

    def parts(self, base: Mapping[str, nn.Module], sizes: Sizes) -> Mapping[str, nn.Module]:
        if not isinstance(base["head"], nn.Linear):
            raise InputError(f"pFedSim compares heads of one linear layer, not of a {type(base['head']).__name__}")
        return base

    def warms_up(self, ctx: Context) -> bool:
        """Whether a round is FedAvg's."""
        return ctx.round < min(int(self.warmup * ctx.rounds), ctx.rounds - 1)

    def kept(self, ctx: Context) -> Part:
        """The head is kept, though it is sent as well: the server compares heads."""
        return super().kept(ctx) | Part.HEAD

    # server room

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        """No backbone is stored before the warm-up has ended."""
        nobody = torch.zeros(0, 2, dtype=torch.int64)
        return ServerState(model=ctx.initial, stored={}, pairs=nobody, similarity=torch.zeros(0))

    def broadcast(self, server: ServerState, client: int, ctx: ServerContext) -> Broadcast:
        """The client's own mixture of backbones; to one that has sent none, the model with which the warm-up ended."""
        received = super().broadcast(server, client, ctx)
        if client not in server.stored:
            return received
        mixture = self.mixed(server, client, ctx)
        return received.replace(model=ctx.take(received.model, Part.BACKBONE) | mixture)

    def mixed(self, server: ServerState, client: int, ctx: ServerContext) -> Tree:
        """The mean of the stored backbones, by the similarity of their heads to the client's."""
        weights = mixing_weights(similar(server, client), client)
        uploads = {other: Upload(model=model) for other, model in server.stored.items() if weights.get(other, 0) > 0}
        return ctx.average(uploads, weight={other: weights[other] for other in uploads}).model

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        """FedAvg's mean; after the warm-up the backbones of the round, and how similar its heads are."""
        if self.warms_up(ctx):
            return super().aggregate(server, uploads, ctx)
        heads = {client: upload.model["head.weight"] for client, upload in uploads.items()}
        pairs = torch.tensor(list(combinations(heads, 2)), dtype=torch.int64).reshape(-1, 2)
        found = [cosine_similarity(heads[i], heads[j], dim=1).mean().clamp(min=0) for i, j in pairs.tolist()]
        others = ~torch.isin(server.pairs @ torch.tensor([ctx.clients, 1]), pairs @ torch.tensor([ctx.clients, 1]))
        pairs = torch.cat([server.pairs[others], pairs])
        similarity = torch.cat([server.similarity[others], *(value.reshape(1) for value in found)])
        backbones = {client: ctx.take(upload.model, Part.BACKBONE) for client, upload in uploads.items()}
        return server.replace(stored={**server.stored, **backbones}, pairs=pairs, similarity=similarity)

    def global_model(self, server: ServerState, ctx: ServerContext) -> Predictor | None:
        """The warm-up's."""
        return None if server.stored else Predictor(server.model, self.logits)


def similar(server: ServerState, client: int) -> dict[int, float]:
    """The similarities of a client's head to those of the clients with whom it has been in a round."""
    mine = (server.pairs == client).any(dim=1)
    others = server.pairs[mine].sum(dim=1) - client
    return dict(zip(others.tolist(), server.similarity[mine].tolist(), strict=True))


def mixing_weights(similarity: Mapping[int, float], own: int) -> dict[int, float]:
    """How much each client's backbone counts for client ``own``: ``-log(1 - s)``; one that is not named, nothing."""
    return {other: -math.log1p(-min(s, LARGEST)) for other, s in {**similarity, own: LARGEST}.items()}
