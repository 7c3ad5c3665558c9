"""What a comparison runs, as its folder's ``comparison.toml`` says: variants of one config, each with every seed.

Free of torch, so that reports can read it.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from manyheads.errors import InputError, unknown

FILE = "comparison.toml"
_NONE = "none"  # TOML has no null; --set writes it the same way


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Variant(_Table):
    """One row of a comparison.

    Attributes:
        label: its name in tables and pictures.
        folder: the name of its run's folder, without the seed: letters, digits, ``_`` and ``-``.
        minus: the label of the row that reports compare it with; None leaves that to them.
        values: in what it differs from the comparison's config, by dotted key. The data set stays the same.
    """

    label: str
    folder: Annotated[str, Field(pattern=r"^[\w-]+$", max_length=200)]
    minus: str | None = None
    values: dict[str, Any] = {}

    @field_validator("values")
    @classmethod
    def _read(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {key: None if value == _NONE else value for key, value in values.items()}

    @field_serializer("values")
    def _written(self, values: dict[str, Any]) -> dict[str, Any]:
        return {key: _NONE if value is None else value for key, value in values.items()}


class Entry(NamedTuple):
    """One run of a comparison: a variant with a seed, its name in events and results, and its folder's name."""

    variant: Variant
    seed: int
    name: str
    folder: str


class Plan(_Table):
    """The variants, in the order of the tables, and the seeds."""

    seeds: list[Annotated[int, Field(ge=0)]]
    variants: list[Variant]

    @model_validator(mode="before")
    @classmethod
    def _of_methods(cls, plan: dict[str, Any]) -> dict[str, Any]:
        """Folders of version 0.1.0 list methods, which are both label and folder."""
        if "methods" not in plan:
            return plan
        methods = plan["methods"]
        if not isinstance(methods, list):
            raise InputError(f"methods = {methods!r}: must be a list of names, such as ['fedavg', 'fedper']")
        variants = [{"label": name, "folder": name, "values": {"algorithm.name": name}} for name in methods]
        return {**{key: value for key, value in plan.items() if key != "methods"}, "variants": variants}

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        labels = [variant.label for variant in self.variants]
        folders = [variant.folder.lower() for variant in self.variants]  # some file systems do not tell A from a
        for place, variant in enumerate(self.variants):
            for name, value, taken in (("label", variant.label, labels), ("folder", variant.folder, folders)):
                if taken.index(taken[place]) < place:
                    raise InputError(f"variants.{place}.{name} = {value!r}: must differ from those of other variants")
            if variant.minus is not None and variant.minus not in labels:
                raise InputError(f"variants.{place}.minus: {unknown('label', variant.minus, labels)}")
        return self

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The plan of a comparison's folder. Raises InputError where it cannot be read."""
        try:
            return cls(**tomllib.loads((folder / FILE).read_text("utf-8")))
        except ValidationError as error:
            problem = error.errors()[0]
            value = "" if problem["type"] == "missing" else f" = {problem['input']!r}"
            why = f"{'.'.join(map(str, problem['loc']))}{value}: {problem['msg']}"
        except InputError as error:
            why = str(error)
        except (OSError, ValueError, TypeError) as error:
            why = " ".join(str(error).split())
        raise InputError(f"{folder / FILE} is damaged: {why}")

    def to_toml(self) -> str:
        """TOML text that ``read`` reads."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def entries(self) -> Iterator[Entry]:
        """All runs, in the order in which they are run: seed by seed."""
        for seed in self.seeds:
            for variant in self.variants:
                if len(self.seeds) == 1:
                    yield Entry(variant, seed, variant.label, variant.folder)
                else:
                    yield Entry(variant, seed, f"{variant.label}, seed {seed}", f"{variant.folder}-seed{seed}")

    @property
    def minus(self) -> Mapping[str, str]:
        """The label of a row to that of the row that it is compared with, where the plan says so."""
        return {variant.label: variant.minus for variant in self.variants if variant.minus is not None}


def variants(values: Mapping[str, Mapping[str, Any]], minus: Mapping[str, str] | None = None) -> list[Variant]:
    """The variants of a new comparison.

    Args:
        values: label to dotted keys and their values.
        minus: label to the label that it is compared with.
    """
    folders: list[str] = []
    for label in values:
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", label).strip("-")[:60] or "variant"
        tries = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
        taken = {name.lower() for name in folders}  # as in Plan
        folders.append(next(name for name in tries if name.lower() not in taken))
    return [
        Variant(label=label, folder=folder, minus=(minus or {}).get(label), values=dict(of_label))
        for (label, of_label), folder in zip(values.items(), folders, strict=True)
    ]
