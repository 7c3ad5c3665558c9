from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from manyheads.report.curves import curve, plot_curves, plot_runs, spread
from manyheads.report.rows import Key, Run, RunEntry

FAIR = Key("personal", "client test", "post_agg", "macro")


def run(rows: list[dict[str, Any]], seed: int = 0) -> Run:
    return Run(RunEntry("fedper", "fedper", seed, Path()), rows, {})


def inked(path: Path) -> float:
    """The share of pixels that are not white; fails unless the picture has the size that is promised."""
    picture = imread(path)
    assert picture.shape[:2] == (800, 1400)
    return float(np.mean(picture[..., :3].min(axis=2) < 0.99))


def test_one_seed_has_the_spread_over_clients_as_its_band(fake: SimpleNamespace) -> None:
    rows = [fake.row(0, fake.personal(0.1, std=0.2)), fake.row(1), fake.row(2, fake.personal(0.5, std=0.3))]
    found = curve([run(rows)], FAIR)
    assert found.done == [0, 2]
    assert found.accuracy == pytest.approx([10, 50])
    assert found.band == pytest.approx([20, 30])
    assert found.seeds == 1


def test_several_seeds_have_their_own_spread_as_the_band(fake: SimpleNamespace) -> None:
    seeds = [
        run([fake.row(n, fake.personal(a + n / 10)) for n in (0, 1)], seed) for seed, a in enumerate([0.1, 0.2, 0.6])
    ]
    stopped = run([fake.row(0, fake.personal(0.9))], 3)
    found = curve([*seeds, stopped], FAIR)
    assert found.accuracy == pytest.approx([30, 40])
    assert found.band == pytest.approx([7**0.5 * 10] * 2)  # 10, 20, 60: 400 + 100 + 900 = 1400, halved
    assert found.seeds == 3


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30).map(sorted), st.floats(0.001, 0.2))
def test_names_are_moved_apart_in_order_and_stay_inside(values: list[float], gap: float) -> None:
    places = np.array(spread(values, gap))
    assert places.min() >= -1e-9
    assert places.max() <= 1 + 1e-9
    if len(values) > 1:
        assert np.diff(places).min() >= min(gap, 1 / (len(values) - 1)) - 1e-9


def test_names_that_are_apart_stay_where_they_are() -> None:
    assert spread([0.1, 0.5, 0.9], 0.2) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])


