"""FedRoD.

Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR 2022.

One backbone and two heads. The generic head is shared and trained with the backbone on a balanced softmax, which takes
the client's label shares out of it; the personal head is private, and its answer is added to the generic one's:

    CE(generic + gamma log share, y)  +  CE(generic, held fixed, + personal, y)

Details that matter: the second term trains the personal head only; shares are counted on the whole of the client's
data; a class that the client lacks is masked out of the first term. The personal model answers with the sum; the
variant ``generic`` is the shared head alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from manyheads.contract import (
    Algorithm,
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Model,
    Part,
    Predictor,
    PrivateState,
    ServerContext,
    ServerState,
    Sizes,
    Terms,
    Tree,
    above,
)
from manyheads.local.losses import ce


@dataclass(frozen=True)
class FedRoD(Algorithm):
    """A shared generic head and a private one, whose answers are added.

    Attributes:
        gamma: how far label shares are taken out of the generic head, above 0.
    """

    gamma: float = 1.0
    shared = Part.ALL - Part.of("personal_head")

    def __post_init__(self) -> None:
        above(0, self, "gamma")

    def parts(self, base: Mapping[str, nn.Module], sizes: Sizes) -> Mapping[str, nn.Module]:
        return {**base, "personal_head": nn.Linear(sizes.features, sizes.classes)}

    def logits(self, m: Model, x: Tensor) -> Tensor:
        z = m.backbone(x)
        answer: Tensor = m.head(z) + m.personal_head(z)
        return answer

    def generic(self, m: Model, x: Tensor) -> Tensor:
        """The shared head's answer."""
        return super().logits(m, x)

    def loss(self, m: Model, b: Batch) -> Terms:
        z = m.backbone(b.x)
        generic = m.head(z)
        return {
            "generic": ce(generic + b.log_share, b),
            "personal": ce(generic.detach() + m.personal_head(z.detach()), b),
        }

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        counts = torch.bincount(data.y, minlength=ctx.classes)
        return data.given(log_share=self.gamma * (counts / len(data)).log())

    def predictors(self, model: Tree, received: Broadcast, data: Data, ctx: ClientContext) -> Mapping[str, Predictor]:
        """The sum of both heads, and the shared one alone."""
        return {"": Predictor(model, self.logits), "generic": Predictor(model, self.generic)}

    def global_model(self, server: ServerState, ctx: ServerContext) -> Predictor:
        return Predictor(server.model, self.generic)
