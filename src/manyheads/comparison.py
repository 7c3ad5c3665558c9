"""``compare`` and ``ablate``: variants of one experiment on the same partitions, initial weights and cohorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from manyheads.algorithms import registry
from manyheads.config import Config
from manyheads.contract import Algorithm
from manyheads.data.dataset import Dataset
from manyheads.errors import InputError
from manyheads.events import OnEvent, Warned
from manyheads.experiment import Experiment
from manyheads.plan import FILE, Entry, Plan, Variant, variants
from manyheads.prepare import load_dataset
from manyheads.result import Result
from manyheads.storage.atomic import make_folder, write_bytes

_BASE = "base.toml"
Run = tuple[Entry, Config]


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int] = (0,),
    folder: Path | str | None = None,
    on_event: OnEvent | None = None,
    *,
    dataset: Dataset | None = None,
) -> dict[str, Result]:
    """Runs every method with every seed. For one seed, all methods share partition, initial weights and cohorts.

    Args:
        config: what all runs have in common; options of its method hold for that method only.
        methods: names of methods.
        seeds: each changes the partition, the initial weights and the cohorts.
        folder: where to store the runs, one folder each; None keeps them in memory.
        on_event: gets the events.
        dataset: the data; by default the config's source.

    Returns:
        The results by label: the method's name, with ``, seed N`` where there are several seeds.

    Raises:
        InputError: a method is unknown or named twice, or the folder holds a comparison already.
        RunError: a run failed.
    """
    _distinct("methods", methods)
    return run_variants(
        config, variants({name: {"algorithm.name": name} for name in methods}), seeds, folder, on_event, dataset=dataset
    )


def ablate(
    config: Config,
    seeds: Sequence[int] = (0,),
    folder: Path | str | None = None,
    on_event: OnEvent | None = None,
    *,
    dataset: Dataset | None = None,
) -> dict[str, Result]:
    """Runs the config's method with and without its parts, as its ``ablations`` say.

    A row that is the same as another one with this config, since its part is off already, is left out with a warning.

    Args:
        config: the experiment; its method declares parts.
        seeds: as for ``compare``.
        folder: as for ``compare``.
        on_event: as for ``compare``.
        dataset: as for ``compare``.

    Returns:
        The results by label: the row's name, with ``, seed N`` where there are several seeds.

    Raises:
        InputError: the method declares no parts, or none is on, or the folder holds a comparison already.
        RunError: a run failed.
    """
    rows = _rows(config)
    full = next(label for label, values in rows.items() if not values)
    kept = _different(config, rows, full, on_event)
    if len(kept) < 2:
        raise InputError(f"algorithm.name = {config.algorithm.name!r}: with this config none of its parts is on")
    if full == kept[-1]:
        minus = {label: above for above, label in pairwise(kept)}
    else:
        minus = {label: full for label in kept if label != full}
    values = {label: {f"algorithm.{key}": value for key, value in rows[label].items()} for label in kept}
    return run_variants(config, variants(values, minus), seeds, folder, on_event, dataset=dataset)


def run_variants(
    config: Config,
    rows: Sequence[Variant],
    seeds: Sequence[int],
    folder: Path | str | None = None,
    on_event: OnEvent | None = None,
    *,
    dataset: Dataset | None = None,
) -> dict[str, Result]:
    """Runs every variant of a config with every seed; arguments, results and errors as for ``compare``."""
    folder = None if folder is None else Path(folder)
    _distinct("seeds", seeds)
    plan = Plan(seeds=[int(seed) for seed in seeds], variants=list(rows))
    runs = _runs(config, plan)
    dataset = dataset or load_dataset(config)
    if folder is not None:
        _check(runs, dataset)
        _create(folder, config, plan)
    return _run(runs, folder, on_event, dataset)


def is_comparison(folder: Path) -> bool:
    """Whether the folder is a comparison's."""
    return (folder / FILE).is_file()


def resume_comparison(
    folder: Path, on_event: OnEvent | None = None, *, dataset: Dataset | None = None
) -> dict[str, Result]:
    """Goes on with a comparison: finished runs are read, one that was stopped goes on, the others start."""
    if not is_comparison(folder):
        raise InputError(f"{folder} holds no comparison: there is no {FILE} in it")
    plan = Plan.read(folder)
    config = Config.load(folder / _BASE)
    return _run(_runs(config, plan), folder, on_event, dataset or load_dataset(config))


def _distinct(what: str, values: Sequence[Any]) -> None:
    if not values or len(set(values)) < len(values):
        raise InputError(f"{what}: {list(values)} must name at least one, and none twice")


def _rows(config: Config) -> dict[str, Mapping[str, Any]]:
    """The method's ablations, the method as configured, which is an empty mapping, among them."""
    name = config.algorithm.name
    rows = dict(registry.load(name)(**config.algorithm.options).ablations(config.train.epochs))
    if not rows:
        raise InputError(f"algorithm.name = {name!r} declares no parts; methods that do: {', '.join(_with_parts())}")
    return {"full": {}, **rows} if all(rows.values()) else rows


def _with_parts() -> list[str]:
    found = []
    for name in registry.names():
        with suppress(InputError):  # one broken file must not hide the others
            if registry.load(name).ablations is not Algorithm.ablations:
                found.append(name)
    return found


def _different(config: Config, rows: Mapping[str, Mapping[str, Any]], full: str, on_event: OnEvent | None) -> list[str]:
    """The labels of ``full`` and of all rows that differ from it and from each other."""
    options = {label: {**config.algorithm.options, **values} for label, values in rows.items()}
    kept: list[str] = []
    for label in rows:
        twin = next((other for other in (full, *kept) if other != label and options[other] == options[label]), None)
        if twin is None:
            kept.append(label)
        elif on_event:
            on_event(Warned(label, f"not run, since with this config it is the same as {twin!r}"))
    return kept


def _runs(config: Config, plan: Plan) -> list[Run]:
    return [(entry, config.with_values(entry.variant.values).with_seed(entry.seed)) for entry in plan.entries()]


def _check(runs: Sequence[Run], dataset: Dataset) -> None:
    """Refuse what does not fit before anything is stored: a network goes with a variant, a partition with a seed."""
    labels, seeds = set(), set()
    for entry, config in runs:
        if entry.variant.label not in labels or entry.seed not in seeds:
            Experiment(config, dataset=dataset).check()
        labels.add(entry.variant.label)
        seeds.add(entry.seed)


def _create(folder: Path, config: Config, plan: Plan) -> None:
    for name, what in ((FILE, "a comparison"), ("config.toml", "a run")):
        if (folder / name).is_file():
            raise InputError(f"{folder} already holds {what}; continue it with: manyheads resume {folder}")
    try:
        make_folder(folder)
        if others := [path.name for path in folder.iterdir() if not path.name.lstrip(".").startswith(_BASE)]:
            raise InputError(f"{folder} is not empty (it holds {sorted(others)[0]}); choose another --folder")
        write_bytes(folder / _BASE, config.to_toml().encode())
        write_bytes(folder / FILE, plan.to_toml().encode())  # last: its presence marks a whole folder
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None


def _run(runs: Sequence[Run], folder: Path | None, on_event: OnEvent | None, dataset: Dataset) -> dict[str, Result]:
    results = {}
    for entry, config in runs:
        path = folder / entry.folder if folder else None
        if path and (path / "config.toml").exists():
            results[entry.name] = Experiment.resume(path, dataset=dataset, on_event=on_event, label=entry.name)
        else:
            results[entry.name] = Experiment(config, dataset=dataset).run(path, on_event, entry.name)
    return results
