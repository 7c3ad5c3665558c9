"""``Experiment``: one method on one federation, and its round loop."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyheads.algorithms import registry
from manyheads.config import Config
from manyheads.contract import SGD, Algorithm, ServerState, Stage
from manyheads.data.dataset import Dataset
from manyheads.data.federated import Federation
from manyheads.data.partition import Partition
from manyheads.engines import check_engine, described, make_engine, one_thread, server_threads
from manyheads.engines.reality import with_reality
from manyheads.errors import InputError
from manyheads.evaluate import Row
from manyheads.events import Event, Finished, OnEvent, RoundDone, Started, Warned
from manyheads.local.allocator import trim_memory
from manyheads.local.precision import fallback
from manyheads.local.setting import Budget, Setting
from manyheads.models.registry import build
from manyheads.models.split import SplitModel
from manyheads.prepare import draw_partition, load_dataset
from manyheads.result import Result
from manyheads.rounds import Rounds, State
from manyheads.schedule import Moment, cohort, moments
from manyheads.storage.log import Rows
from manyheads.storage.private_store import MemoryStore, States
from manyheads.storage.run_folder import RunFolder


class Experiment:
    """One method on one federation.

    Args:
        config: what to run.
        dataset: the data; by default the config's source.
        partition: who has which images; by default drawn as the config says.
        cohorts: the clients of every main round; by default drawn from the seed, the same for all methods.
        model: makes the network; by default the config's. Called with torch's global generator seeded.
        algorithm: the method; by default the config's.

    Raises:
        InputError: the config does not fit the data.
    """

    def __init__(
        self,
        config: Config,
        *,
        dataset: Dataset | None = None,
        partition: Partition | None = None,
        cohorts: Sequence[Sequence[int]] | None = None,
        model: Callable[[], SplitModel] | None = None,
        algorithm: Algorithm | None = None,
    ) -> None:
        self.config = config
        self.dataset = dataset or load_dataset(config)
        self.partition = partition or draw_partition(config, self.dataset)
        self.federation = Federation(self.dataset, self.partition)
        self.algorithm = algorithm or registry.load(config.algorithm.name)(**config.algorithm.options)
        self._own = {"algorithm": type(algorithm).__name__} if algorithm else {}
        self._own |= {"model": getattr(model, "__name__", "own")} if model else {}
        self.cohorts = self._checked(cohorts) if cohorts is not None else None
        self._model = model

    def run(self, folder: Path | str | None = None, on_event: OnEvent | None = None, label: str = "") -> Result:
        """Runs all rounds, and stores them in ``folder`` if there is one.

        Raises:
            InputError: the folder is taken or cannot be written, or the method lacks something it needs.
            RunError: a loss or an upload is not finite, or the disk is full.
        """
        if folder is None:
            return self._run(None, State(MemoryStore()), -1, on_event, label)
        self.check()
        data = {**self.federation.counts(), "fingerprint": self.dataset.fingerprint, "cohorts": self.cohorts}
        config = self.config.to_toml()
        data |= {"own": self._own, "config": _digest(config)}
        with RunFolder.create(Path(folder), config, partition=self.partition.save, data=data) as opened:
            return self._run(opened, State(opened.store()), -1, on_event, label)

    def check(self) -> None:
        """Builds each stage's network and drops it, so that what does not fit is refused before anything is stored.

        Raises:
            InputError: the network does not fit the data or the engine, or the method lacks an auxiliary set.
        """
        for index, stage in enumerate(self.algorithm.stages(self.config.train.rounds)):
            setting = self.setting(stage)
            check_engine(self.config.run.engine, self.config.run.workers, setting)
            if index == 0 and setting.parties.auxiliary is None:
                stage.algorithm.init_server(setting.server(0))  # costs nothing where no auxiliary set is asked for

    @classmethod
    def resume(
        cls,
        folder: Path | str,
        *,
        dataset: Dataset | None = None,
        on_event: OnEvent | None = None,
        label: str = "",
        **own: Any,
    ) -> Result:
        """Goes on with a stored run from its newest intact checkpoint; ends with the same bits as an uninterrupted one.

        Args:
            folder: the run's.
            dataset: the data, where it is not the config's source.
            on_event: gets the events.
            label: names the run in events.
            own: ``model`` and ``algorithm``, where they are not the config's.

        Raises:
            InputError: the folder holds no run, is in use, or the data differ from those that the run began with.
            RunError: every checkpoint is damaged.
        """
        with RunFolder.open(Path(folder)) as opened:
            self, state, position = cls._restored(opened, dataset, on_event, label, own)
            return self._run(opened, state, position, on_event, label)

    @classmethod
    def load(cls, folder: Path | str, *, dataset: Dataset | None = None, **own: Any) -> tuple[Experiment, Result]:
        """A stored run as it stands at its newest intact checkpoint; arguments and errors as for ``resume``.

        Raises:
            InputError: moreover, where the run has stored nothing yet.
        """
        with RunFolder.open(Path(folder)) as opened:
            self, state, _ = cls._restored(opened, dataset, None, "", own)
            if state.server is None:
                raise InputError(
                    f"{folder} was stopped before anything was stored; start it: manyheads resume {folder}"
                )
            return self, _result(opened.rows(), state, opened.path)

    @classmethod
    def _restored(
        cls,
        opened: RunFolder,
        dataset: Dataset | None,
        on_event: OnEvent | None,
        label: str,
        own: Mapping[str, Any],
    ) -> tuple[Experiment, State, int]:
        """A stored experiment, its newest state, and that state's position in the schedule."""
        folder = opened.path
        config = Config.parse(opened.config, origin=str(folder / "config.toml"))
        about = opened.data
        if about.get("config") != _digest(opened.config):
            raise InputError(f"{folder / 'config.toml'} is not what the run began with; start a new run with it")
        for what, name in about.get("own", {}).items():
            if own.get(what) is None:
                call = f"Experiment.resume({str(folder)!r}, {what}=...)"
                raise InputError(f"{folder} was run with its own {what} ({name}); go on from Python: {call}")
        dataset = dataset or load_dataset(config)
        if dataset.fingerprint != about.get("fingerprint"):
            raise InputError(
                f"{folder}: data.source = {config.data.source!r} holds other images or labels than when it began"
            )
        partition = Partition.load(opened.partition_path)
        self = cls(config, dataset=dataset, partition=partition, cohorts=about.get("cohorts"), **own)
        restored = opened.restore()
        state, position = State(opened.store()), -1
        if restored:
            position = restored.position
            state.server = restored.server
            state.take_json(restored.extra)
            for warning in restored.warnings:
                (on_event or _ignore)(Warned(label or config.algorithm.name, warning))
        return self, state, position

    def _run(
        self, folder: RunFolder | None, state: State, position: int, on_event: OnEvent | None, label: str
    ) -> Result:
        """The round loop."""
        say, label = on_event or _ignore, label or self.config.algorithm.name
        stages = self.algorithm.stages(self.config.train.rounds)
        done = sum(row["round"] >= 0 or bool(row["cohort"]) for row in folder.rows()) if folder else 0
        rows: list[Row] = []  # of a run that is not stored
        engine = described(self.config.run.engine, self.config.run.workers)
        say(Started(label, sum(stage.rounds for stage in stages), done, engine))
        if line := self._fallback():
            say(Warned(label, line))
        schedule = [moment for moment in moments(stages) if moment.position > position]
        with one_thread():
            for index, stage in enumerate(stages):
                remaining = [moment for moment in schedule if moment.stage == index]
                if not remaining:
                    continue
                with self._rounds(index, stage, lambda line: say(Warned(label, line))) as rounds:
                    if remark := rounds.remark():
                        say(Warned(label, remark))
                    for moment in remaining:
                        if moment.round is None:
                            row = rounds.begin(moment, state, stage.fresh)
                        else:
                            row = rounds.round(moment, state, self._cohort(moment, stage))
                        if folder:
                            folder.append(row)
                            folder.commit(moment.position, _present(state.server), state.to_json())
                        else:
                            rows.append(row)
                        for client, reason in row.get("dropped", {}).items():
                            say(Warned(label, f"client {client} is left out of the round: {reason}"))
                        trim_memory()
                        say(RoundDone(label, row["round"], row))
        path = folder.path if folder else None
        say(Finished(label, path))
        return _result(Rows(folder.rows) if folder else rows, state, path)

    @contextmanager
    def _rounds(self, index: int, stage: Stage, say: Callable[[str], None]) -> Iterator[Rounds]:
        """Everything that a stage needs to run."""
        run, setting = self.config.run, self.setting(stage)
        with make_engine(run.engine, run.workers, setting, say) as engine:
            setting = replace(setting, threads=server_threads(run.engine, run.workers))
            yield Rounds(setting, with_reality(engine, setting, self.config.reality), self.config, index)

    def setting(self, stage: Stage) -> Setting:
        """What a stage runs with: its network and every party's context."""
        train, run = self.config.train, self.config.run
        budget = Budget(train.epochs, train.batch, SGD(train.lr, train.momentum, train.weight_decay, train.clip))
        return Setting.make(
            stage.algorithm,
            self._model or self._build,
            self.federation,
            budget,
            stage.rounds,
            run.seed,
            run.buffers,
            gradients=run.gradients,
            device=run.device,
            half=train.precision == "bf16" and not self._fallback(),
        )

    def _fallback(self) -> str:
        """Why training does not have the precision that the config asks for; else ""."""
        return fallback(self.config.train.precision, self.config.run.engine, self.config.run.device)

    def _cohort(self, moment: Moment, stage: Stage) -> Sequence[int]:
        assert moment.round is not None
        if stage.everyone:
            return range(self.federation.clients)
        if moment.main and self.cohorts is not None:
            return self.cohorts[moment.round]
        return cohort(self.config.run.seed, moment.round, self.federation.clients, self.config.train.participation)

    def _checked(self, cohorts: Sequence[Sequence[int]]) -> list[list[int]]:
        rounds, clients = self.algorithm.stages(self.config.train.rounds)[-1].rounds, self.federation.clients
        if len(cohorts) < rounds:
            raise InputError(f"cohorts: {len(cohorts)} rounds are given, but {rounds} are run (train.rounds)")
        plain = [[operator.index(client) for client in members] for members in cohorts]
        for round, members in enumerate(plain):
            for client in members:
                if not 0 <= client < clients or members.count(client) > 1:
                    raise InputError(f"cohorts: client {client} of round {round} must be in 0..{clients - 1}, and once")
        return [sorted(members) for members in plain]

    def _build(self) -> SplitModel:
        model = self.config.model
        return build(model.name, shape=self.dataset.shape, classes=len(self.dataset.classes), options=model.options)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _result(rows: Sequence[Row], state: State, path: Path | None) -> Result:
    return Result(rows, _present(state.server), States(state.store, state.active()), path)


def _present(server: ServerState | None) -> ServerState:
    assert server is not None, "the first moment of a run makes the server's state"
    return server


def _ignore(event: Event) -> None:
    """Nobody listens."""
