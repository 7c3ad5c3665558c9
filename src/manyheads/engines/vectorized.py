"""Clients trained as one stacked model, by ``torch.func``: for a GPU, where small models wait for launches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar

from torch import Tensor

from manyheads.contract import Context, Data, Model, Part, Tree
from manyheads.contract.trainer import Loss, Optim, Plan
from manyheads.engines.base import Say
from manyheads.engines.errand import Asked, Done, Errand, Failed
from manyheads.errors import InputError, RunError
from manyheads.local.client import ClientRoom, Correct, Reply, Task
from manyheads.local.network import Network
from manyheads.local.setting import Setting
from manyheads.local.stacked.fit import fit
from manyheads.local.stacked.network import batch_statistics
from manyheads.local.stacked.request import Fit, Request, Scan, groups
from manyheads.local.stacked.scan import scan
from manyheads.local.stacked.values import NotStackableError
from manyheads.local.training import LocalTrainer

T = TypeVar("T")

WORKERS = 32  # clients at once, where nothing else is said


class Vectorized:
    """Trains up to ``workers`` clients at once, by default 32; memory grows with their number.

    Every client runs its round in a thread of its own, one at a time, until it asks for ``fit`` or ``scan``. When all
    wait, alike requests are answered together. Results differ from those of the other engines by rounding.

    Raises:
        InputError: the network has BatchNorm, whose statistics padded batches would spoil.
    """

    def __init__(self, setting: Setting, workers: int | None = None, say: Say = lambda line: None) -> None:
        self._most = workers or WORKERS
        self._meeting = Meeting(setting.network, setting.stopped, partial(_say, say, type(setting.algorithm).__name__))
        self._room = ClientRoom(replace(setting, trainer=self._meeting))

    @staticmethod
    def check(setting: Setting) -> None:
        """Refuses a network whose backbone or head has BatchNorm."""
        Meeting(setting.network, setting.stopped, lambda line: None)

    def __enter__(self) -> Vectorized:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the rounds of clients that still wait."""
        self._meeting.end()

    def update(self, tasks: Iterable[Task], test: bool) -> Iterator[Reply]:
        """Runs a round at each client."""
        return self._map(lambda task: self._room.update(task, test), tasks)

    def evaluate(self, tasks: Iterable[Task], adapt: bool) -> Iterator[tuple[int, Correct]]:
        """Tests each client's personal models."""
        return self._map(lambda task: (task.client, self._room.evaluate(task, adapt)), tasks)

    def _map(self, fn: Callable[[Task], T], tasks: Iterable[Task]) -> Iterator[T]:
        coming = iter(tasks)
        while some := list(islice(coming, self._most)):
            yield from self._meeting.together([partial(fn, task) for task in some])


