"""``Rounds``: the rounds of one stage, server room and client rooms together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from manyheads.config import Config
from manyheads.contract import Broadcast, Part, PrivateState, ServerState, Upload
from manyheads.contract.wire import check_broadcast, check_finite, check_state
from manyheads.engines import Engine
from manyheads.engines.downlink import Downlink
from manyheads.engines.reality import told
from manyheads.errors import RunError
from manyheads.evaluate import Row, client_rows, global_rows
from manyheads.local.client import Reply, Task, Turn, by_variant
from manyheads.local.setting import Setting
from manyheads.local.testing import evaluated
from manyheads.schedule import Moment
from manyheads.storage.private_store import PrivateStore

WHOLE_MODEL_ADAPTS_EVERY = 10  # tuning every client's whole model each round would cost more than training


@dataclass
class State:
    """What a run carries from moment to moment; all of it is in every checkpoint.

    What is known of single clients lies in the store, so that a round costs the same however many there are: in which
    ``era`` a client last took part, ``local``, the right answers after its last training, and what it holds of earlier
    broadcasts.

    Attributes:
        store: what clients keep, and what is known of them.
        server: the server's state; None before the first stage.
        era: counts the stages that began afresh; clients that took part in earlier ones only hold nothing.
        downlink: measures broadcasts.
    """

    store: PrivateStore
    server: ServerState | None = None
    era: int = 0
    downlink: Downlink = field(default_factory=Downlink)

    def private(self, client: int) -> PrivateState | None:
        """What a client keeps; None for one that has not taken part."""
        return self.store.get(client) if self.store.facts(client).get("era") == self.era else None

    def active(self) -> list[int]:
        """The clients that keep something."""
        return [client for client in self.store.known() if self.store.facts(client).get("era") == self.era]

    def sent(self, client: int, message: Broadcast) -> int:
        """The bytes that cross the wire to a client, which holds what it was sent from now on."""
        facts = self.store.facts(client)
        size, facts["held"] = self.downlink.send(message, facts.get("held", {}))
        self.store.note(client, facts)
        return size

    def keep(self, reply: Reply) -> None:
        """Takes over what a client keeps after a round, and how well its trained model did."""
        self.store.put(reply.client, reply.private)
        facts = self.store.facts(reply.client)
        local = facts.get("local", {}) | {variant: right for (variant, _), right in reply.correct.items()}
        self.store.note(reply.client, facts | {"era": self.era, "local": local})

    def local(self, clients: Iterable[int]) -> dict[str, dict[int, int]]:
        """Right answers of clients after the local training of their last rounds, by variant."""
        known = {client: self.store.facts(client).get("local", {}) for client in clients}
        return _by_name({client: local for client, local in known.items() if local})

    def to_json(self) -> dict[str, Any]:
        """All that is neither a record nor in the store."""
        return {"era": self.era}

    def take_json(self, extra: Mapping[str, Any]) -> None:
        """Takes over what ``to_json`` gave."""
        self.era = extra["era"]


class Rounds:
    """Runs one stage.

    Args:
        setting: the stage.
        engine: runs its clients.
        config: the run's.
        stage: which stage it is.
    """

    def __init__(self, setting: Setting, engine: Engine, config: Config, stage: int) -> None:
        self._setting, self._engine, self._config, self._stage = setting, engine, config, stage
        self._algorithm = setting.algorithm
        self._tester = setting.tester()
        self._evaluated = evaluated(setting.parties.clients, setting.seed)
        self._tests = {client: setting.parties.test_rows(client) for client in self._evaluated}

    def remark(self) -> str:
        """What the method says of its hyper-parameters and this network, in a line; else ""."""
        return self._algorithm.remark(self._setting.server(0))

    def begin(self, moment: Moment, state: State, fresh: bool) -> Row:
        """The server's start of the stage, and the test before training."""
        state.server = self._algorithm.init_server(self._setting.server(moment.upcoming), state.server)
        if fresh:
            state.era += 1
        check_state(state.server, "before training, the server:")
        return self._row(moment, [], {}, {"up": {}, "down": {}}, {}, state)

    def round(self, moment: Moment, state: State, cohort: Sequence[int]) -> Row:
        """Broadcast, local updates, aggregation, test."""
        assert state.server is not None
        assert moment.round is not None
        ctx = self._setting.server(moment.round)
        start = time.perf_counter()
        traffic: dict[str, dict[int, int]] = {"up": {}, "down": {}}
        uploads: dict[int, Upload] = {}
        losses: dict[int, Mapping[str, float]] = {}
        noted: dict[int, Mapping[str, float]] = {}
        dropped: dict[int, str] = {}
        turns: dict[int, Turn] = {}
        for reply in self._engine.update(self._tasks(state, cohort, moment.round, traffic["down"]), moment.main):
            client = reply.client
            if reply.turn:
                turns[client] = reply.turn
                if reply.turn.absent:  # it has not trained, and keeps what it had
                    continue
            try:
                uploads[client] = _received(reply, moment.round)
            except RunError as error:  # the client keeps what it had before the round
                if self._config.run.non_finite == "stop":
                    raise
                dropped[client] = str(error)
                continue
            losses[client], noted[client], traffic["up"][client] = reply.loss, reply.notes, len(reply.upload)
            state.keep(reply)
        trained = time.perf_counter()
        if uploads:
            state.server = self._algorithm.aggregate(state.server, _by_client(uploads), ctx)
            check_state(state.server, f"round {moment.round}, the server:")
        seconds = {"train": trained - start, "aggregate": time.perf_counter() - trained}
        row = self._row(moment, cohort, self._mean_loss(_by_client(losses)), traffic, seconds, state)
        if notes := _by_name(_by_client(noted)) | ctx.notes:
            row["notes"] = {name: {str(c): value for c, value in values.items()} for name, values in notes.items()}
        if turns:
            row["reality"] = told(turns, self._config.reality.deadline)
        return row | {"dropped": {str(c): why for c, why in _by_client(dropped).items()}} if dropped else row

    def _tasks(self, state: State, cohort: Sequence[int], round: int, down: dict[int, int]) -> Iterator[Task]:
        """The cohort's turns, the longest first, so that no worker is left alone with one at the end."""
        assert state.server is not None
        ctx = self._setting.server(round)
        for client in self._longest_first(cohort):
            received = self._algorithm.broadcast(state.server, client, ctx)
            check_broadcast(received, self._algorithm, ctx)
            down[client] = state.sent(client, received)
            yield Task(client, round, received, state.private(client), down=down[client])
        state.downlink.end_round()

    def _longest_first(self, clients: Sequence[int]) -> list[int]:
        return sorted(clients, key=lambda client: (-len(self._setting.parties.train(client)), client))

    def _row(
        self,
        moment: Moment,
        cohort: Sequence[int],
        loss: Mapping[str, float],
        traffic: Mapping[str, Mapping[int, int]],
        seconds: Mapping[str, float],
        state: State,
    ) -> Row:
        start = time.perf_counter()
        metrics = self._metrics(moment, state) if self._due(moment) else []
        number = -1 if moment.round is None else moment.round
        sizes = {way: {str(client): n for client, n in _by_client(sent).items()} for way, sent in traffic.items()}
        row: Row = {"round": number, "cohort": list(cohort), "loss": dict(loss), "bytes": sizes, "metrics": metrics}
        row["seconds"] = {**seconds, "evaluate": time.perf_counter() - start}
        return row if moment.main else {"stage": self._stage, **row}

    def _mean_loss(self, losses: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
        """The cohort's loss terms, weighted by the clients' train images."""
        sizes = {client: len(self._setting.parties.train(client)) for client in losses}
        total = sum(sizes.values())
        mean: dict[str, float] = {}
        for client, terms in losses.items():
            for name, value in terms.items():
                mean[name] = mean.get(name, 0.0) + value * sizes[client] / total
        return mean

    def _due(self, moment: Moment) -> bool:
        every = self._config.run.eval_every
        return moment.main and (moment.round is None or moment.last or (moment.round + 1) % every == 0)

    def _adapts(self, moment: Moment) -> bool:
        every = self._config.run.adapt_every or (
            1 if self._algorithm.adapts() == Part.HEAD else WHOLE_MODEL_ADAPTS_EVERY
        )
        return moment.round is None or moment.last or (moment.round + 1) % every == 0

    def _metrics(self, moment: Moment, state: State) -> list[Row]:
        assert state.server is not None
        upcoming = moment.upcoming
        ctx, clients = self._setting.server(upcoming), self._setting.parties.clients
        sizes = {client: len(rows) for client, rows in self._tests.items()}
        server = state.server
        tasks = (
            Task(client, upcoming, self._algorithm.broadcast(server, client, ctx), state.private(client))
            for client in self._longest_first(self._evaluated)
        )
        answers = self._engine.evaluate(tasks, self._adapts(moment))  # begins while the global model is tested
        rows: list[Row] = []
        for variant, predictor in by_variant(self._algorithm.global_model(state.server, ctx)).items():
            rows += global_rows(variant, predictor, self._tester, self._tests, clients)
        found: dict[tuple[str, str], dict[int, int]] = {}
        for client, correct in answers:
            for key, right in correct.items():
                found.setdefault(key, {})[client] = right
        for variant, counts in state.local(self._evaluated).items():
            found[variant, "post_local"] = counts
        for (variant, when), counts in sorted(found.items()):
            rows += client_rows("personal", variant, when, counts, sizes, clients)
        return rows


T = TypeVar("T")


def _by_client(found: Mapping[int, T]) -> dict[int, T]:
    """What came in as clients finished, in the order of their ids: sums over them have the same bits every time."""
    return dict(sorted(found.items()))


def _by_name(noted: Mapping[int, Mapping[str, T]]) -> dict[str, dict[int, T]]:
    """Notes of clients, by name first."""
    names = dict.fromkeys(name for notes in noted.values() for name in notes)
    return {name: {client: notes[name] for client, notes in noted.items() if name in notes} for name in names}


def _received(reply: Reply, round: int) -> Upload:
    """The upload of a reply. Raises RunError where there is none, or where it or the private state is no number."""
    if reply.error:
        raise RunError(reply.error)
    upload = Upload.from_bytes(reply.upload)
    check_finite(upload, f"round {round}, client {reply.client}: the upload's")
    check_state(reply.private, f"round {round}, client {reply.client}: the private state's")
    return upload
