import csv
import io
from itertools import combinations

import numpy as np
import pytest
import torch
import toys
from matplotlib.image import imread
from rich.console import Console
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from manyheads.algorithms.fedavg import FedAvg
from manyheads.analysis import guidance, guidance_report
from manyheads.analysis.cli import app
from manyheads.analysis.guidance import Guided, Outcome, Trial, study
from manyheads.analysis.guidance_report import plot_guidance, table, write_csv
from manyheads.contract import Part, PrivateState, Tree
from manyheads.data.partition import Partition
from manyheads.errors import InputError
from manyheads.experiment import Experiment
from manyheads.storage.log import read_rows

LEVELS = (20, 80)


def config(**values):
    """Four clients with 40 images each, of which a tenth is for validation."""
    base = {
        "model__name": "mlp",
        "model__hidden": [6],
        "partition__kind": "similarity",
        "partition__clients": 4,
        "data__auxiliary": 0,
        "train__rounds": 2,
        "train__epochs": 1,
        "run__eval_every": 2,
    }
    return toys.config(**(base | values))


def studied(folder, on_event=None, levels=LEVELS, **values):
    return study(config(**values), levels, folder, on_event, dataset=toys.dataset())


@pytest.fixture(scope="module", autouse=True)
def _few_weights():
    """One of them makes training diverge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guidance, "WEIGHTS", (0.1, 1.0, 30.0))
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study and its folder."""
    folder = tmp_path_factory.mktemp("study")
    return studied(folder), folder


# the method


def turn(algorithm, round=1):
    """A client whose private head differs from the received one."""
    stage = toys.setting(algorithm, model__dropout=0.0)
    received = algorithm.broadcast(algorithm.init_server(stage.server(0)), 0, stage.server(round))
    head = received.model.part("head").map(lambda t: 0.5 * t + 0.1)
    return received, PrivateState(model=Tree(), head=head), stage.parties.train(0), stage.client(round, 0)


def gradient(algorithm, trains=Part.ALL, away=True):
    received, private, data, ctx = turn(algorithm)
    model, loss, data, _ = algorithm.objective(received, private, data, ctx)
    if away:  # where nothing has moved yet, the features are the global ones
        model = model.replace(backbone=model.part("backbone") * 1.3)
    return ctx.gradient(model, loss, data, trains)


def test_each_guidance_moves_its_own_part():
    alone, extractor, classifier, both = (
        gradient(Guided(extractor_weight=fe, classifier_weight=cl)) for fe, cl in ((0, 0), (2, 0), (0, 3), (2, 3))
    )
    for name in alone:
        of_backbone = name.startswith("backbone")
        assert torch.equal(extractor[name], alone[name]) != of_backbone
        assert torch.equal(classifier[name], alone[name]) == of_backbone
        torch.testing.assert_close(both[name] - alone[name], extractor[name] + classifier[name] - 2 * alone[name])


def test_guidance_pulls_to_the_received_model():
    """At the received backbone the extractor has nothing to follow; under the received head neither has the head."""
    alone, guided = (gradient(Guided(extractor_weight=w), away=False) for w in (0.0, 5.0))
    torch.testing.assert_close(dict(guided), dict(alone), rtol=1e-4, atol=1e-6)
    found = []
    for weight in (0.0, 5.0):
        algorithm = Guided(classifier_weight=weight)
        received, _, data, ctx = turn(algorithm)
        private = PrivateState(model=Tree(), head=received.model.part("head"))
        found.append(ctx.gradient(*algorithm.objective(received, private, data, ctx)))
    torch.testing.assert_close(dict(found[1]), dict(found[0]), rtol=1e-4, atol=1e-6)


def test_the_loss_by_hand():
    received, private, data, ctx = turn(Guided())
    algorithm = Guided(extractor_weight=2.0, classifier_weight=3.0)
    model, loss, data, _ = algorithm.objective(received, private, data, ctx)
    model = model.replace(backbone=model.part("backbone") * 1.3)
    seen = {}

    def watched(m, b):
        seen.update(loss(m, b))
        return {name: term for name, term in seen.items()}

    ctx.gradient(model, watched, data)
    x, y = data.x(torch.arange(len(data))), data.y
    local, shared = ctx.model(model), ctx.model(received.model)
    z, wanted = local.backbone(x), shared.backbone(x)
    assert seen["ce"].item() == pytest.approx(cross_entropy(local.head(z), y).item(), rel=1e-4)
    assert seen["extractor"].item() == pytest.approx(2 * nn.functional.mse_loss(z, wanted).item(), rel=1e-4)
    expected = 3 * nn.functional.mse_loss(local.head(z), shared.head(z)).item()
    assert seen["classifier"].item() == pytest.approx(expected, rel=1e-4)


def test_the_whole_model_is_shared_and_the_head_stays():
    first, avg = toys.run(Guided(), train__rounds=1), toys.run(FedAvg(), train__rounds=1)
    assert first.server == avg.server  # all heads begin as the received one, and the mean is by size
    later = toys.run(Guided())
    assert later.server != toys.run(FedAvg()).server
    heads = [later.private[client].head for client in sorted(later.private)]
    assert all(a != b for a, b in combinations(heads, 2))
    assert set(heads[0]) == {"weight", "bias"}


