"""One experiment is one validated model: TOML in, TOML out.

Every error is an ``InputError`` of one line that names the dotted field, the value and the valid range or nearest key.
Nothing here imports torch or numpy, so that a wrong config is refused within a moment.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from manyheads import config_options
from manyheads.config_errors import first_error, unknown_key
from manyheads.config_toml import read_override, write_section
from manyheads.errors import InputError, unknown

_PROFILES = files("manyheads") / "profiles"
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of the config. Raises ``InputError`` where pydantic would raise its own many-line error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
    section: ClassVar[str] = ""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(first_error(error, type(self), self.section, _keys())) from None


class OptionSection(Section):
    """A table whose first key chooses something from a catalog and whose other keys are the options of that choice.

    Options that are left out get the catalog's defaults, so that a resolved config says everything.
    """

    model_config = ConfigDict(extra="allow")
    chooser: ClassVar[str] = "name"

    @classmethod
    def defaults(cls, choice: str) -> Mapping[str, Any] | None:
        """The options of ``choice`` with their defaults; None when anything is allowed.

        Raises:
            InputError: when there is no such choice.
        """
        raise NotImplementedError

    @property
    def options(self) -> dict[str, Any]:
        """The options of the choice, all of them, in the catalog's order."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        defaults = self.defaults(getattr(self, self.chooser))
        given = self.options
        resolved = given
        if defaults is not None:
            for key in given:
                if key not in defaults:
                    raise InputError(unknown_key(self.section, key, [*type(self).model_fields, *defaults], _keys()))
            resolved = {key: given.get(key, default) for key, default in defaults.items()}
        checked = {
            key: config_options.check(f"{self.section}.{key}", value, (defaults or {}).get(key))
            for key, value in resolved.items()
        }
        object.__setattr__(self, "__pydantic_extra__", checked)
        return self


class DataConfig(Section):
    """Where the images come from."""

    section = "data"
    source: str = Field("digits", description="where the images come from: manyheads list data")
    dir: str | None = Field(None, description="folder with the data set's files, searched with its subfolders")
    auxiliary: int | None = Field(
        None, ge=0, description="images set aside for the server; unset: min(5000, 10 % of train)"
    )
    limit: Count | None = Field(None, description="use only so many train images, the same ones for all seeds")
    validation: float = Field(0.0, ge=0, lt=1, description="share of each client's train images kept for validation")

    @model_validator(mode="after")
    def _known(self) -> Self:
        config_options.check_source(self.source)
        return self


class PartitionConfig(OptionSection):
    """How the images are split over the clients; other keys are options of the kind."""

    section = "partition"
    chooser = "kind"
    kind: str = Field("dirichlet", description="how labels are spread over clients: manyheads list partitions")
    clients: Count = Field(20, description="how many clients there are")
    min_train: Count | None = Field(
        None, description="least train images a client has; unset: 64, or 10 for small sets"
    )

    @classmethod
    def defaults(cls, choice: str) -> Mapping[str, Any] | None:
        """Options of a partition kind."""
        return config_options.of_partition(choice)


class ModelConfig(OptionSection):
    """The network; other keys are options of its builder."""

    section = "model"
    name: str = Field("mlp", description="the network: manyheads list models, or package.module:factory")

    @classmethod
    def defaults(cls, choice: str) -> Mapping[str, Any] | None:
        """Options of a network; None for a factory of the user's own."""
        return config_options.of_model(choice)


class TrainConfig(Section):
    """Federated training; the defaults are pFedKDH's Table 1."""

    section = "train"
    rounds: Count = Field(30, description="rounds of training")
    participation: float = Field(0.5, gt=0, le=1, description="share of the clients that take part in a round")
    epochs: Count = Field(2, description="local epochs a round")
    batch: Count = Field(64, description="images a step")
    lr: float = Field(0.015, gt=0, description="learning rate of SGD")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of SGD")
    clip: float | None = Field(None, gt=0, description="largest norm of a step's gradient; unset: no limit")


class AlgorithmConfig(OptionSection):
    """The method; other keys are fields of the method's dataclass."""

    section = "algorithm"
    name: str = Field("pfedkdh", description="the method: manyheads list methods")

    @classmethod
    def defaults(cls, choice: str) -> Mapping[str, Any] | None:
        """Fields of a method."""
        return config_options.of_method(choice)


