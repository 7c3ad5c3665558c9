"""One experiment is one validated model: TOML in, TOML out.

Every error is an ``InputError`` of one line that names the dotted field, the value and the valid range or nearest key.
Nothing here imports torch or numpy, so that a wrong config is refused within a moment.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import AfterValidator, Field, model_validator

from manyheads import config_options
from manyheads.config_errors import unknown_key
from manyheads.config_section import KEYS, OptionSection, Section
from manyheads.errors import InputError, unknown

_PROFILES = files("manyheads") / "profiles"
Count = Annotated[int, Field(ge=1, le=2**31)]


class DataConfig(Section):
    """Where the images come from."""

    section = "data"
    source: Annotated[str, AfterValidator(config_options.check_source)] = Field(
        "digits", description="where the images come from: manyheads list data"
    )
    dir: str | None = Field(None, description="folder with the data set's files, searched with its subfolders")
    auxiliary: int | None = Field(
        None, ge=0, description="images set aside for the server; unset: min(5000, 10 % of train)"
    )
    limit: Count | None = Field(None, description="use only so many train images, the same ones for all seeds")
    validation: float = Field(0.0, ge=0, lt=1, description="share of each client's train images kept for validation")


class PartitionConfig(OptionSection):
    """How the images are split over the clients; other keys are options of the kind."""

    section = "partition"
    kind: str = Field("dirichlet", description="how labels are spread over clients: manyheads list partitions")
    clients: Count = Field(20, description="how many clients there are")
    min_train: Count | None = Field(
        None, description="least train images a client has; unset: 64, or 10 for small sets"
    )


class ModelConfig(OptionSection):
    """The network; other keys are options of its builder."""

    section = "model"
    name: str = Field("mlp", description="the network: manyheads list models, or package.module:factory")


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
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="bf16: products in half the bits, where the processor has it; weights stay fp32"
    )


class AlgorithmConfig(OptionSection):
    """The method; other keys are fields of the method's dataclass."""

    section = "algorithm"
    name: str = Field("pfedkdh", description="the method: manyheads list methods")


class RunConfig(Section):
    """How the experiment is run."""

    section = "run"
    seed: int = Field(0, ge=0, description="decides the partition, the initial weights and every draw")
    engine: Literal["auto", "serial", "threads", "processes", "wire", "ray", "vectorized"] = Field(
        "auto", description="what runs the clients; all give the same bits, but for vectorized"
    )
    workers: Count | None = Field(None, description="clients trained at a time; unset: as many as there are cores")
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="where models are trained and tested; the same bits are promised for cpu only"
    )
    eval_every: Count = Field(1, description="rounds between evaluations")
    adapt_every: Count | None = Field(
        None, description="rounds between evaluations after adaptation; unset: 1, or 10 where a whole model adapts"
    )
    non_finite: Literal["stop", "drop"] = Field(
        "stop",
        description="on a loss or upload that is not finite, or workers lost twice: stop the run, or drop the client",
    )
    buffers: Literal["average", "private", "reset"] = Field(
        "average", description="what happens to buffers such as BatchNorm's statistics"
    )
    gradients: bool = Field(
        False, description="log the squared gradient norm of every client's local objective, before it trains"
    )