def test_a_picture_of_all_kinds_of_numbers(fake: SimpleNamespace, tmp_path: Path) -> None:
    def rows(final: float) -> list[dict[str, Any]]:
        return [
            fake.row(
                done,
                fake.personal(final * done / 5),
                fake.personal(final * done / 5, "post_adapt"),
                fake.personal(final * done / 6, variant="prototype"),
                fake.global_test(final * done / 8),
                fake.metric("global", "client test", final * done / 9),
            )
            for done in range(6)
        ]

    plot_curves({"pfedkdh": rows(0.9), "fedavg": rows(0.6)}, tmp_path / "curves.png")
    assert inked(tmp_path / "curves.png") > 0.03
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def panels(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    figures: list[Figure] = []
    monkeypatch.setattr("manyheads.report.curves.save_figure", lambda figure, path: figures.append(figure))
    plot_runs(runs, Path())
    return figures[0].axes


def of_method(method: str, *metrics: dict[str, Any], seed: int = 0) -> Run:
    rows = [{"round": done - 1, "metrics": metrics} for done in (0, 1)]
    return Run(RunEntry(method, method, seed, Path()), rows, {})


def test_personal_and_global_models_share_the_panel_of_the_clients_images(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_all = (fake.personal(0.9), fake.personal(0.95, "post_adapt"), fake.metric("global", "client test", 0.8))
    runs = [
        of_method("pfedkdh", *of_all, fake.global_test(0.7)),
        of_method("fedavg", fake.metric("global", "client test", 0.5), fake.global_test(0.6)),
    ]
    left, right = panels(runs, monkeypatch)
    names = [text.get_text() for text in left.texts]
    assert names == ["50.0  fedavg (global)", "80.0  pfedkdh (teacher)", "90.0  pfedkdh (Fair)", "95.0  pfedkdh (EA)"]
    assert [text.get_text() for text in right.texts] == ["60.0  fedavg", "70.0  pfedkdh (teacher)"]
    fair, adapted, teacher, fedavg = left.lines
    assert (fair.get_linestyle(), adapted.get_linestyle()) == ("-", "--")
    assert teacher.get_linewidth() < fedavg.get_linewidth()
    assert len(left.collections) == 3  # the teacher has no band
    assert left.get_position().width > right.get_position().width


def test_after_local_training_has_a_panel_of_its_own(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    both = (fake.personal(0.9), fake.personal(0.8, "post_local"))
    runs = [of_method("pfedkdh", *both, fake.global_test(0.7)), of_method("fedper", *both)]
    left, local, together = panels(runs, monkeypatch)
    assert [axes.get_title("left") for axes in (left, local, together)] == [
        "Clients' own test images",
        "Clients' own test images,\nafter local training",
        "Global models\non all test images",
    ]
    assert sorted(text.get_text() for text in left.texts) == ["90.0  fedper", "90.0  pfedkdh (Fair)"]
    assert sorted(text.get_text() for text in local.texts) == ["80.0  fedper", "80.0  pfedkdh"]
    assert [text.get_text() for text in together.texts] == ["70.0  pfedkdh (teacher)"]
    assert local.get_position().y0 > together.get_position().y1
    assert left.get_position().y0 == pytest.approx(together.get_position().y0)
    assert [line.get_color() for line in left.lines] == [line.get_color() for line in local.lines]


def test_names_of_many_variants_fit_into_the_picture(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    every = (fake.personal(0.9), fake.personal(0.8, "post_local"), fake.global_test(0.7))
    figure = panels([of_method(f"without RandAugment {n}", *every) for n in range(9)], monkeypatch)[0].figure
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = sorted((Text.get_window_extent(name) for name in axes.texts), key=lambda box: box.y0)  # without arrows
        assert len(boxes) == 9
        assert all(low.y1 <= high.y0 + 3 for low, high in pairwise(boxes))  # boxes reach a little beyond their letters
        assert max(box.x1 for box in boxes) <= 1400


def test_one_kind_of_number_has_the_picture_for_itself(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    (axes,) = panels([of_method("fedper", fake.personal(0.9))], monkeypatch)
    assert axes.get_title("left") == "Clients' own test images"


def test_a_band_over_clients_is_not_shown_among_bands_over_seeds(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = [of_method("fedper", fake.personal(0.8 + seed / 10), seed=seed) for seed in (0, 1)]
    (axes,) = panels([*twice, of_method("ditto", fake.personal(0.7))], monkeypatch)
    assert (len(axes.lines), len(axes.collections)) == (2, 1)


def test_the_explanation_fits_into_the_picture(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [
        fake.metric(model, "client test", 0.5, moment, variant=variant)
        for model, moment in [("personal", "post_agg"), ("personal", "post_adapt"), ("global", "post_agg")]
        for variant in ("", "prototype")
    ]
    figure = panels([of_method("pfedkdh", *everything)], monkeypatch)[0].figure
    figure.draw_without_rendering()
    (explanation,) = [text for text in figure.texts if text.get_text().startswith("solid")]
    assert explanation.get_window_extent().x1 < 1400


def test_labels_of_several_seeds_are_one_line(
    fake: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Run] = []
    monkeypatch.setattr("manyheads.report.curves.plot_runs", lambda runs, path, title: drawn.extend(runs))
    rows = [fake.row(0, fake.personal(0.5))]
    plot_curves({"pfedkdh, seed 3": rows, "pfedkdh, seed 4": rows, "fedper": rows}, tmp_path / "curves.png")
    assert [run.entry[:3] for run in drawn] == [
        ("pfedkdh", "pfedkdh", 3),
        ("pfedkdh", "pfedkdh", 4),
        ("fedper", "fedper", 0),
    ]


def test_many_methods_and_a_single_point_can_be_drawn(fake: SimpleNamespace, tmp_path: Path) -> None:
    runs = {f"method{n}": [fake.row(0, fake.personal(n / 40), fake.global_test(0.1))] for n in range(30)}
    plot_curves(runs, tmp_path / "curves.png")
    assert inked(tmp_path / "curves.png") > 0.01


def test_nothing_to_draw_is_an_empty_picture(tmp_path: Path) -> None:
    plot_curves({}, tmp_path / "curves.png")
    assert inked(tmp_path / "curves.png") < 0.01
