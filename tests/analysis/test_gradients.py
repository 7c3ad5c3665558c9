import numpy as np
import pytest
import toys
from matplotlib.image import imread
from typer.testing import CliRunner

from manyheads.algorithms.fedper import FedPer
from manyheads.analysis import gradients
from manyheads.analysis.cli import app
from manyheads.analysis.gradients import Norms, plot_gradients, table
from manyheads.errors import InputError
from manyheads.report.rows import Run, RunEntry


def logged(tmp_path, *rounds):
    """A run whose clients had these squared norms, round by round."""
    rows = [{"round": -1, "cohort": []}]
    rows += [
        {"round": number, "notes": {"squared_gradient": {str(client): norm for client, norm in enumerate(norms)}}}
        for number, norms in enumerate(rounds)
    ]
    return Run(RunEntry("fedavg", "fedavg", 0, tmp_path / "run"), rows, {})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with norms and one without."""
    folder = tmp_path_factory.mktemp("runs")
    toys.run(folder=folder / "fedavg", run__gradients=True, algorithm__name="fedavg")
    toys.run(folder=folder / "fedper", run__gradients=True, algorithm__name="fedper")
    toys.run(folder=folder / "without", algorithm__name="fedper")
    return folder


def test_norms_by_hand(tmp_path):
    norms = Norms.of(logged(tmp_path, (8.0, 4.0, 3.0, 1.0, 0.0), (2.0,)), "fedavg")
    assert norms.done == [0, 1]
    assert norms.mean.tolist() == [16 / 5, 2.0]
    assert norms.low.tolist() == [1.0, 2.0]
    assert norms.high.tolist() == [4.0, 2.0]
    assert (norms.ends, norms.first, norms.last) == (1, 16 / 5, 2.0)


def test_the_ends_are_five_rounds(tmp_path):
    norms = Norms.of(logged(tmp_path, *((float(2 * n), 0.0) for n in range(12, 0, -1))), "fedavg")
    assert norms.ends == 5
    assert norms.first == (12 + 11 + 10 + 9 + 8) / 5
    assert norms.last == (5 + 4 + 3 + 2 + 1) / 5
    assert norms.ratio == pytest.approx(3 / 10)
    assert Norms.of(logged(tmp_path, (1.0,), (1.0,), (1.0,)), "fedavg").ends == 1


def test_runs_are_drawn_as_they_were_logged(runs, tmp_path):
    norms = plot_gradients([runs / "fedavg", runs / "fedper"], tmp_path / "new" / "gradients.png")
    assert imread(tmp_path / "new" / "gradients.png").shape[:2] == (800, 1400)
    rows = toys.run(FedPer(), run__gradients=True).rows[1:]
    expected = [np.mean(list(row["notes"]["squared_gradient"].values())) for row in rows]
    assert [norm.label for norm in norms] == ["fedavg", "fedper"]
    assert norms[1].mean.tolist() == expected
    assert table(norms).row_count == 2


def test_labels_tell_runs_apart(runs, tmp_path):
    twice = [runs / "fedper", runs / "fedper"]
    assert {norm.label for norm in plot_gradients(twice, tmp_path / "a.png")} == {"fedper, fedper"}
    toys.run(folder=tmp_path / "other", run__gradients=True, algorithm__name="fedper", run__seed=1)
    labels = [norm.label for norm in plot_gradients([runs / "fedper", tmp_path / "other"], tmp_path / "a.png")]
    assert len(set(labels)) == 2
    assert labels[1].endswith("seed 1)")


def test_labels_are_no_markup(runs, tmp_path):
    label = "a [/b] [red]c"
    called = ["gradients", str(runs / "fedavg"), "--out", str(tmp_path / "g.png"), "--labels", label]
    done = CliRunner().invoke(app, called)
    assert done.exit_code == 0, done.output
    assert f" {label} " in done.output


def test_a_run_without_norms_is_refused(runs, tmp_path):
    with pytest.raises(InputError, match=r"without: no gradient norms in it.*--set run\.gradients=true$"):
        plot_gradients([runs / "fedper", runs / "without"], tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_the_command(runs, tmp_path):
    done = CliRunner().invoke(
        app, ["gradients", str(runs / "fedavg"), str(runs / "fedper"), "--out", str(tmp_path / "g.png")]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "g.png").exists()
    for norms in plot_gradients([runs / "fedavg", runs / "fedper"], tmp_path / "again.png"):
        row = next(line for line in done.output.splitlines() if f" {norms.label} " in line)
        assert f"{norms.ratio:.3f}" in row
    assert gradients.ENDS == 5
