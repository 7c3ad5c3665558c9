from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from manyheads.report.curves import curve, plot_curves, spread
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
    assert found is not None
    assert found.done == [0, 2]
    assert found.accuracy == pytest.approx([10, 50])
    assert found.band == pytest.approx([20, 30])


def test_several_seeds_have_their_own_spread_as_the_band(fake: SimpleNamespace) -> None:
    seeds = [
        run([fake.row(n, fake.personal(a + n / 10)) for n in (0, 1)], seed) for seed, a in enumerate([0.1, 0.2, 0.6])
    ]
    stopped = run([fake.row(0, fake.personal(0.9))], 3)
    found = curve([*seeds, stopped], FAIR)
    assert found is not None
    assert found.accuracy == pytest.approx([30, 40])
    assert found.band == pytest.approx([7**0.5 * 10] * 2)  # 10, 20, 60: 400 + 100 + 900 = 1400, halved


def test_no_such_number_no_line(fake: SimpleNamespace) -> None:
    assert curve([run([fake.row(0, fake.global_test(0.1))])], FAIR) is None


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
