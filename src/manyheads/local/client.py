"""``ClientRoom``: what is asked of clients, a round or a test, as messages in and messages out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from manyheads.contract import Broadcast, Predictor, Predictors, PrivateState
from manyheads.contract.wire import check_upload
from manyheads.errors import RunError
from manyheads.local.setting import Setting

SQUARED_GRADIENT = "squared_gradient"  # the note of a client, where the run takes gradient norms

Correct = dict[tuple[str, str], int]
"""How many test images were answered rightly, by variant and moment."""


@dataclass(frozen=True)
class Task:
    """A client's turn.

    Attributes:
        client: its id.
        round: the round.
        received: what the server sent.
        private: what it keeps; None for a client that has not taken part yet.
        epochs: local epochs of this turn; None for the run's.
        down: the bytes that ``received`` costs to send.
    """

    client: int
    round: int
    received: Broadcast
    private: PrivateState | None
    epochs: int | None = None
    down: int = 0


@dataclass(frozen=True)
class Turn:
    """What became of a client's turn on the virtual clock.

    Attributes:
        seconds: virtual seconds from the broadcast until its answer is there, or would have been.
        absent: why there is no answer, "dropped" or "late"; "" where there is one.
        epochs: the local epochs that it had time for, where these are fewer than the run's.
    """

    seconds: float
    absent: str = ""
    epochs: int | None = None


@dataclass(frozen=True)
class Reply:
    """What a client's round gave. ``upload`` is the serialised message; ``error`` says why there is none.

    Attributes:
        client: its id.
        upload: the bytes that cross the wire.
        private: what stays with the client.
        correct: of the trained models, on its own test images.
        loss: mean loss terms of all fits; where two fits have one of the same name, the later one's.
        error: one line, or "" where all went well.
        notes: what the method, or the run, wants to be seen of this client, by name.
        turn: what became of its turn, where reality is simulated. One that is absent has left nothing else here.
    """

    client: int
    upload: bytes
    private: PrivateState
    correct: Correct
    loss: Mapping[str, float]
    error: str = ""
    notes: Mapping[str, float] = field(default_factory=dict)
    turn: Turn | None = None


class ClientRoom:
    """Runs clients of one stage, one at a time."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._tester = setting.tester()

    def update(self, task: Task, test: bool) -> Reply:
        """A client's round; with ``test`` its trained models are measured."""
        ctx = self._setting.client(task.round, task.client, task.epochs)
        algorithm = self._setting.algorithm
        private = algorithm.init_private(task.received, ctx) if task.private is None else task.private
        try:
            if self._setting.gradients:
                ctx.note(SQUARED_GRADIENT, self._squared_gradient(task, private))
            update = algorithm.local_update(task.received, private, self._setting.parties.train(task.client), ctx)
        except RunError as error:
            return Reply(task.client, b"", private, {}, {}, str(error))
        check_upload(update.upload, algorithm, ctx, self._setting.words(task.client))
        correct = self._correct(task.client, update.trained, "post_local") if test else {}
        loss = {name: value for terms in ctx.trace for name, value in terms.items()}
        return Reply(task.client, update.upload.to_bytes(), update.private, correct, loss, notes=ctx.notes)

    def evaluate(self, task: Task, adapt: bool) -> Correct:
        """Tests the personal models; with ``adapt`` also after the method's adaptation. Changes nothing."""
        ctx = self._setting.client(task.round, task.client)
        algorithm, data = self._setting.algorithm, self._setting.parties.train(task.client)
        private = algorithm.init_private(task.received, ctx) if task.private is None else task.private
        correct = self._correct(task.client, algorithm.personal(task.received, private, data, ctx), "post_agg")
        if adapt:
            adapted = algorithm.adapt(algorithm.assemble(task.received, private), data, ctx)
            if adapted is not None:
                correct |= self._correct(task.client, Predictor(adapted, algorithm.logits), "post_adapt")
        return correct

    def _squared_gradient(self, task: Task, private: PrivateState) -> float:
        """The squared norm of the gradient of the local objective, over all that is trained, where the round starts."""
        ctx = self._setting.client(task.round, task.client)  # one of its own: what is measured leaves no trace
        train = self._setting.parties.train(task.client)
        objective = self._setting.algorithm.objective(task.received, private, train, ctx)
        return sum(float(gradient.double().square().sum()) for gradient in ctx.gradient(*objective).values())

    def _correct(self, client: int, predictors: Predictors | None, moment: str) -> Correct:
        rows = self._setting.parties.test_rows(client)
        return {
            (variant, moment): int(self._tester.right(predictor, rows).sum())
            for variant, predictor in by_variant(predictors).items()
        }


def by_variant(predictors: Predictors | None) -> Mapping[str, Predictor]:
    """Predictors by name; a single one has the name ""."""
    if predictors is None:
        return {}
    return {"": predictors} if isinstance(predictors, Predictor) else predictors
