"""``compare``: several methods on the same partitions, initial weights and cohorts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from manyheads.config import Config
from manyheads.data.dataset import Dataset
from manyheads.errors import InputError
from manyheads.events import OnEvent
from manyheads.experiment import Experiment, load_dataset
from manyheads.result import Result
from manyheads.storage.atomic import make_folder, write_bytes

_PLAN = "comparison.toml"  # written last: its presence marks a whole folder
_BASE = "base.toml"


@dataclass(frozen=True)
class Entry:
    """One run of a comparison: its name in reports, its folder's name, and what it runs."""

    label: str
    name: str
    config: Config


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
    folder = None if folder is None else Path(folder)
    methods, seeds = list(methods), [int(seed) for seed in seeds]
    for what, values in (("methods", methods), ("seeds", seeds)):
        if not values or len(set(values)) < len(values):
            raise InputError(f"{what}: {list(values)} must name at least one, and none twice")
    entries = list(_entries(config, methods, seeds))
    dataset = dataset or load_dataset(config)
    if folder is not None:
        _check(entries, dataset)
        _create(folder, config, methods, seeds)
    return _run(entries, folder, on_event, dataset)


def is_comparison(folder: Path) -> bool:
    """Whether the folder is a comparison's."""
    return (folder / _PLAN).is_file()


def resume_comparison(
    folder: Path, on_event: OnEvent | None = None, *, dataset: Dataset | None = None
) -> dict[str, Result]:
    """Goes on with a comparison: finished runs are read, one that was stopped goes on, the others start."""
    if not is_comparison(folder):
        raise InputError(f"{folder} holds no comparison: there is no {_PLAN} in it")
    try:
        plan = tomllib.loads((folder / _PLAN).read_text("utf-8"))
        methods, seeds = plan["methods"], plan["seeds"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder / _PLAN} is damaged: {' '.join(str(error).split())}") from None
    config = Config.load(folder / _BASE)
    return _run(list(_entries(config, methods, seeds)), folder, on_event, dataset or load_dataset(config))


def _entries(config: Config, methods: Sequence[str], seeds: Sequence[int]) -> Iterator[Entry]:
    for seed in seeds:
        for method in methods:
            label, name = (method, method) if len(seeds) == 1 else (f"{method}, seed {seed}", f"{method}-seed{seed}")
            yield Entry(label, name, config.with_method(method).with_seed(seed))


def _check(entries: Sequence[Entry], dataset: Dataset) -> None:
    """Refuse what does not fit before anything is stored: a network goes with a method, a partition with a seed."""
    methods, seeds = set(), set()
    for config in (entry.config for entry in entries):
        if config.algorithm.name not in methods or config.run.seed not in seeds:
            Experiment(config, dataset=dataset).check()
        methods.add(config.algorithm.name)
        seeds.add(config.run.seed)


def _create(folder: Path, config: Config, methods: Sequence[str], seeds: Sequence[int]) -> None:
    for name, what in ((_PLAN, "a comparison"), ("config.toml", "a run")):
        if (folder / name).is_file():
            raise InputError(f"{folder} already holds {what}; continue it with: manyheads resume {folder}")
    try:
        make_folder(folder)
        if others := [path.name for path in folder.iterdir() if not path.name.lstrip(".").startswith(_BASE)]:
            raise InputError(f"{folder} is not empty (it holds {sorted(others)[0]}); choose another --folder")
        write_bytes(folder / _BASE, config.to_toml().encode())
        write_bytes(folder / _PLAN, tomli_w.dumps({"methods": list(methods), "seeds": list(seeds)}).encode())
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None


def _run(
    entries: Sequence[Entry], folder: Path | None, on_event: OnEvent | None, dataset: Dataset
) -> dict[str, Result]:
    results = {}
    for entry in entries:
        path = folder / entry.name if folder else None
        if path and (path / "config.toml").exists():
            results[entry.label] = Experiment.resume(path, dataset=dataset, on_event=on_event, label=entry.label)
        else:
            results[entry.label] = Experiment(entry.config, dataset=dataset).run(path, on_event, entry.label)
    return results
