"""The study of FedeCouple's Fig. 2: does guidance by the global model help, and which part should it guide?

Clients train the whole model on cross-entropy, and guidance by the received model, which is frozen, adds

* extractor: w MSE(f(x; theta_i), f(x; theta)), which acts on the backbone,
* classifier: w MSE(g(z; phi_i), g(z; phi)), logits on the client's own features z, which acts on the head only: z is
  held fixed in this term, so that each guidance moves its own part.

Four conditions (neither, extractor, classifier, both) are measured over s, the share of images that are spread evenly.
Plain guidance has the weight 1; optimal guidance the weight that does best on the clients' validation images.

Our decisions, since only the captions of the figure are at hand: the losses above and what they move; the weights to
choose from; for both, the two weights that were found alone; accuracy as aggregated last, before local training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.algorithms._own_head import OwnHead
from manyheads.analysis.trained import Trained
from manyheads.config import Config
from manyheads.contract import Batch, Broadcast, ClientContext, Data, Model, PrivateState, Terms, Tree
from manyheads.data.dataset import Dataset
from manyheads.engines import one_thread
from manyheads.errors import InputError
from manyheads.events import OnEvent
from manyheads.experiment import Experiment
from manyheads.local.losses import ce, mse
from manyheads.prepare import load_dataset

WEIGHTS = (0.01, 0.1, 1.0, 10.0)
PLAIN = 1.0
VALIDATION = 0.1  # of a client's images, where the config keeps none


@dataclass(frozen=True)
class Guided(OwnHead):
    """FedeCouple's exchange and private head, but joint training, guided by the received model; the mean is by size.

    Attributes:
        extractor_weight: of the guidance of the backbone, at least 0.
        classifier_weight: of the guidance of the head, at least 0.
    """

    extractor_weight: float = 0.0
    classifier_weight: float = 0.0

    def prepare(self, model: Tree, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Data:
        """The client's data with the received model's features of it, and with the received head."""
        if self.extractor_weight:
            data = data.with_(global_features=ctx.model(received.model).backbone)
        return data.given(global_head=Tree().replace(head=received.model.part("head")))

    def loss(self, m: Model, b: Batch) -> Terms:
        """Cross-entropy, and guidance with the weights that are not 0."""
        z = m.backbone(b.x)
        terms = {"ce": ce(m.head(z), b)}
        if self.extractor_weight:
            terms["extractor"] = self.extractor_weight * mse(z, b.global_features, b)
        if self.classifier_weight:
            fixed = z.detach()
            terms["classifier"] = self.classifier_weight * mse(m.head(fixed), m.at(b.global_head).head(fixed), b)
        return terms


@dataclass(frozen=True)
class Trial:
    """One run of the study.

    Attributes:
        extractor: the weight of the guidance of the backbone.
        classifier: the weight of the guidance of the head.
        validation: accuracy in [0, 1], mean over clients, on their validation images.
        accuracies: of every client on its test images, ``[clients]``; not a number for a client without any.
        dropped: uploads that were left out, since they were not finite: a large weight may make training diverge.
    """

    extractor: float
    classifier: float
    validation: float
    accuracies: NDArray[np.float64]
    dropped: int = 0

    @property
    def test(self) -> float:
        """Accuracy in [0, 1], mean over clients, on their test images."""
        return float(np.nanmean(self.accuracies))

    def minus(self, other: Trial) -> tuple[float, float]:
        """How much better it is than another trial, and the standard error over clients, which are paired.

        The standard error of a single client is not a number.
        """
        differences = self.accuracies - other.accuracies
        spread = differences[~np.isnan(differences)]
        error = float(spread.std(ddof=1) / np.sqrt(len(spread))) if len(spread) > 1 else math.nan
        return float(spread.mean()), error


class Outcome(NamedTuple):
    """What a condition gave at one s.

    Attributes:
        s: of the partition.
        guided: ``neither``, ``extractor``, ``classifier`` or ``both``.
        guidance: ``none``, ``plain`` or ``optimal``; ``tried`` for each weight that the optimal one was chosen from.
        trial: the run.
        neither: the run without guidance, at the same s.
    """

    s: float
    guided: str
    guidance: str
    trial: Trial
    neither: Trial


def kept(config: Config) -> float:
    """The share of each client's images that a study with this config keeps for validation."""
    return config.data.validation or VALIDATION