class RealityConfig(Section):
    """Clients that fail, and a virtual clock; as it stands, nothing is simulated."""

    section = "reality"
    drop: float = Field(0.0, ge=0, le=1, description="chance that a client of the cohort never answers")
    sample_seconds: float = Field(
        0.0, ge=0, le=1e6, description="virtual seconds that a median client trains on an image, once"
    )
    spread: float = Field(
        0.0, ge=0, le=10, description="how much clients differ in speed: sigma of a log-normal, drawn once a run"
    )
    jitter: float = Field(0.0, ge=0, le=10, description="the same, drawn for every client and round")
    bandwidth: float | None = Field(None, ge=1, description="bytes a virtual second; unset: messages take no time")
    deadline: float | None = Field(None, gt=0, description="virtual seconds that a round waits; unset: for everybody")
    late: Literal["drop", "partial"] = Field(
        "drop", description="a client that would be late: left out, or trained for the epochs that it has time for"
    )

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        trains = self.sample_seconds > 0
        needs = {
            "spread": ("sample_seconds; set it too", trains),
            "jitter": ("sample_seconds; set it too", trains),
            "deadline": ("sample_seconds or bandwidth; set one", trains or self.bandwidth is not None),
            "late": ("deadline; set it too", self.deadline is not None),
        }
        for key, (what, there) in needs.items():
            if not there and (value := getattr(self, key)) != type(self).model_fields[key].default:
                raise InputError(f"reality.{key} = {value!r}: has no effect without reality.{what}")
        return self


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
    reality: RealityConfig = Field(default_factory=RealityConfig)

    @classmethod
    def load(cls, path: Path | str, overrides: Iterable[str] = ()) -> "Config":
        """Read a TOML file; ``overrides`` are texts such as ``"train.lr=0.1"`` that win over it.

        Raises:
            InputError: when the file cannot be read, is not TOML, or holds an unknown key or a value out of range.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"cannot read config {str(path)!r}: {reason}") from None
        return cls.parse(text, overrides, origin=str(path))

    @classmethod
    def profile(cls, name: str, overrides: Iterable[str] = ()) -> "Config":
        """Read one of the ready configs (``manyheads list profiles``). Raises InputError for an unknown name."""
        if name not in profiles():
            raise InputError(f"--profile: {unknown('profile', name, profiles())}")
        return cls.parse((_PROFILES / f"{name}.toml").read_text("utf-8"), overrides, origin=f"profile {name}")

    @classmethod
    def parse(cls, text: str, overrides: Iterable[str] = (), origin: str = "config") -> "Config":
        """Read TOML text; ``origin`` names it in errors."""
        try:
            tables: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{origin} is not valid TOML: {' '.join(str(error).split())}") from None
        return cls(**_merged(tables, map(_override, overrides)))

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
        return "\n".join(_written(name, getattr(self, name), comments) for name in type(self).model_fields)


_SECTIONS = {name: type(table) for name, table in Config()}
_CHOICES = {f"{name}.{key}" for name in KEYS for key in KEYS[name] if key in ("kind", "name")}


def profiles() -> dict[str, str]:
    """The ready configs: name -> one line that says what each is for (the file's first comment)."""
    found = sorted(_PROFILES.iterdir(), key=lambda file: file.name)
    names = [file.name.removesuffix(".toml") for file in found if file.name.endswith(".toml")]
    return {name: about_profile(name).splitlines()[0].lstrip("# ") for name in names}


def about_profile(name: str) -> str:
    """All that a ready config says of itself, as comments: also what of a paper's setting a config cannot say."""
    text = (_PROFILES / f"{name}.toml").read_text("utf-8")
    return text.partition("\n[")[0].strip() + "\n"


def _override(text: str) -> tuple[str, Any]:
    """Dotted key and value of a text such as ``"train.lr=0.1"``; a bare word is text, ``none`` is no value."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not all(key.split(".")):
        raise InputError(f"--set {text!r}: write it as key=value, such as train.lr=0.1")
    if value == "none":
        return key, None
    try:
        parsed = tomllib.loads(f"value = {value}")
    except ValueError:  # of which TOMLDecodeError is one
        return key, value
    return key, parsed["value"] if len(parsed) == 1 else value


def _merged(tables: Mapping[str, Any], overrides: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    merged = {name: dict(table) if isinstance(table, Mapping) else table for name, table in tables.items()}
    # Choices come first: another method has other options, and those of the old one would only be refused.
    for dotted, value in sorted(overrides, key=lambda item: item[0] not in _CHOICES):
        section, _, key = dotted.partition(".")
        if section in KEYS and not key:
            raise InputError(f"{section!r} is a table: name a key of it, such as {section}.{KEYS[section][0]}")
        if section not in KEYS:
            raise InputError(unknown_key("", section, KEYS, KEYS))
        table = merged.setdefault(section, {})
        if not isinstance(table, dict):
            continue  # refused by pydantic, which says that a table is wanted
        if dotted in _CHOICES and value != table.get(key, _SECTIONS[section].model_fields[key].default):
            merged[section] = table = {k: v for k, v in table.items() if k in KEYS[section]}
        table[key] = value
    return merged


def _written(name: str, section: Section, comments: bool) -> str:
    """A table as TOML text; a field that is None becomes a comment, since TOML has no null."""
    lines = [f"[{name}]"]
    for key, value in section.model_dump().items():
        field = type(section).model_fields.get(key)
        plain = key if key.isascii() else _value(key)  # TOML wants other letters in quotes
        line = f"# {plain} =" if value is None else f"{plain} = {_value(value)}"
        note = field.description if field and comments else None
        lines.append(f"{line:<24}# {note}" if note else line)
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"  # tomli_w would spread it over several lines
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")