class Meeting:
    """A trainer where clients wait for each other, so that what they ask for is done at once.

    Args:
        network: the clients'.
        stopped: asked before every step; training ends where it says True.
        say: takes why requests could not be answered together.

    Raises:
        InputError: backbone or head normalise by the statistics of a batch.
    """

    def __init__(self, network: Network, stopped: Callable[[], bool], say: Callable[[str], None]) -> None:
        self._network, self._stopped, self._say = network, stopped, say
        self._alone = LocalTrainer(network, stopped)
        self._errands: list[Errand[Any]] = []
        self._running: Errand[Any] | None = None
        self._single: list[Any] = []
        self._said: set[str] = set()
        self._spoilt = _spoilt(batch_statistics(network))

    def together(self, calls: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Runs all of ``calls``, which train by this trainer, and gives their results as they end."""
        errands = [Errand(call) for call in calls]
        self._errands += errands
        answers: list[tuple[Errand[T], Any]] = [(errand, None) for errand in errands]
        try:
            while answers:
                asked: list[tuple[Errand[T], Request]] = []
                for errand, answer in answers:
                    outcome = self._resumed(errand, answer)
                    if isinstance(outcome, Asked):
                        asked.append((errand, outcome.request))
                    elif isinstance(outcome, Failed):
                        raise outcome.error
                    else:
                        yield outcome.result
                found = self._answered([request for _, request in asked])
                answers = [(errand, found[id(request)]) for errand, request in asked]
        finally:
            for errand in errands:
                errand.end()
                self._errands.remove(errand)

    def _resumed(self, errand: Errand[T], answer: Any) -> Asked | Done[T] | Failed:
        self._running = errand
        try:
            return errand.resume(answer)
        finally:
            self._running = None

    def end(self) -> None:
        """Ends all that still waits for an answer."""
        for errand in self._errands:
            errand.end()

    def model(self, tree: Tree) -> Model:
        """``tree`` as a frozen model in eval mode."""
        return self._alone.model(tree)

    def rowwise(self, fn: Callable[[Tensor], Tensor], data: Data) -> Tensor:
        """``fn`` of every sample's x, ``[n, ...]``."""
        return self._alone.rowwise(fn, data)

    def gradient(self, ctx: Context, model: Tree, loss: Loss, data: Data, trains: Part) -> Tree:
        """See ``Context.gradient``."""
        return self._alone.gradient(ctx, model, loss, data, trains)

    def fit(self, ctx: Context, model: Tree, loss: Loss, data: Data, trains: Part, plan: Plan, optim: Optim) -> Tree:
        """See ``Context.fit``."""
        trained: Tree = self._ask(Fit(ctx, model, loss, data, trains, plan, optim))
        return trained

    def scan(self, ctx: Context, carry: Any, step: Callable[..., Any], data: Data, plan: Plan, width: int) -> Any:
        """See ``Context.scan``."""
        return self._ask(Scan(ctx, carry, step, data, plan, width))

    def _ask(self, request: Request) -> Any:
        return self._running.ask(request) if self._running else request.alone(self._alone)

    def _answered(self, requests: Sequence[Request]) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        for together, reason in groups(requests):
            self._tell(reason)
            answers |= self._stacked(together) if len(together) > 1 else self._one_by_one(together)
        return answers

    def _stacked(self, requests: Sequence[Request]) -> dict[int, Any]:
        work = requests[0].kind[-1]
        if self._spoilt or work in self._single:
            self._tell(self._spoilt)
            return self._one_by_one(requests)
        try:
            fits, scans = [r for r in requests if isinstance(r, Fit)], [r for r in requests if isinstance(r, Scan)]
            found = fit(self._network, fits, self._stopped) if fits else scan(self._network, scans, self._stopped)
            return {id(request): answer for request, answer in found}
        except NotStackableError as error:
            reason = str(error)
        except Exception as error:  # whatever vmap cannot take; what is wrong with the method itself is wrong alone too
            reason = re.split(r"\.?\s*\n|\. ", f"{type(error).__name__}: {error}")[0]  # the first sentence
        if reason:
            self._single.append(work)
        self._tell(reason)
        return self._one_by_one(requests)

    def _tell(self, reason: str) -> None:
        if reason and reason not in self._said:
            self._said.add(reason)
            self._say(reason)

    def _one_by_one(self, requests: Sequence[Request]) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        for request in requests:
            try:
                answers[id(request)] = request.alone(self._alone)
            except RunError as error:
                answers[id(request)] = error
        return answers


def _say(say: Say, method: str, reason: str) -> None:
    say(f"{method}: clients are trained one after the other: {reason}")


def _spoilt(layers: Mapping[str, str]) -> str:
    """Why nothing can be stacked, or "". What a method adds to the network is not the user's choice."""
    for name, kind in layers.items():
        if name.partition(".")[0] in ("backbone", "head"):
            raise InputError(
                f"run.engine = 'vectorized': {name} is a {kind}, whose statistics padded batches would spoil; "
                "take serial, threads, processes, wire or ray"
            )
    return next((f"{name} is a {kind}, whose statistics padding would spoil" for name, kind in layers.items()), "")
