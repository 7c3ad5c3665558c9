"""Writes what the code says of every method into its page in ``docs/methods``: ``python docs/generate.py [NAME ...]``.

A page's text between ``<!-- generated -->`` and ``<!-- /generated -->`` is replaced, and so is the whole table of the
index; everything else is written by hand. What follows ``<!-- measured -->`` comes from a run of the method: three
rounds of two clients with 20 images of MNIST's shape each.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from manyheads import Config, Experiment, dataset_from_arrays, new_method
from manyheads.algorithms import registry
from manyheads.contract import Part, Tree
from manyheads.data.dataset import Dataset
from manyheads.report.rows import headlines, line_name

PAGES = Path(__file__).parent / "methods"
BEGIN, MEASURED, END = "<!-- generated -->", "<!-- measured -->", "<!-- /generated -->"
ROUNDS, OWN, AUXILIARY = 3, 20, 20
SMALL = {
    "model.name": "cnn",
    "partition.kind": "iid",
    "partition.clients": 2,
    "partition.min_train": 2,
    "data.auxiliary": AUXILIARY,
    "train.rounds": ROUNDS,
    "train.participation": 1.0,
    "train.epochs": 1,
    "run.engine": "serial",
}
QUICK = {"fedfed": {"distill_rounds": 1}}  # all of its rounds cost the same bytes
ALWAYS, LAST = "every round", "third round"


def main() -> None:
    """Writes all pages, or those of the methods that are named; then the index."""
    for name in sys.argv[1:] or registry.names():
        path = PAGES / f"{name}.md"
        old = path.read_text("utf-8") if path.exists() else new_method.fill("page.md.txt", cls=title(name))
        path.write_text(page(name, old, measured(name)), "utf-8")
        print(f"wrote {path}")
    path = PAGES / "README.md"
    path.write_text(index(path.read_text("utf-8"), PAGES), "utf-8")


def page(name: str, old: str, run: str | None = None) -> str:
    """A page with its generated part renewed.

    Args:
        name: the method.
        old: the page as it is.
        run: what ``measured`` gives; None keeps what the page has.
    """
    if run is None:
        run = old.partition(MEASURED)[2].partition(END)[0].strip()
    return replaced(old, f"{source(name)}\n\n{MEASURED}\n\n{run}")


def index(old: str, pages: Path) -> str:
    """The index with its table renewed; bytes are those of ``pages``."""
    rows = []
    for name in registry.names():
        sizes = re.search(
            rf"^\| (?:{ALWAYS}|{LAST}) \| (.*) \| (.*) \|$", (pages / f"{name}.md").read_text("utf-8"), re.M
        )
        up, down = sizes.groups() if sizes else ("", "")
        paper = ": ".join(citation(name).split(": ")[1:])
        rows.append((f"[`{name}`]({name}.md)", registry.describe(name), paper or "-", up, down))
    return replaced(old, table(("name", "what it is", "paper", "bytes up", "bytes down"), rows))


def replaced(old: str, new: str) -> str:
    """A page with the text between the marks replaced."""
    before, _, rest = old.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{new.strip()}\n\n{END}{rest.partition(END)[2]}"


# from the source


def title(name: str) -> str:
    """A method's name in words."""
    return docstring(name)[0].rstrip(".")


def citation(name: str) -> str:
    """The paper, in one line; "" where there is none."""
    about = " ".join(docstring(name)[1].split())
    return about if re.search(r"\b(19|20)\d\d\b", about) else ""


def docstring(name: str) -> list[str]:
    """The paragraphs of the docstring of a method's file."""
    return (inspect.getdoc(sys.modules[registry.load(name).__module__]) or "").split("\n\n")


