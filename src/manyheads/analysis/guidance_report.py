"""The study of guidance as a picture, a table and a file of numbers."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from manyheads.analysis.figure import checked, save
from manyheads.analysis.guidance import PLAIN, WEIGHTS, Outcome, kept
from manyheads.config import Config
from manyheads.errors import InputError
from manyheads.report.curves import COLORS
from manyheads.storage.atomic import one_line, write_bytes

_COLUMNS = ("s", "guided", "guidance", "extractor_weight", "classifier_weight")
_NUMBERS = ("validation_accuracy", "test_accuracy", "minus_neither", "standard_error", "dropped")
_COLORS = {"neither": COLORS[-1], "extractor": COLORS[0], "classifier": COLORS[1], "both": COLORS[2]}
_MARKERS = {"neither": "X", "extractor": "o", "classifier": "s", "both": "D"}
_CAPTION = (
    "Guidance adds w times the MSE to the received model, which is frozen: of the features (extractor), or of the "
    "logits on the client's own features, held fixed (classifier).\n"
    f"Plain: w = {PLAIN:g}. Optimal: the w of {', '.join(f'{w:g}' for w in WEIGHTS)} that is best on the clients' "
    "validation images ({:g} % of theirs); for both, the two w found alone.\n"
    "Accuracy: mean over clients, on their own test images, of the personal models as aggregated last, before local "
    "training (post_agg)."
)

Line = tuple[str, str]


def lines(outcomes: Sequence[Outcome]) -> dict[Line, list[Outcome]]:
    """The outcomes over s, by what is guided and how, without the weights that were only tried."""
    found: dict[Line, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.s):
        if outcome.guidance != "tried":
            found.setdefault((outcome.guided, outcome.guidance), []).append(outcome)
    return found


def write_csv(outcomes: Sequence[Outcome], path: Path) -> None:
    """Writes every outcome, the tried weights among them; accuracies are in [0, 1]. A cell without a number is empty.

    Raises:
        InputError: the file cannot be written.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow((*_COLUMNS, *_NUMBERS))
    for s, guided, guidance, trial, neither in outcomes:
        numbers = (trial.validation, trial.test, *trial.minus(neither))
        weights = (trial.extractor, trial.classifier)
        rows.writerow((f"{s:g}", guided, guidance, *weights, *(_cell(n, 6) for n in numbers), trial.dropped))
    with one_line(f"{path}: cannot be written", InputError):
        write_bytes(path, text.getvalue().encode())


def table(outcomes: Sequence[Outcome]) -> Table:
    """Test accuracy in per cent, and the optimal weights, of every line over s."""
    title = "accuracy on clients' own test images, %, mean over clients; below it the optimal w"
    made = Table(title=title, title_justify="left")
    made.add_column("guided", no_wrap=True)
    made.add_column("guidance", no_wrap=True)
    found = lines(outcomes)
    for outcome in next(iter(found.values())):
        made.add_column(f"s = {outcome.s:g}", justify="right", no_wrap=True)
    for (guided, guidance), line in found.items():
        made.add_row(guided, guidance, *(_cell(100 * each.trial.test, 2, "-") + _weights(each) for each in line))
    return made


@rc_context({"text.parse_math": False})  # a name may hold dollar signs
def plot_guidance(outcomes: Sequence[Outcome], path: Path | str, config: Config) -> None:
    """Draws accuracy over s, and beside it the difference to no guidance.

    Args:
        outcomes: of ``study``.
        path: the PNG to write, 1400 by 800 pixels.
        config: of the study.

    Raises:
        InputError: the picture cannot be written.
    """
    path = checked(path, "--folder")
    figure = Figure(figsize=(14, 8), dpi=100, layout="constrained")
    figure.suptitle(f"Guidance by the global model: {_about(config)}", fontsize=15, x=0.01, ha="left")
    left, right = figure.subplots(1, 2)
    found = lines(outcomes)
    for place, ((guided, guidance), line) in enumerate(found.items()):
        style = {"color": _COLORS[guided], "marker": _MARKERS[guided], "markersize": 8, "linewidth": 2.2}
        if guidance == "plain":
            style |= {"linestyle": (0, (4, 1.5)), "markerfacecolor": "white"}
        s = [outcome.s for outcome in line]
        name = guided if guidance == "none" else f"{guided}, {guidance}"
        left.plot(s, [100 * outcome.trial.test for outcome in line], label=name, **style)
        if guidance != "none":
            differences = [[100 * n for n in outcome.trial.minus(outcome.neither)] for outcome in line]
            means, errors = zip(*differences, strict=True)
            shifted = [each + (place - len(found) / 2) * (max(s) - min(s)) / 120 for each in s]  # bars side by side
            right.errorbar(shifted, means, errors, capsize=3, elinewidth=1, **style)
    right.axhline(0, color=_COLORS["neither"], linewidth=1.2)
    _dress(left, outcomes, "accuracy, %", "Accuracy")
    _dress(right, outcomes, "percentage points", "Difference to no guidance; bars: standard error over clients, paired")
    left.legend(fontsize=11, frameon=False, handlelength=4)
    caption = _CAPTION.format(100 * kept(config)) + _diverged(found)
    figure.supxlabel(caption, fontsize=11, x=0.01, ha="left")
    save(figure, path, "--folder")


def _about(config: Config) -> str:
    train = config.train
    return (
        f"{config.data.source}; {config.partition.clients} clients, participation {train.participation:g}; "
        f"model {config.model.name}; rounds {train.rounds}, local epochs {train.epochs}; seed {config.run.seed}"
    )


def _dress(axes: Axes, outcomes: Sequence[Outcome], quantity: str, title: str) -> None:
    axes.set_title(title, fontsize=13, loc="left")
    axes.set_xticks(sorted({outcome.s for outcome in outcomes}))
    axes.set_xlabel("s: per cent of a client's images that are spread over all classes", fontsize=12)
    axes.set_ylabel(quantity, fontsize=12)
    axes.tick_params(labelsize=11)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _diverged(found: Mapping[Line, Sequence[Outcome]]) -> str:
    """A line that says which of the drawn runs had uploads that were not finite; "" where none had."""
    runs = [
        f"{guided}, {guidance}, s = {each.s:g}: {each.trial.dropped}"
        for (guided, guidance), line in found.items()
        for each in line
        if each.trial.dropped
    ]
    return f"\nUploads that were not finite and were left out: {'; '.join(runs)}." if runs else ""


def _cell(number: float, digits: int, missing: str = "") -> str:
    return missing if math.isnan(number) else f"{number:.{digits}f}"


def _weights(outcome: Outcome) -> str:
    if outcome.guidance != "optimal":
        return ""
    used = [weight for weight in (outcome.trial.extractor, outcome.trial.classifier) if weight]
    return f"\n{', '.join(f'{weight:g}' for weight in used)}"