# the study


def test_all_conditions_are_measured(done):
    outcomes, folder = done
    for s in LEVELS:
        rows = [(o.guided, o.guidance, o.trial.extractor, o.trial.classifier) for o in outcomes if o.s == s]
        best = {guided: weights for guided, guidance, *weights in rows if guidance == "optimal"}
        fe, cl = best["extractor"][0], best["classifier"][1]
        assert rows == [
            ("neither", "none", 0.0, 0.0),
            *(("extractor", "tried", w, 0.0) for w in (0.1, 1.0, 30.0)),
            ("extractor", "plain", 1.0, 0.0),
            ("extractor", "optimal", fe, 0.0),
            *(("classifier", "tried", 0.0, w) for w in (0.1, 1.0, 30.0)),
            ("classifier", "plain", 0.0, 1.0),
            ("classifier", "optimal", 0.0, cl),
            ("both", "plain", 1.0, 1.0),
            ("both", "optimal", fe, cl),
        ]
        for part in ("extractor", "classifier"):
            tried = [o.trial.validation for o in outcomes if (o.s, o.guided, o.guidance) == (s, part, "tried")]
            (chosen,) = [o.trial for o in outcomes if (o.s, o.guided, o.guidance) == (s, part, "optimal")]
            assert chosen.validation == max(tried)
            assert len(set(tried)) > 1
    assert len(list(folder.iterdir())) <= 2 * 9


def test_accuracies_are_those_of_the_runs(done):
    outcomes, folder = done
    for outcome in outcomes:
        trial = outcome.trial
        path = folder / f"s{outcome.s}-extractor{trial.extractor:g}-classifier{trial.classifier:g}"
        (metric,) = [
            metric
            for metric in read_rows(path / "rounds.jsonl")[-1]["metrics"]
            if (metric["moment"], metric["average"], metric["model"]) == ("post_agg", "macro", "personal")
        ]
        assert trial.test == pytest.approx(metric["accuracy"])
        validation = [len(rows) for rows in Partition.load(path / "partition.safetensors").validation]
        assert validation == [4] * 4
        assert trial.validation * 16 == pytest.approx(round(trial.validation * 16))


def test_the_optimal_weight_is_best_on_validation_images():
    """Whatever the test images say; of equally good weights the smallest."""
    validation = {"extractor": {0.1: 0.7, 1.0: 0.9, 30.0: 0.9}, "classifier": {0.1: 0.3, 1.0: 0.1, 30.0: 0.2}}

    def run(extractor, classifier):
        found = validation["extractor"].get(extractor, 0) + validation["classifier"].get(classifier, 0)
        return Trial(extractor, classifier, found, np.array([1 - found]))

    optimal = [o.trial for o in guidance._outcomes(20, run) if o.guidance == "optimal"]
    assert [(trial.extractor, trial.classifier) for trial in optimal] == [(1.0, 0.0), (0.0, 0.1), (1.0, 0.1)]


def test_a_weight_under_which_training_diverges_is_counted_and_not_chosen(done):
    dropped = {(o.guided, o.trial.classifier): o.trial.dropped for o in done[0] if o.guidance == "tried"}
    assert dropped["classifier", 30.0] > 0
    assert dropped["extractor", 0.0] == dropped["classifier", 0.1] == 0
    assert not any(o.trial.dropped for o in done[0] if o.guidance == "optimal")


def test_runs_of_one_s_are_paired(done):
    _, folder = done
    for s in LEVELS:
        paths = sorted(folder.glob(f"s{s}-*"))
        assert len({Partition.load(path / "partition.safetensors").hash for path in paths}) == 1
        rows = [read_rows(path / "rounds.jsonl") for path in paths]
        assert all([row["cohort"] for row in other] == [row["cohort"] for row in rows[0]] for other in rows)
        assert all(other[0]["metrics"] == rows[0][0]["metrics"] for other in rows)  # the same weights before training
        assert len(paths) >= 8


def same(a, b):
    """Outcomes are equal, bit for bit."""
    plain = [
        [(o.s, o.guided, o.guidance, o.trial.validation, o.trial.accuracies.tolist()) for o in each] for each in (a, b)
    ]
    return plain[0] == plain[1]


def test_finished_runs_are_read_back(done, monkeypatch):
    first, folder = done

    def run(self, *args):
        raise AssertionError("trained again")

    monkeypatch.setattr(Experiment, "run", run)
    assert same(studied(folder), first)


def test_a_stopped_study_goes_on(done, tmp_path):
    events = []

    def stop(event):
        events.append(event)
        if len(events) == 13:  # after the first round of the third run
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        studied(tmp_path, stop)
    stopped_at = [len(read_rows(path)) for path in tmp_path.glob("*/rounds.jsonl")]
    assert sorted(stopped_at)[0] < 3 == max(stopped_at)
    assert same(studied(tmp_path, levels=LEVELS[:1]), [outcome for outcome in done[0] if outcome.s == LEVELS[0]])