def source(name: str) -> str:
    """What the file of a method says of it."""
    file = f"../../src/manyheads/algorithms/{name}.py"
    options = [(f"`{key}`", f"`{value}`", meaning(name, key)) for key, value in registry.fields(name).items()]
    return "\n\n".join(
        [
            f"*{registry.describe(name)}*",
            *docstring(name)[1:],
            f"[Source]({file}). `manyheads run --set algorithm.name={name}`",
            "## Hyper-parameters",
            table(("`algorithm.`", "default", "meaning"), options) if options else "None.",
        ]
    )


def meaning(name: str, option: str) -> str:
    """What a hyper-parameter means, from the docstring of the class or of one that it extends."""
    for cls in registry.load(name).__mro__:
        found = re.search(rf"^    {option}: (.*(?:\n {{5,}}.*)*)", inspect.cleandoc(cls.__doc__ or ""), re.M)
        if found:
            return " ".join(found[1].split())
    raise ValueError(f"{name}: the docstring says nothing of {option}")


# from a run


def measured(name: str) -> str:
    """What crosses the wire, what stays, and which numbers there are, from a run."""
    values = {"algorithm.name": name, **{f"algorithm.{key}": value for key, value in QUICK.get(name, {}).items()}}
    experiment = Experiment(Config().with_values(SMALL | values), dataset=images())
    result = experiment.run()
    last = experiment.algorithm.stages(ROUNDS)[-1]
    ctx, method = experiment.setting(last).server(ROUNDS), last.algorithm
    declared = {"model": method.uploaded(ctx), **method.sends, "weight": ()}
    sent = {field: ctx.take(ctx.initial, what) if isinstance(what, Part) else what for field, what in declared.items()}
    received, kept = method.broadcast(result.server, 0, ctx), result.private[0]
    return "\n\n".join(
        [
            "## What crosses the wire",
            table(
                ("a client", "sends, bytes", "receives, bytes"),
                [*traffic(result.rows), ("fields", fields(sent), fields({f: received.get(f) for f in received}))],
            ),
            f"For the papers' CNN on 28x28 gray images with 10 classes, and a client with {OWN} images. A field "
            "that it holds already is not sent again.",
            f"Stays with the client from round to round: {fields({field: kept.get(field) for field in kept})}.",
            "## Which numbers there are",
            table(
                ("in the tables", "model", "measured on", "moment"),
                [
                    (f"`{line_name(name, name, key)}`", key.model, f"{key.data}, {key.average}", f"`{key.moment}`")
                    for key in headlines(result.rows[-1])
                ],
            ),
        ]
    )


def traffic(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Client 0's bytes in earlier stages, in the first and in the last round; one line where these are equal."""
    found = []
    for row in rows:
        when = f"stage {row['stage'] + 1}" if "stage" in row else {0: "first round", ROUNDS - 1: LAST}.get(row["round"])
        if when and row["cohort"]:
            found.append((when, *(f"{row['bytes'][way]['0']:,}" for way in ("up", "down"))))
    *before, first, last = found
    return [*before, (ALWAYS, *last[1:])] if first[1:] == last[1:] else found


def fields(values: Mapping[str, Any]) -> str:
    """The fields of a record, and what is in them; "nothing" where all are empty."""
    said = {field: content(value) for field, value in values.items()}
    return ", ".join(f"`{field}`{text}" for field, text in said.items() if text is not None) or "nothing"


def content(value: Any) -> str | None:
    """The modules of a tree, the shape of a tensor; None for an empty tree."""
    if isinstance(value, Tree):
        return f" ({', '.join(dict.fromkeys(key.partition('.')[0] for key in value))})" if value else None
    shape = value if isinstance(value, tuple) else getattr(value, "shape", ())
    return f" ({' x '.join(map(str, shape))})" if shape else ""


@cache
def images() -> Dataset:
    """Noise, with every class in it."""

    def noise(n: int) -> tuple[np.ndarray, np.ndarray]:
        return np.random.default_rng(n).integers(0, 256, (n, 28, 28), dtype=np.uint8), np.arange(n) % 10

    return dataset_from_arrays(*noise(2 * OWN + AUXILIARY), *noise(20))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(head)
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


if __name__ == "__main__":
    main()
