"""FedeCouple.

Yang, Li, Wang, Li, Fan, Wang, Wu, Cheng: FedeCouple: Fine-Grained Balancing of Global-Generalization and
Local-Adaptability in Federated Learning. arXiv 2511.09599, 2025.

Backbone and head are trained apart, each for both worlds:

* GFA: a client's anchors are the class means of its images under the received backbone. They never leave it. A center
  loss draws features to the anchor of their class; the first round has none, since its backbone is random.
* GPC: the private head learns from its labels and, by distillation on the same frozen features, from the global head,
  with a weight that changes: it is large where the global head is sure of the label.
* GLF: the backbone is trained against the frozen global head, then against the frozen private one.
* The server weighs each model by its similarity to the mean of all.

Details that matter: a client keeps its head and starts from the head that it receives first; anchors are recomputed
from every received backbone, in eval mode, on images that are not augmented; every phase has an optimizer of its own.

The text of the paper that is at hand names these parts without their formulas; the rest is our decision. With a
switch: the order GPC, GLF; the epochs; mean squared error as the center loss, with weight 1; a distillation weight of
0.25 times the global head's probability of the label, at temperature 2; aggregation weights ``n exp(-d / n)``, where d
is the sum over tensors of their distance to the mean, as in FedMate (arXiv 2508.17954, by the same first authors);
RandAugment with 2 operations of magnitude 9. Without one: the details above, that distillation and cross-entropy are
mixed convexly, and that heads are sent and averaged like backbones. The paper does not say when it measures;
``post_local`` is the moment for which the last phase adapts the backbone, ``post_agg`` the one of other methods.

The paper proves that the gradient of the local objectives falls. With the default it did where we measured it; with
FedMate's ramp of the distillation's weight, clipped to [0.1, 0.5], it rose.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import softmax

from manyheads.algorithms._own_head import OwnHead
from manyheads.contract import (
    Batch,
    Broadcast,
    ClientContext,
    Data,
    Model,
    Objective,
    Part,
    PrivateState,
    ServerContext,
    ServerState,
    Sizes,
    Terms,
    Tree,
    Upload,
    above,
    at_least,
    between,
    one_of,
)
from manyheads.data.augment import RandAugment
from manyheads.errors import InputError
from manyheads.local.losses import ce, each_ce, each_kl, mse

CHOICES = {
    "center": ("mse", "sum_half"),
    "dynamic": ("confidence", "ramp", "decay", "const"),
    "order": ("gpc_first", "glf_first"),
    "aggregation": ("distance", "cosine", "size"),
}


@dataclass(frozen=True)
class FedeCouple(OwnHead):
    """Backbone and head are trained apart, each by global and by local knowledge; similar models weigh more.

    Attributes:
        head_epochs: epochs of GPC.
        global_epochs: epochs of GLF against the global head; None for half of the local epochs, at least 1.
        local_epochs: epochs of GLF against the private head; None for what global_epochs leaves, at least 1.
        head_lr: learning rate of GPC; None for the run's.
        center: the center loss: ``mse``, the mean over dimensions, or ``sum_half``, half of the sum.
        center_weight: its weight, at least 0.
        dynamic: the weight of the distillation: ``confidence`` is kd_high times the global head's probability of a
            sample's label; ``ramp`` is t/R and ``decay`` 1 - t/R, clipped to [kd_low, kd_high]; ``const`` is kd_high.
        kd_low: in [0, kd_high]; only for ``ramp`` and ``decay``.
        kd_high: in [0, 1].
        temperature: T > 0 of the distillation.
        order: ``gpc_first``, or ``glf_first``: GLF against the global head, GPC, GLF against the private head.
        aggregation: ``distance`` (n exp(-d / n)), ``cosine`` (of a model and the mean model, without n), ``size`` (n).
        augment: RandAugment on train images.
        augment_ops: operations an image, 1 to 10.
        augment_magnitude: their strength, 1 to 30.
    """

    head_epochs: int = 1
    global_epochs: int | None = None
    local_epochs: int | None = None
    head_lr: float | None = None
    center: str = "mse"
    center_weight: float = 1.0
    dynamic: str = "confidence"
    kd_low: float = 0.1
    kd_high: float = 0.25
    temperature: float = 2.0
    order: str = "gpc_first"
    aggregation: str = "distance"
    augment: bool = True
    augment_ops: int = 2
    augment_magnitude: int = 9

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            one_of(choices, self, name)
        between(0, 1, self, "kd_low", "kd_high")
        if self.dynamic in ("ramp", "decay") and self.kd_low > self.kd_high:
            raise InputError(f"algorithm.kd_low = {self.kd_low}: must be at most kd_high = {self.kd_high}")
        above(0, self, "temperature", "head_lr")
        at_least(0, self, "head_epochs", "global_epochs", "local_epochs", "center_weight")
        if self.head_epochs == self.global_epochs == self.local_epochs == 0:
            raise InputError(
                "algorithm.local_epochs = 0: with head_epochs = 0 and global_epochs = 0 nothing is trained"
            )
        between(1, 10, self, "augment_ops")
        between(1, 30, self, "augment_magnitude")

    def ablations(self, epochs: int) -> Mapping[str, Mapping[str, Any]]:
        """Each part that is on switched off alone; without GLF its epochs go to the backbone and the private head."""
        phases = dict(self.phases(epochs))
        rows: dict[str, Mapping[str, Any]] = {}
        if phases["glf_global"]:
            rows["without GLF"] = {"global_epochs": 0, "local_epochs": phases["glf_global"] + phases["glf_local"]}
        rows["without GFA"] = {"center_weight": 0.0}
        if phases["gpc"]:
            rows["without GPC"] = {"kd_low": 0.0, "kd_high": 0.0}
        return rows | {"without similarity": {"aggregation": "size"}, "without RandAugment": {"augment": False}}

    def remark(self, ctx: ServerContext) -> str:
        """A budget that other methods do not have."""
        backbone = sum(number for phase, number in self.phases(ctx.epochs) if phase != "gpc")
        if backbone <= ctx.epochs:
            return ""
        return f"the backbone is trained for {backbone} epochs a round, not for train.epochs = {ctx.epochs}"

    def parts(self, base: Mapping[str, nn.Module], sizes: Sizes) -> Mapping[str, nn.Module]:
        """The network as it is; what cannot be augmented is refused before anything runs."""
        if self.augment:
            RandAugment.check(sizes.image)
        return base

    # client room

    def train(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Tree:
        """GPC, then GLF against the global and against the private head."""
        data = self.prepare(model, received, private, data, ctx)
        mine, shared = private.head, self.reference(received, private).part("head")
        number = 0
        for phase, epochs in self.phases(ctx.epochs):
            planned = range(number, number := number + epochs)  # no two phases of a round share an order of samples
            if phase == "gpc":
                optim = ctx.sgd if self.head_lr is None else replace(ctx.sgd, lr=self.head_lr)
                model = ctx.fit(
                    model.replace(head=mine),
                    self.gpc_loss,
                    data,
                    trains=Part.HEAD,
                    epochs=planned,
                    optim=optim,
                    phase=phase,
                )
                mine = model.part("head")
            else:
                model = model.replace(head=shared if phase == "glf_global" else mine)
                model = ctx.fit(model, self.glf_loss, data, trains=Part.BACKBONE, epochs=planned, phase=phase)
        return model.replace(head=mine)

    def phases(self, epochs: int) -> list[tuple[str, int]]:
        """The phases of a client's round, in order, and their epochs."""
        glf_global = max(1, epochs // 2) if self.global_epochs is None else self.global_epochs
        glf_local = max(1, epochs - glf_global) if self.local_epochs is None else self.local_epochs
        gpc, first, last = ("gpc", self.head_epochs), ("glf_global", glf_global), ("glf_local", glf_local)
        return [gpc, first, last] if self.order == "gpc_first" else [first, gpc, last]

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        """With anchors, the global head and the weight of its distillation; augmented."""
        head = self.reference(received, private).part("head")
        data = self.anchored(model, data, ctx).given(
            global_head=Tree().replace(head=head), kd_weight=self.kd_weight(ctx)
        )
        if self.augment:
            data = data.map(RandAugment.of(data, self.augment_ops, self.augment_magnitude))
        return data

    def anchored(self, reference: Tree, data: Data, ctx: ClientContext) -> Data:
        """The client's data with its anchors (GFA), which stay in this room; ``reference`` has the backbone."""
        if self.center_weight > 0 and ctx.round > 0:
            return data.given(anchors=ctx.class_means(reference, data)[0], center_weight=self.center_weight)
        return data.given(center_weight=0.0)

    def objective(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Objective:
        """GLF's loss at the received backbone and the private head, on images that are not augmented."""
        model = self.assemble(received, private)
        return Objective(model, self.glf_loss, self.anchored(model, data, ctx))

    def kd_weight(self, ctx: ClientContext) -> float:
        """The weight l of the distillation in this round; a sample's own share comes on top for ``confidence``."""
        progress = ctx.round / ctx.rounds
        wanted = {"ramp": progress, "decay": 1 - progress}
        if self.dynamic not in wanted:
            return self.kd_high
        return min(max(wanted[self.dynamic], self.kd_low), self.kd_high)

    def gpc_loss(self, m: Model, b: Batch) -> Terms:
        """(1 - l) CE + l T^2 KL(global head || private head), both heads on the same features."""
        z = m.backbone(b.x)
        student, teacher = m.head(z), m.at(b.global_head).head(z)
        weight = torch.full((len(b),), b.kd_weight, device=b.y.device)
        if self.dynamic == "confidence":
            weight = weight * softmax(teacher, dim=1)[torch.arange(len(b), device=b.y.device), b.y]
        return {
            "ce": b.mean((1 - weight) * each_ce(student, b)),
            "kd": b.mean(weight * each_kl(teacher, student, self.temperature)),
        }

    def glf_loss(self, m: Model, b: Batch) -> Terms:
        """CE against a frozen head, and the center loss."""
        z = m.backbone(b.x)
        terms = {"ce": ce(m.head(z), b)}
        if b.center_weight > 0:
            scale = z.shape[1] / 2 if self.center == "sum_half" else 1.0
            terms["center"] = b.center_weight * scale * mse(z, b.anchors[b.y], b)
        return terms

    # server room

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        """The mean by similarity to the mean, backbone and head alike."""
        weights = self.weights(uploads, ctx)
        total = math.fsum(weights.values())
        ctx.note("weight", {client: weight / total for client, weight in weights.items()})
        return server.replace(model=server.model | ctx.average(uploads, weight=weights).model)

    def weights(self, uploads: Mapping[int, Upload], ctx: ServerContext) -> dict[int, float]:
        """Each client's weight, at least 0; not normalised, so that ``size`` has the bits of any other mean by size."""
        sizes = {client: float(upload.weight) for client, upload in uploads.items()}
        if self.aggregation == "size":
            return sizes
        mean = ctx.take(ctx.average(uploads).model, Part.PARAMETERS)
        models = {client: ctx.take(upload.model, Part.PARAMETERS) for client, upload in uploads.items()}
        if self.aggregation == "cosine":
            return {client: max(0.0, _cosine(model, mean)) for client, model in models.items()}
        far = {client: _distance(model, mean) / sizes[client] for client, model in models.items()}
        least = min(far.values())  # a common factor, so that not all weights can round to 0
        return {client: sizes[client] * math.exp(least - far[client]) for client in uploads}


def _distance(model: Tree, mean: Tree) -> float:
    """The sum over tensors of their Euclidean distance."""
    return sum(float((model[name].double() - mean[name].double()).norm()) for name in model)


def _cosine(model: Tree, mean: Tree) -> float:
    """The cosine of two models, each as one vector."""
    a, b = (torch.cat([tree[name].double().flatten() for name in model]) for tree in (model, mean))
    return float(torch.cosine_similarity(a, b, dim=0))