def test_what_does_not_fit_is_refused(done, tmp_path):
    with pytest.raises(InputError, match=r"partition\.kind = 'iid': the study varies s.*similarity"):
        studied(tmp_path / "a", partition__kind="iid")
    with pytest.raises(InputError, match="none twice"):
        studied(tmp_path / "a", levels=[20, 20.0])
    with pytest.raises(InputError, match=r"data\.validation = 0\.01"):
        studied(tmp_path / "a", data__validation=0.01)
    with pytest.raises(InputError, match=r"partition\.s"):
        studied(tmp_path / "a", levels=[20, 101])
    assert not (tmp_path / "a").exists()
    with pytest.raises(InputError, match=r"s20-extractor0-classifier0 is a run with another config"):
        studied(done[1], train__lr=0.3)


# the report


def test_differences_are_paired_over_clients():
    ours = Trial(1.0, 0.0, 0.5, np.array([0.5, 0.75, np.nan, 1.0]))
    neither = Trial(0.0, 0.0, 0.5, np.array([0.25, 0.75, np.nan, 0.75]))
    assert ours.test == 0.75
    mean, error = ours.minus(neither)
    assert mean == pytest.approx(1 / 6)
    assert error == pytest.approx((1 / 48) ** 0.5 / 3**0.5)  # the variance of 1/4, 0, 1/4 is 1/48


@pytest.fixture
def alone():
    """Outcomes of a single client with test images."""
    neither = Trial(0.0, 0.0, 0.5, np.array([0.25, np.nan]))
    guided = Trial(1.0, 0.0, 0.5, np.array([0.75, np.nan]))
    return [Outcome(20, "neither", "none", neither, neither), Outcome(20, "extractor", "plain", guided, neither)]


def test_one_client_has_no_standard_error(alone, tmp_path, monkeypatch):
    _, (*_, trial, neither) = alone
    mean, error = trial.minus(neither)
    assert (mean, np.isnan(error)) == (0.5, True)
    write_csv(alone, tmp_path / "g.csv")
    with (tmp_path / "g.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["minus_neither"], row["standard_error"]) for row in rows] == [("0.000000", ""), ("0.500000", "")]
    drawn = []
    monkeypatch.setattr(guidance_report, "save", lambda figure, path, option: drawn.append(figure))
    plot_guidance(alone, tmp_path / "g.png", config())
    [bars] = drawn[0].axes[1].containers
    points, _, (lines,) = bars.lines
    assert points.get_ydata().tolist() == [50]
    assert not any(map(len, lines.get_segments()))  # bars without ends are not drawn
    assert np.isfinite(drawn[0].axes[1].get_ylim()).all()


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_what_is_no_number_is_a_dash():
    nothing = Trial(0.0, 0.0, 0.5, np.array([np.nan]))
    [_, [cell]] = [list(column.cells) for column in table([Outcome(20, "neither", "none", nothing, nothing)]).columns][
        1:
    ]
    assert cell == "-"


def test_a_picture_that_cannot_be_written_names_the_folder(alone, tmp_path):
    (tmp_path / "guidance.png").mkdir()
    with pytest.raises(InputError, match=r"^--folder .*guidance\.png: a picture is written as PNG"):
        plot_guidance(alone, tmp_path / "guidance.png", config())


def test_the_numbers_are_written(done, tmp_path):
    outcomes, _ = done
    write_csv(outcomes, tmp_path / "g.csv")
    with (tmp_path / "g.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(outcomes) == 2 * 13
    for row, outcome in zip(rows, outcomes, strict=True):
        assert (float(row["s"]), row["guided"], row["guidance"]) == outcome[:3]
        assert float(row["test_accuracy"]) == pytest.approx(outcome.trial.test, abs=1e-6)
        assert float(row["extractor_weight"]) == outcome.trial.extractor
    console = Console(file=io.StringIO(), width=80)
    console.print(table(outcomes))
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert all(f"{100 * o.trial.test:.2f}" in told for o in outcomes if o.guidance != "tried")
    assert told.count("classifier") == 2
    plot_guidance(outcomes, tmp_path / "g.png", config())
    assert imread(tmp_path / "g.png").shape[:2] == (800, 1400)


def test_the_command(tmp_path):
    options = [
        "train.rounds=1",
        "data.limit=400",
        "data.auxiliary=0",
        "partition.kind=similarity",
        "partition.clients=4",
    ]
    options += ["model.hidden=[8]", "run.engine=serial"]
    called = ["guidance", "--folder", str(tmp_path), "--levels", "30", *(w for o in options for w in ("--set", o))]
    done = CliRunner().invoke(app, called)
    assert done.exit_code == 0, done.output
    assert "s = 30" in done.output
    assert {"guidance.csv", "guidance.png", "s30-extractor0-classifier0"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("levels", ["", "20,much", "20,101", "-1", "nan"])
def test_levels_are_percentages(levels, tmp_path):
    done = CliRunner().invoke(app, ["guidance", "--folder", str(tmp_path), "--levels", levels])
    assert isinstance(done.exception, InputError)
    assert "--levels" in str(done.exception)