class RunConfig(Section):
    """How the experiment is run."""

    section = "run"
    seed: int = Field(0, ge=0, description="decides the partition, the initial weights and every draw")
    engine: Literal["auto", "serial", "threads"] = Field(
        "auto", description="what runs the clients; all give the same bits"
    )
    workers: Count | None = Field(None, description="clients trained at a time; unset: as many as there are cores")
    eval_every: Count = Field(1, description="rounds between evaluations")
    adapt_every: Count | None = Field(
        None, description="rounds between evaluations after adaptation; unset: 1, or 10 where a whole model adapts"
    )
    non_finite: Literal["stop", "drop"] = Field(
        "stop", description="on a loss or upload that is not finite: stop the run, or drop the client"
    )
    buffers: Literal["average", "private", "reset"] = Field(
        "average", description="what happens to buffers such as BatchNorm's statistics"
    )


class Config(Section):
    """A whole experiment.

    Attributes are the tables of the TOML file; each has defaults, so that ``Config()`` is a valid small experiment.
    """

    data: DataConfig = Field(default_factory=DataConfig)
    partition: PartitionConfig = Field(default_factory=PartitionConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    run: RunConfig = Field(default_factory=RunConfig)

    @classmethod
    def load(cls, path: Path | str, overrides: Iterable[str] = ()) -> "Config":
        """Read a TOML file; ``overrides`` are texts such as ``"train.lr=0.1"`` that win over it.

        Raises:
            InputError: when the file cannot be read, is not TOML, or holds an unknown key or a value out of range.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"cannot read config {str(path)!r}: {reason}") from None
        return cls.parse(text, overrides, origin=str(path))

    @classmethod
    def profile(cls, name: str, overrides: Iterable[str] = ()) -> "Config":
        """Read one of the ready configs (``manyheads list profiles``). Raises InputError for an unknown name."""
        return cls.parse(_profile(name), overrides, origin=f"profile {name}")

    @classmethod
    def parse(cls, text: str, overrides: Iterable[str] = (), origin: str = "config") -> "Config":
        """Read TOML text; ``origin`` names it in errors."""
        try:
            tables: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{origin} is not valid TOML: {' '.join(str(error).split())}") from None
        return cls(**_merged(tables, map(read_override, overrides)))

    def with_values(self, values: Mapping[str, Any]) -> "Config":
        """The same experiment with other values for dotted keys, such as ``{"run.seed": 1}``, checked again.

        Options of a choice that changes (``algorithm.name``, ``partition.kind``, ``model.name``) are dropped.
        """
        return Config(**_merged(self.model_dump(), values.items()))

    def with_method(self, name: str) -> "Config":
        """The same experiment with another method, which keeps the options only if it is the same one."""
        return self.with_values({"algorithm.name": name})

    def with_seed(self, seed: int) -> "Config":
        """The same experiment with another seed (at least 0)."""
        return self.with_values({"run.seed": seed})

    def to_toml(self, comments: bool = False) -> str:
        """Every field as TOML text that ``parse`` reads back as an equal config.

        TOML has no null: a field without a value is a comment. With ``comments`` each key says what it means.
        """
        return "\n".join(write_section(name, getattr(self, name), comments) for name in type(self).model_fields)


_TABLES = (DataConfig, PartitionConfig, ModelConfig, TrainConfig, AlgorithmConfig, RunConfig)
_SECTIONS: dict[str, type[Section]] = {table.section: table for table in _TABLES}


def profiles() -> dict[str, str]:
    """The ready configs: name -> one line that says what each is for (the file's first comment)."""
    found = sorted(_PROFILES.iterdir(), key=lambda file: file.name)
    texts = {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in found if file.name.endswith(".toml")}
    return {name: text.splitlines()[0].lstrip("# ") for name, text in texts.items()}


def _profile(name: str) -> str:
    if name not in profiles():
        raise InputError(f"--profile: {unknown('profile', name, profiles())}")
    return (_PROFILES / f"{name}.toml").read_text("utf-8")


def _keys() -> dict[str, list[str]]:
    return {name: list(section.model_fields) for name, section in _SECTIONS.items()}


def _merged(tables: Mapping[str, Any], overrides: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    merged = {name: dict(table) if isinstance(table, Mapping) else table for name, table in tables.items()}
    keys = _keys()
    # Choices come first: another method has other options, and those of the old one would only be refused.
    for dotted, value in sorted(overrides, key=lambda item: not item[0].endswith((".name", ".kind"))):
        section, _, key = dotted.partition(".")
        if section not in _SECTIONS or not key:
            raise InputError(unknown_key("", section, keys, keys))
        table = merged.setdefault(section, {})
        if not isinstance(table, dict):
            continue  # refused by pydantic, which says that a table is wanted
        cls = _SECTIONS[section]
        if (
            issubclass(cls, OptionSection)
            and key == cls.chooser
            and value != table.get(key, cls.model_fields[key].default)
        ):
            merged[section] = table = {k: v for k, v in table.items() if k in keys[section]}
        table[key] = value
    return merged
