"""The options with which commands take a config."""

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
