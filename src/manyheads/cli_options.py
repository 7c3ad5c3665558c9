"""The options that commands share, and how their values are read."""

from pathlib import Path
from typing import Annotated

import typer

from manyheads.config import Config
from manyheads.data.catalog import is_own
from manyheads.errors import InputError

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.toml", help="The experiment; defaults where it says nothing.")
]
Profile = Annotated[str | None, typer.Option(help="A ready config instead of a file: manyheads list profiles.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as train.lr=0.1; repeatable.")
]
DataDir = Annotated[Path | None, typer.Option(help="Folder with the data set's files, searched with its subfolders.")]


def listed(text: str) -> list[str]:
    """The parts of a text such as ``a, b``; none of an empty one."""
    return [part.strip() for part in text.split(",")] if text else []


def numbers(option: str, text: str) -> list[int]:
    """The whole numbers of a text such as ``0,1,2``; none of an empty one.

    Raises:
        InputError: a part is no whole number of at least 0.
    """
    if wrong := [part for part in listed(text) if not part.isdecimal()]:
        raise InputError(f"{option}: {wrong[0]!r} is not a whole number of at least 0; write them as 0,1,2")
    return [int(part) for part in listed(text)]


def load_config(
    path: Path | None, profile: str | None, overrides: list[str] | None, data_dir: Path | None
) -> tuple[Config, str]:
    """The config that the options ask for, and a name for it."""
    if path and profile:
        raise InputError(f"give a config or --profile, not both: {path} and {profile!r}")
    if path:
        config, name = Config.load(path, overrides or ()), path.stem
    elif profile:
        config, name = Config.profile(profile, overrides or ()), profile
    else:
        config = Config.parse("", overrides or ())
        name = Path(config.data.source.rpartition(":")[2]).stem or "run"
    return _absolute(config.with_values({"data.dir": str(data_dir)}) if data_dir else config), name


def _absolute(config: Config) -> Config:
    """Paths that hold anywhere, so that the run can be resumed from another folder."""
    values = {"data.dir": Path(config.data.dir).expanduser()} if config.data.dir else {}
    if is_own(config.data.source) and (source := Path(config.data.source).expanduser()).exists():
        values["data.source"] = source
    return config.with_values({key: str(path.resolve()) for key, path in values.items()})
