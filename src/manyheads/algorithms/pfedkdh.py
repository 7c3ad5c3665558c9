"""pFedKDH.

Souza Neto, da Silva Jr., Cavalcante: Personalized Federated Learning through Global Knowledge Distillation and Local
Head Adaptation. IEEE MLSP 2026, arXiv 2609.17284.

Only the backbone is averaged (equation 4). Each client keeps its head, which is never sent. The server's head,
recalibrated on the auxiliary set D_s after every round (equation 5), teaches the clients by distillation, and a
proximal term holds the backbone near the one that was received (equation 2):

    (1 - kd_weight) CE + kd_weight T^2 KL(teacher || student) + prox_weight / 2 ||backbone - received backbone||^2

Before the first round the server may warm up its model on D_s for E_w epochs (equation 3), and calibrates its head
once.

Details that matter: the teacher is frozen and in eval mode; the proximal term acts on the backbone's parameters only;
client heads start from the initial head, before warm-up and calibration. The measures ``post_agg`` and ``post_adapt``
are the paper's variants Fair and EA; the adaptation trains the head on the client's train images for a few steps and is
dropped after the test.

Our decisions, which the paper leaves open: ``kd_weight``, ``temperature``, ``prox_weight`` and ``adapt_steps``; the
run's optimizer, started afresh, for calibration and adaptation; recalibration starts from the head before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    Proximal,
    ServerContext,
    ServerState,
    Terms,
    Tree,
    Upload,
    above,
    at_least,
    between,
)
from manyheads.local.losses import ce, kd
from manyheads.local.prior import with_prior


@dataclass(frozen=True)
class PFedKDH(Algorithm):
    """A shared backbone, private heads, and a recalibrated global head that teaches by distillation.

    Attributes:
        kd_weight: the share of distillation in the loss, in [0, 1].
        temperature: T > 0 of the distillation.
        prox_weight: of the proximal term, at least 0.
        warmup_epochs: E_w, equation 3.
        calibration_epochs: equation 5 before the first round.
        recalibration_epochs: equation 5 after every round; 0 leaves the teacher as it was calibrated.
        adapt_steps: mini-batch steps on the head in the variant EA.
    """

    kd_weight: float = 0.2
    temperature: float = 2.0
    prox_weight: float = 0.01
    warmup_epochs: int = 0
    calibration_epochs: int = 3
    recalibration_epochs: int = 3
    adapt_steps: int = 10
    shared = Part.BACKBONE

    def __post_init__(self) -> None:
        between(0, 1, self, "kd_weight")
        above(0, self, "temperature")
        at_least(0, self, "prox_weight", "warmup_epochs", "calibration_epochs", "recalibration_epochs", "adapt_steps")

    def remark(self, ctx: ServerContext) -> str:
        """Without distillation and proximal term the clients do what FedPer's do."""
        return (
            "with kd_weight = 0 and prox_weight = 0 this is FedPer" if self.kd_weight == self.prox_weight == 0 else ""
        )

    def ablations(self, epochs: int) -> Mapping[str, Mapping[str, Any]]:
        """The paper's Fig. 3: each row has one part more than the one above; a teacher that teaches nobody is none."""
        rows: dict[str, Mapping[str, Any]] = {"persistent heads": {"kd_weight": 0.0, "prox_weight": 0.0}}
        if self.kd_weight == 0:
            return rows | {"+ proximal term = full": {}}
        return rows | {
            "+ proximal term": {"kd_weight": 0.0},
            "+ distillation": {"recalibration_epochs": 0},
            "+ recalibration = full": {},
        }

    # server room

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        """Warm-up (equation 3), then the first calibration (Algorithm 1, line 5)."""
        model = ctx.fit(ctx.initial, super().loss, ctx.auxiliary, epochs=self.warmup_epochs)
        return ServerState(model=self.calibrated(model, ctx, self.calibration_epochs))

    def broadcast(self, server: ServerState, client: int, ctx: ServerContext) -> Broadcast:
        """The backbone and the teacher head."""
        return super().broadcast(server, client, ctx).replace(teacher_head=server.model.part("head"))

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        """The mean backbone (equation 4) and a head recalibrated on it."""
        model = server.model | ctx.average(uploads).model
        return ServerState(model=self.calibrated(model, ctx, self.recalibration_epochs))

    def calibrated(self, model: Tree, ctx: ServerContext, epochs: int) -> Tree:
        """The head trained on D_s, the backbone frozen (equation 5)."""
        return ctx.fit(model, super().loss, ctx.auxiliary, trains=Part.HEAD, epochs=epochs)

    def global_model(self, server: ServerState, ctx: ServerContext) -> Predictor:
        """The teacher: a diagnostic, not the method's answer."""
        return Predictor(server.model, self.logits)

    # client room

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        """What the teacher says of the data, and the backbone that the proximal term pulls to."""
        teacher = ctx.model(model.replace(head=received.teacher_head))
        return data.with_(teacher=lambda x: self.logits(teacher, x)).given(reference=received.model.part("backbone"))

    def loss(self, m: Model, b: Batch) -> Terms:
        """Equation 2."""
        student = self.logits(m, b.x)
        return {
            "ce": (1 - self.kd_weight) * ce(student, b),
            "kd": self.kd_weight * kd(b.teacher, student, b, self.temperature),
            "prox": Proximal(self.prox_weight, m.params.part("backbone"), b.reference),
        }

    def personal(
        self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext
    ) -> Mapping[str, Predictor]:
        """The method's answer, and the teacher's with the client's prior."""
        model = self.assemble(received, private)
        teacher = Predictor(model.replace(head=received.teacher_head), self.logits)
        return {"": Predictor(model, self.logits), "prior": with_prior(teacher, data.y, ctx.classes)}

    def adapts(self) -> Part:
        return Part.HEAD

    def adapt(self, model: Tree, data: Data, ctx: ClientContext) -> Tree:
        """The variant EA (section 3.4): a few steps on the head, backbone frozen, train images only."""
        return ctx.fit(model, super().loss, data, trains=Part.HEAD, steps=self.adapt_steps)
