"""The commands ``manyheads analyse``: commands only, no logic. Heavy modules are imported by the commands."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import track

from manyheads.cli_options import ConfigFile, DataDir, Profile, Set, listed, load_config, numbers
from manyheads.errors import InputError

app = typer.Typer(
    help="Look into finished runs; each analysis draws a picture.", no_args_is_help=True, rich_markup_mode=None
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN", help="The folders of runs.")]
Out = Annotated[Path, typer.Option(metavar="FILE.png", help="The picture to write.")]
Labels = Annotated[str, typer.Option(help="Names of the runs, separated by commas.", show_default=False)]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Decides every draw.")]

T = TypeVar("T")


def tracked(steps: Sequence[T], what: str) -> Iterable[T]:
    """The steps, with a bar on stderr where that is a terminal."""
    console = Console(stderr=True)
    return track(steps, what, console=console, disable=not console.is_terminal, transient=True)


def shares(option: str, text: str) -> list[float]:
    """The numbers of a text such as ``20,40.5``, each in [0, 100]."""
    try:
        found = [float(part) for part in listed(text)]
    except ValueError:
        found = []
    if not found or not all(0 <= share <= 100 for share in found):
        raise InputError(f"{option}: {text!r} must be numbers from 0 to 100, such as 20,40,60,80")
    return found


@app.command()
def tsne(
    runs: RunFolders,
    out: Out,
    clients: Annotated[
        str, typer.Option(help="Own test images of these, as 0,1,2, each under its client's model.", show_default=False)
    ] = "",
    images: Annotated[int, typer.Option(min=1, help="How many test images at most.")] = 1500,
    labels: Labels = "",
    seed: Seed = 0,
) -> None:
    """Draw the features of test images, run beside run, on the same images.

    By default those of the whole test set under the backbone as aggregated last.
    """
    from manyheads.analysis.features import tsne as draw
    from manyheads.analysis.trained import Trained

    trained = [Trained.load(run) for run in tracked(runs, "reading")]
    panels = draw(
        trained,
        out,
        clients=numbers("--clients", clients),
        images=images,
        seed=seed,
        labels=listed(labels),
        track=lambda some: tracked(some, "t-SNE"),
    )
    for panel in panels:
        typer.echo(f"{panel.name}: {panel}")
    typer.echo(f"wrote {out}")


@app.command()
def gradcam(
    run: RunFolder,
    out: Out,
    client: Annotated[int, typer.Option(min=0, help="Whose test images, and whose personal model.")] = 0,
    images: Annotated[int, typer.Option(min=1, help="How many images.")] = 6,
) -> None:
    """Draw where the global and the personal model look in a client's test images.

    Half of the images are some on which the two disagree.
    """
    from manyheads.analysis.gradcam import gradcam as draw
    from manyheads.analysis.trained import Trained

    draw(Trained.load(run), client, out, images=images)
    typer.echo(f"wrote {out}")


@app.command()
def gradients(runs: RunFolders, out: Out, labels: Labels = "") -> None:
    """Draw the gradient norm of the clients' objectives over rounds, of runs with run.gradients = true."""
    from manyheads.analysis.gradients import plot_gradients, table

    Console().print(table(plot_gradients(runs, out, listed(labels))))
    typer.echo(f"wrote {out}")


@app.command()
def guidance(
    folder: Annotated[Path, typer.Option(help="Where to store the runs, guidance.png and guidance.csv.")],
    config: ConfigFile = None,
    profile: Profile = None,
    set_: Set = None,
    data_dir: DataDir = None,
    levels: Annotated[str, typer.Option(help="Values of partition.s, separated by commas.")] = "20,40,60,80",
) -> None:
    """Train with guidance by the global model, of the extractor, the classifier, neither and both, over s.

    A study that was stopped goes on with the same command.
    """
    experiment, _ = load_config(config, profile, set_, data_dir)
    values = shares("--levels", levels)
    try:
        from manyheads.analysis.guidance import study
        from manyheads.analysis.guidance_report import plot_guidance, table, write_csv
        from manyheads.report.progress import ProgressReport

        with ProgressReport(Console(stderr=True)) as on_event:
            outcomes = study(experiment, values, folder, on_event)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on", err=True)
        raise typer.Exit(130) from None
    Console().print(table(outcomes))
    write_csv(outcomes, folder / "guidance.csv")
    plot_guidance(outcomes, folder / "guidance.png", experiment)
    typer.echo(f"wrote {folder / 'guidance.csv'} and {folder / 'guidance.png'}")
