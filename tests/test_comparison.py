"""Variants of one experiment: of methods, of their options, and of other keys of the config."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toys

from manyheads.comparison import compare, is_comparison, resume_comparison, run_variants
from manyheads.errors import InputError
from manyheads.events import Event, RoundDone
from manyheads.experiment import Experiment
from manyheads.plan import FILE, Plan, variants
from manyheads.result import Result

SMALL = toys.small()
ROWS = variants(
    {
        "fedavg": {"algorithm.name": "fedavg"},
        "fedavg, fast": {"algorithm.name": "fedavg", "train.lr": 0.5},
        "rep, 2 epochs": {"algorithm.name": "fedrep", "algorithm.head_epochs": 2},
    }
)


def same(one: Result, other: Result) -> bool:
    return (one.server, one.private, toys.plain(one.rows)) == (other.server, other.private, toys.plain(other.rows))


def stopping(label: str, round: int) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if isinstance(event, RoundDone) and (event.label, event.round) == (label, round):
            raise KeyboardInterrupt

    return on_event


def test_a_variant_is_the_run_of_its_values() -> None:
    results = run_variants(SMALL, ROWS, [0, 1], dataset=toys.dataset())
    assert list(results) == [f"{row.label}, seed {seed}" for seed in (0, 1) for row in ROWS]
    for seed in (0, 1):
        for row in ROWS:
            alone = Experiment(SMALL.with_values(row.values).with_seed(seed), dataset=toys.dataset()).run()
            assert same(results[f"{row.label}, seed {seed}"], alone)
    slow, fast = results["fedavg, seed 0"], results["fedavg, fast, seed 0"]
    assert slow.server != fast.server
    assert toys.plain(slow.rows)[0] == toys.plain(fast.rows)[0]  # before training: weights, partition and tests
    assert [row["cohort"] for row in slow.rows] == [row["cohort"] for row in fast.rows]


def test_a_stored_comparison_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    whole = run_variants(SMALL, ROWS, [0], tmp_path / "whole", dataset=toys.dataset())
    with pytest.raises(KeyboardInterrupt):
        run_variants(SMALL, ROWS, [0], tmp_path / "part", stopping("fedavg, fast", 0), dataset=toys.dataset())
    names = ["base.toml", FILE, "fedavg", "fedavg-fast"]
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == names
    assert is_comparison(tmp_path / "part")
    heard: list[Event] = []
    resumed = resume_comparison(tmp_path / "part", heard.append, dataset=toys.dataset())
    trained = [(event.label, event.round) for event in heard if isinstance(event, RoundDone)]
    assert trained == [("fedavg, fast", 1), *(("rep, 2 epochs", round) for round in (-1, 0, 1))]
    assert list(resumed) == list(whole)
    assert all(same(resumed[label], whole[label]) for label in whole)


def test_a_folder_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    whole = compare(SMALL, ["fedavg", "fedper"], [0, 1], tmp_path / "whole", dataset=toys.dataset())
    stop = stopping("fedper, seed 0", 0)
    with pytest.raises(KeyboardInterrupt):
        compare(SMALL, ["fedavg", "fedper"], [0, 1], tmp_path / "part", stop, dataset=toys.dataset())
    (tmp_path / "part" / FILE).write_text('methods = ["fedavg", "fedper"]\nseeds = [0, 1]\n')
    resumed = resume_comparison(tmp_path / "part", dataset=toys.dataset())
    assert list(resumed) == list(whole)
    assert all(same(resumed[label], whole[label]) for label in whole)
    folders = {path.name for path in (tmp_path / "part").iterdir() if path.is_dir()}
    assert folders == {"fedavg-seed0", "fedper-seed0", "fedavg-seed1", "fedper-seed1"}


def test_a_comparison_of_methods_is_stored_by_their_names(tmp_path: Path) -> None:
    compare(SMALL, ["local_only", "fedavg"], [4], tmp_path, dataset=toys.dataset())
    plan = Plan.read(tmp_path)
    assert (plan.seeds, [row.label for row in plan.variants], plan.minus) == ([4], ["local_only", "fedavg"], {})
    assert (tmp_path / "local_only" / "config.toml").is_file()


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda **to: compare(SMALL, ["fedavg", "fedavg"], **to),
            r"methods: \['fedavg', 'fedavg'\] must name at least",
        ),
        (lambda **to: compare(SMALL, [], **to), "methods: "),
        (lambda **to: compare(SMALL, ["fedavg"], [], **to), "seeds: "),
        (lambda **to: compare(SMALL, ["fedavg", "fed avg"], **to), "algorithm.name: unknown method 'fed avg'"),
        (
            lambda **to: run_variants(SMALL, [*ROWS, *variants({"odd": {"train.lr": -1.0}})], [0], **to),
            "train.lr = -1.0: must be a number above 0",
        ),
    ],
    ids=["twice", "no method", "no seed", "unknown", "out of range"],
)
def test_wrong_input_is_refused_before_anything_runs(
    tmp_path: Path, call: Callable[..., Any], line: str, stored: bool
) -> None:
    heard: list[Event] = []
    with pytest.raises(InputError, match=f"^{line}"):
        call(dataset=toys.dataset(), on_event=heard.append, folder=tmp_path / "new" if stored else None)
    assert heard == []
    assert not (tmp_path / "new").exists()


def test_a_variant_that_does_not_fit_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    rows = variants({"fedavg": {"algorithm.name": "fedavg"}, "with D_s": {"algorithm.name": "pfedkdh"}})
    config = SMALL.with_values({"data.auxiliary": 0})
    with pytest.raises(InputError, match=r"data\.auxiliary = 0"):
        run_variants(config, rows, [0], tmp_path / "new", dataset=toys.dataset())
    assert not (tmp_path / "new").exists()
