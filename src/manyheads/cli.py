"""The command ``manyheads``: commands only, no logic. Heavy modules are imported by the commands that need them."""

import shlex
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from manyheads import config_options
from manyheads.analysis import cli as analysis
from manyheads.cli_options import ConfigFile, DataDir, Profile, Set, load_config, numbers
from manyheads.config import Config, about_profile, profiles
from manyheads.errors import InputError, RunError
from manyheads.events import OnEvent

app = typer.Typer(
    help="Personalized federated learning: one body, many heads.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(analysis.app, name="analyse")

Folder = Annotated[Path | None, typer.Option(help="Where to store the run; by default a new folder under runs/.")]
Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run or of a comparison.")]


class Catalog(StrEnum):
    """What can be listed."""

    METHODS = "methods"
    DATA = "data"
    PARTITIONS = "partitions"
    MODELS = "models"
    PROFILES = "profiles"


@app.command()
def run(
    config: ConfigFile = None,
    profile: Profile = None,
    set_: Set = None,
    data_dir: DataDir = None,
    folder: Folder = None,
) -> None:
    """Run one experiment."""
    experiment, name = load_config(config, profile, set_, data_dir)
    target = folder or _free(f"{name}-{experiment.algorithm.name}-{experiment.run.seed}")
    with _followed(target) as on_event:
        from manyheads.experiment import Experiment

        Experiment(experiment).run(target, on_event)


@app.command()
def compare(
    methods: Annotated[str, typer.Option(help="Methods, separated by commas: manyheads list methods.")],
    config: ConfigFile = None,
    profile: Profile = None,
    seeds: Seeds = "0",
    set_: Set = None,
    data_dir: DataDir = None,
    folder: Folder = None,
) -> None:
    """Run several methods on the same partitions, initial weights and cohorts."""
    experiment, name = load_config(config, profile, set_, data_dir)
    names = [method.strip() for method in methods.split(",") if method.strip()]
    if not names:
        raise InputError(f"--methods: no method in {methods!r}; write them as fedavg,fedper")
    chosen_seeds = numbers("--seeds", seeds)
    target = folder or _free(f"{name}-compare")
    with _followed(target) as on_event:
        from manyheads.comparison import compare as run_all

        run_all(experiment, names, chosen_seeds, target, on_event)


@app.command()
def ablate(
    config: ConfigFile = None,
    profile: Profile = None,
    method: Annotated[str | None, typer.Option(help="The method; by default the config's.")] = None,
    seeds: Seeds = "0",
    set_: Set = None,
    data_dir: DataDir = None,
    folder: Folder = None,
) -> None:
    """Run a method with and without its parts, on the same partitions, initial weights and cohorts."""
    chosen = [f"algorithm.name={method}"] if method else []
    experiment, name = load_config(config, profile, [*(set_ or []), *chosen], data_dir)
    chosen_seeds = numbers("--seeds", seeds)
    target = folder or _free(f"{name}-{experiment.algorithm.name}-ablate")
    with _followed(target) as on_event:
        from manyheads.comparison import ablate as run_all

        run_all(experiment, chosen_seeds, target, on_event)


@app.command()
def resume(run: Run) -> None:
    """Go on with a run or a comparison that was stopped."""
    with _followed(run) as on_event:
        from manyheads.comparison import is_comparison, resume_comparison
        from manyheads.experiment import Experiment

        if is_comparison(run):
            resume_comparison(run, on_event)
        else:
            Experiment.resume(run, on_event=on_event)


@app.command()
def show(run: Run) -> None:
    """Print the results of a run or a comparison."""
    from manyheads.report import summary

    summary.show(run, Console())


@app.command("list")
def list_(what: Catalog) -> None:
    """List what a config can choose from."""
    for name, description, options in config_options.catalog(what.value, profiles()):
        said = f"{name:<20} {description}"
        said += "".join(f"\n{' ' * 21}{key} = {config_options.in_toml(value)}" for key, value in options.items())
        width = max(40, Console().width)
        for line in said.splitlines():
            typer.echo(textwrap.fill(line, width, subsequent_indent=" " * 21, drop_whitespace=True))


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("manyheads.toml"), profile: Profile = None
) -> None:
    """Write a config with every key and what it means."""
    chosen = profile or "digits"
    config = Config.profile(chosen)
    text = f"{about_profile(chosen)}\n{config.to_toml(comments=True)}"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} exists and is not written over; give another path") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    typer.echo(f"wrote {path}; run it with: manyheads run {path}")


@app.command("new-method")
def new_method(
    name: Annotated[str, typer.Argument(help="Its name: a lower-case identifier.")],
    folder: Annotated[Path | None, typer.Option(help="A source checkout; by default the one that runs.")] = None,
) -> None:
    """Write a method of your own: a file that runs, its test and its page."""
    from manyheads.new_method import create

    for line in create(name, folder):
        typer.echo(line)


def main() -> None:
    """Entry point. Exit status 0; 2 for wrong input; 1 for a run that failed; 130 after Ctrl-C."""
    sys.path.append(str(Path.cwd()))  # for a network of one's own, model.name = "mynet:make"
    try:
        app()
    except (InputError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)


def _free(name: str) -> Path:
    tries = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in tries if not path.exists())


@contextmanager
def _followed(folder: Path) -> Iterator[OnEvent]:
    """Shows the progress of what is run, and its results; Ctrl-C ends it with the command that goes on."""
    try:
        from manyheads.report import summary
        from manyheads.report.progress import ProgressReport

        with ProgressReport(Console(stderr=True)) as on_event:
            yield on_event
        summary.show(folder, Console())
        for picture in summary.pictures(folder):
            typer.echo(f"wrote {picture}")
    except KeyboardInterrupt:
        go_on = f"stopped; go on with: manyheads resume {shlex.quote(str(folder))}"
        typer.echo(go_on if folder.exists() else "stopped before anything was stored", err=True)
        raise typer.Exit(130) from None
