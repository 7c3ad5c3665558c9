"""``Algorithm``: what a method does in the server room and in a client room. Overriding nothing gives FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from manyheads.contract.context import ClientContext, Context, ServerContext
from manyheads.contract.data import Batch, Data
from manyheads.contract.model import Model, Predictor
from manyheads.contract.records import Broadcast, PrivateState, ServerState, Upload
from manyheads.contract.trainer import Loss, Terms
from manyheads.contract.tree import Part, Tree

Predictors = Predictor | Mapping[str, Predictor]
Sent = Part | tuple[str, ...]


@dataclass(frozen=True)
class Update:
    """What local training leaves behind.

    Attributes:
        private: what the client keeps.
        upload: what it sends.
        trained: the model, or models by variant, right after training; measured as ``post_local``. None where there is
            nothing to measure.
    """

    private: PrivateState
    upload: Upload
    trained: Predictors | None = None


class Objective(NamedTuple):
    """A local objective and a point on it.

    Attributes:
        model: the point.
        loss: named terms, summed.
        data: what it is a mean over.
        trains: what of the model is trained.
    """

    model: Tree
    loss: Loss
    data: Data
    trains: Part = Part.ALL


@dataclass(frozen=True)
class Stage:
    """One phase of a method: ``rounds`` rounds of ``algorithm``.

    Attributes:
        algorithm: what runs in this phase.
        rounds: how many rounds.
        everyone: all clients take part in every round.
        fresh: clients start this phase without private state.
    """

    algorithm: Algorithm
    rounds: int
    everyone: bool = False
    fresh: bool = False


@dataclass(frozen=True)
class Sizes:
    """What a method's own modules have to fit.

    Attributes:
        image: channels, height, width.
        features: the length of a feature vector.
        classes: the number of classes.
    """

    image: tuple[int, int, int]
    features: int
    classes: int


@dataclass(frozen=True)
class Algorithm:
    """A method. Its dataclass fields are its hyper-parameters; it keeps no state.

    Attributes:
        shared: the part of the model that crosses the wire.
        sends: every other field of an upload: a ``Part`` for a tree that holds this part of the model, or the shape of
            a tensor in words (``n``, ``classes``, ``features``, ``image``, or a number; ``()`` is one number).
            ``model`` may be declared as well, where the upload holds another part than ``shared``.
    """

    shared: ClassVar[Part] = Part.ALL
    sends: ClassVar[Mapping[str, Sent]] = {}

    def parts(self, base: Mapping[str, nn.Module], sizes: Sizes) -> Mapping[str, nn.Module]:
        """The network's modules by name. A method may add or replace some."""
        return base

    def stages(self, rounds: int) -> list[Stage]:
        """The phases of a run; the last one is the main stage, whose rounds are numbered from 0."""
        return [Stage(self, rounds)]

    def remark(self, ctx: ServerContext) -> str:
        """One line for the log where hyper-parameters or network turn the method into another one; else ""."""
        return ""

    def ablations(self, epochs: int) -> Mapping[str, Mapping[str, Any]]:
        """The method without some of its parts, for ``manyheads ablate``: label to hyper-parameters that differ.

        The method as configured is the first row, "full", with which all others are compared. A method whose parts
        build on each other ends with it instead, as the label of an empty mapping: each row is compared with the one
        above it.

        Args:
            epochs: the local epochs of the run, for variants of the same budget.
        """
        return {}

    def logits(self, m: Model, x: Tensor) -> Tensor:
        """The network's answer, ``[batch, classes]``."""
        return m.head(m.backbone(x))

    def loss(self, m: Model, b: Batch) -> Terms:
        """The local objective as named terms."""
        return {"ce": b.mean(cross_entropy(self.logits(m, b.x), b.y, reduction="none"))}

    # server room

    def init_server(self, ctx: ServerContext, previous: ServerState | None = None) -> ServerState:
        """The server's state before the first round of a stage; ``previous`` is what the stage before left."""
        return ServerState(model=ctx.initial)

    def broadcast(self, server: ServerState, client: int, ctx: ServerContext) -> Broadcast:
        """What one client receives."""
        return Broadcast(model=ctx.take(server.model, self.shared - ctx.keep_down))

    def aggregate(self, server: ServerState, uploads: Mapping[int, Upload], ctx: ServerContext) -> ServerState:
        """The next state, from the uploads by client in ascending order."""
        return server.replace(model=server.model | ctx.average(uploads).model)

    def global_model(self, server: ServerState, ctx: ServerContext) -> Predictors | None:
        """The model that is one for all, where there is one."""
        return None if ctx.take(ctx.initial, self.kept(ctx)) else Predictor(server.model, self.logits)

    # client room

    def init_private(self, received: Broadcast, ctx: ClientContext) -> PrivateState:
        """What a client holds before it first takes part."""
        return PrivateState(model=ctx.take(ctx.initial, self.kept(ctx)))

    def assemble(self, received: Broadcast, private: PrivateState) -> Tree:
        """The client's model: what it received and what it keeps."""
        kept: Tree = private.get("model", Tree())
        return kept | received.model

    def train(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Tree:
        """Local training."""
        return ctx.fit(model, self.loss, self.prepare(model, received, private, data, ctx))

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        """The client's data with all that ``loss`` asks for; ``model`` is where training starts."""
        return data

    def objective(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Objective:
        """Where a client's round starts, and the local objective that it goes down from there: a loss over data.

        Where a client trains a model of its own beside the shared one, as Ditto's does, it is the shared one's.
        """
        model = self.assemble(received, private)
        return Objective(model, self.loss, self.prepare(model, received, private, data, ctx))

    def local_update(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        """A client's round: assemble, train, split into what stays and what is sent."""
        model = self.train(self.assemble(received, private), received, private, data, ctx)
        return self.update(model, received, private, data, ctx)

    def update(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        """A trained model, split into what stays and what is sent."""
        return Update(
            private=private.replace(model=ctx.take(model, self.kept(ctx))),
            upload=Upload(model=ctx.take(model, self.uploaded(ctx)), weight=float(len(data))),
            trained=self.predictors(model, received, data, ctx),
        )

    def predictors(self, model: Tree, received: Broadcast, data: Data, ctx: ClientContext) -> Predictors:
        """How a client's model answers: in one way, or in several by variant. ``data`` is its train data."""
        return Predictor(model, self.logits)

    def kept(self, ctx: Context) -> Part:
        """The part of the model that a client does not receive."""
        return Part.ALL - (self.shared - ctx.keep_down)

    def uploaded(self, ctx: Context) -> Part:
        """The part of the model that an upload holds."""
        declared = self.sends.get("model", self.shared)
        assert isinstance(declared, Part), "sends['model'] is a Part"
        return declared - ctx.keep_up

    def personal(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Predictors | None:
        """The client's personal model, or models by variant; measured as ``post_agg``. ``data`` is its train data.

        None where a client keeps nothing: there the global model is what it uses.
        """
        if not ctx.take(ctx.initial, self.kept(ctx)):
            return None
        return self.predictors(self.assemble(received, private), received, data, ctx)

    def adapt(self, model: Tree, data: Data, ctx: ClientContext) -> Tree | None:
        """The personal model after an adaptation on train data; measured as ``post_adapt``, then dropped."""
        return None

    def adapts(self) -> Part:
        """The part that ``adapt`` trains; a head is adapted for every test, a whole model only for some."""
        return Part.ALL