def study(
    config: Config,
    levels: Sequence[float],
    folder: Path | str,
    on_event: OnEvent | None = None,
    *,
    dataset: Dataset | None = None,
) -> list[Outcome]:
    """Runs all conditions at every s, at most 11 runs each, on the same partition, initial weights and cohorts.

    Args:
        config: the experiment; its method is not used. Where it keeps no validation images, a tenth of each client's
            images become such.
        levels: the values of s, in [0, 100].
        folder: where the runs are stored, one folder each. Finished ones are read, a stopped one goes on.
        on_event: gets the events of the runs.
        dataset: the data; by default the config's source.

    Returns:
        The outcomes, s by s: neither, extractor, classifier, both.

    Raises:
        InputError: the config has no s, an s is out of range or given twice, or the folder holds runs of another study.
        RunError: a run failed.
    """
    if config.partition.kind != "similarity":
        wanted = "--profile lineage, or --set partition.kind=similarity"
        raise InputError(f"partition.kind = {config.partition.kind!r}: the study varies s of similarity; take {wanted}")
    if not levels or len(set(levels)) < len(levels):
        raise InputError(f"levels: {list(levels)} must name at least one s, and none twice")
    # A method without options, for it is not used; and a weight under which training diverges must not end the study.
    common = {"algorithm.name": "fedavg", "data.validation": kept(config), "run.non_finite": "drop"}
    dataset = dataset or load_dataset(config)
    configs = [config.with_values({**common, "partition.s": float(s)}) for s in levels]
    for each in configs:  # what does not fit is refused before the first run, not between two of them
        experiment = Experiment(each, dataset=dataset, algorithm=Guided())
        experiment.check()
        if not any(map(len, experiment.partition.validation)):
            raise InputError(
                f"data.validation = {each.data.validation}: no client has an image for it; take a larger share"
            )
    return [
        outcome
        for s, each in zip(levels, configs, strict=True)
        for outcome in _outcomes(s, _Runs(each, dataset, Path(folder), on_event))
    ]


def _outcomes(s: float, run: Callable[[float, float], Trial]) -> Iterator[Outcome]:
    neither = run(0.0, 0.0)
    yield Outcome(s, "neither", "none", neither, neither)
    best = {}
    for part, only in {"extractor": (1, 0), "classifier": (0, 1)}.items():
        tried = {weight: run(weight * only[0], weight * only[1]) for weight in WEIGHTS}
        best[part] = max(WEIGHTS, key=lambda weight: tried[weight].validation)  # the smallest, where several are best
        for weight in WEIGHTS:
            yield Outcome(s, part, "tried", tried[weight], neither)
        yield Outcome(s, part, "plain", tried[PLAIN], neither)
        yield Outcome(s, part, "optimal", tried[best[part]], neither)
    yield Outcome(s, "both", "plain", run(PLAIN, PLAIN), neither)
    yield Outcome(s, "both", "optimal", run(best["extractor"], best["classifier"]), neither)


@dataclass
class _Runs:
    """The runs at one s: called with the two weights, it gives their trial, from the folder where it is there."""

    config: Config
    dataset: Dataset
    folder: Path
    on_event: OnEvent | None
    known: dict[tuple[float, float], Trial] = field(default_factory=dict)

    def __call__(self, extractor: float, classifier: float) -> Trial:
        if (extractor, classifier) not in self.known:
            self.known[extractor, classifier] = self._trial(extractor, classifier)
        return self.known[extractor, classifier]

    def _trial(self, extractor: float, classifier: float) -> Trial:
        algorithm = Guided(extractor_weight=extractor, classifier_weight=classifier)
        s = self.config.partition.options["s"]
        path = self.folder / f"s{s:g}-extractor{extractor:g}-classifier{classifier:g}"
        label = f"s = {s:g}, extractor {extractor:g}, classifier {classifier:g}"
        if not (path / "config.toml").exists():
            experiment = Experiment(self.config, dataset=self.dataset, algorithm=algorithm)
            run = Trained(experiment, experiment.run(path, self.on_event, label))
        elif (path / "config.toml").read_text("utf-8") != self.config.to_toml():
            raise InputError(f"{path} is a run with another config; choose another folder")
        else:
            Experiment.resume(path, dataset=self.dataset, algorithm=algorithm, on_event=self.on_event, label=label)
            run = Trained.load(path, dataset=self.dataset, algorithm=algorithm)
        validation = float(np.nanmean(_accuracies(run, run.experiment.federation.validation)))
        dropped = sum(len(row.get("dropped", ())) for row in run.result.rows)
        return Trial(extractor, classifier, validation, _accuracies(run, run.test), dropped)


def _accuracies(run: Trained, data: Callable[[int], Data]) -> NDArray[np.float64]:
    """Of every client's personal model, as aggregated last; not a number for a client without images."""
    with one_thread():
        return np.array([run.accuracy(run.model(client), data(client)) for client in range(run.clients)])
