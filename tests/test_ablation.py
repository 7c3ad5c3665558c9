"""``ablate``: a method with and without its parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import toys
from typer.testing import CliRunner

from manyheads.algorithms import registry
from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedecouple import FedeCouple
from manyheads.cli import app
from manyheads.comparison import ablate, compare
from manyheads.config import Config
from manyheads.errors import InputError
from manyheads.events import Event, Warned
from manyheads.plan import Plan

SMALL = toys.small()
FIG_3 = ["persistent heads", "+ proximal term", "+ distillation", "+ recalibration = full"]
PARTS = ["GLF", "GFA", "GPC", "similarity", "RandAugment"]


def personal(result: Any) -> list[Any]:
    return [toys.metrics(result, "personal", moment) for moment in ("post_agg", "post_adapt", "post_local")]


def test_pfedkdh_is_built_up_from_persistent_heads(tmp_path: Path) -> None:
    results = ablate(SMALL, [0], tmp_path / "run", dataset=toys.dataset())
    assert list(results) == FIG_3
    assert Plan.read(tmp_path / "run").minus == {label: above for above, label in pairwise(FIG_3)}
    others = compare(SMALL, ["fedper", "pfedkdh"], dataset=toys.dataset())
    assert results[FIG_3[0]].private == others["fedper"].private
    assert toys.plain(results[FIG_3[3]].rows) == toys.plain(others["pfedkdh"].rows)
    assert all(one.private != other.private for one, other in combinations(results.values(), 2))
    for result in results.values():  # the same cohorts, and the same start
        assert [row["cohort"] for row in result.rows] == [row["cohort"] for row in others["fedper"].rows]
        assert personal(result)[0][0] == personal(others["fedper"])[0][0] != []


def test_parts_of_fedecouple_are_switched_off_alone(tmp_path: Path) -> None:
    config = SMALL.with_method("fedecouple").with_values({"train.rounds": 1})
    results = ablate(config, [1], tmp_path / "run", dataset=toys.dataset())
    labels = ["full", *(f"without {part}" for part in PARTS)]
    assert list(results) == labels
    plan = Plan.read(tmp_path / "run")
    assert plan.minus == dict.fromkeys(labels[1:], "full")
    assert plan.variants[0].values == {}
    stored = Config.load(tmp_path / "run" / "without-RandAugment" / "config.toml")
    assert stored == config.with_seed(1).with_values({"algorithm.augment": False})


@pytest.mark.parametrize("epochs", [1, 2, 5])
@pytest.mark.parametrize(
    "given", [{}, {"global_epochs": 2}, {"local_epochs": 3}, {"global_epochs": 4, "local_epochs": 1}]
)
@pytest.mark.parametrize("order", ["gpc_first", "glf_first"])
def test_without_glf_the_backbone_trains_as_long_and_only_for_the_private_head(
    epochs: int, given: dict[str, int], order: str
) -> None:
    method = FedeCouple(**given, order=order, head_epochs=2)
    full = dict(method.phases(epochs))
    without = dict(FedeCouple(**{**vars(method), **method.ablations(epochs)["without GLF"]}).phases(epochs))
    assert without == {"gpc": 2, "glf_global": 0, "glf_local": full["glf_global"] + full["glf_local"]}
    assert full["glf_global"] > 0


def test_what_is_off_already_is_not_run(tmp_path: Path) -> None:
    heard: list[Event] = []
    config = SMALL.with_values({"algorithm.prox_weight": 0.0, "algorithm.recalibration_epochs": 0})
    results = ablate(config, [0], tmp_path / "run", heard.append, dataset=toys.dataset())
    assert list(results) == ["persistent heads", "+ recalibration = full"]
    assert Plan.read(tmp_path / "run").minus == {"+ recalibration = full": "persistent heads"}
    same = "not run, since with this config it is the same as"
    assert [event for event in heard if isinstance(event, Warned)][:2] == [
        Warned("+ proximal term", f"{same} 'persistent heads'"),
        Warned("+ distillation", f"{same} '+ recalibration = full'"),
    ]


def test_a_config_without_any_part_is_refused(tmp_path: Path) -> None:
    off = {"kd_weight": 0.0, "prox_weight": 0.0, "recalibration_epochs": 0}
    config = SMALL.with_values({f"algorithm.{key}": value for key, value in off.items()})
    with pytest.raises(InputError, match=r"^algorithm\.name = 'pfedkdh': with this config none of its parts is on$"):
        ablate(config, [0], tmp_path / "run", dataset=toys.dataset())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local_only"])
def test_a_method_without_parts_names_those_that_have_some(method: str) -> None:
    line = f"^algorithm.name = '{method}' declares no parts; methods that do: .*fedecouple.*, pfedkdh.*$"
    with pytest.raises(InputError, match=line):
        ablate(SMALL.with_method(method), dataset=toys.dataset())


@pytest.mark.parametrize(
    ("rows", "minus"),
    [
        ({"no clip": {"rate": 2.0}}, {"no clip": "full"}),
        ({"mine": {}, "slow": {"rate": 0.5}, "fast": {"rate": 2.0}}, {"slow": "mine", "fast": "mine"}),
        ({"slow": {"rate": 0.5}, "mine": {}, "fast": {"rate": 2.0}}, {"slow": "mine", "fast": "mine"}),
        ({"slow": {"rate": 0.5}, "fast": {"rate": 2.0}, "mine": {}}, {"fast": "slow", "mine": "fast"}),
    ],
)
def test_any_method_may_declare_parts_and_name_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Mapping[str, Mapping[str, float]], minus: dict[str, str]
) -> None:
    @dataclass(frozen=True)
    class Own(FedAvg):
        rate: float = 1.0

        def ablations(self, epochs: int) -> Mapping[str, Mapping[str, Any]]:
            assert epochs == SMALL.train.epochs
            return rows

    monkeypatch.setattr(registry, "load", lambda name: Own)
    monkeypatch.setattr(registry, "fields", lambda name: {"rate": 1.0})
    results = ablate(SMALL.with_method("own"), [0], tmp_path / "run", dataset=toys.dataset())
    assert list(results) == (list(rows) if {} in rows.values() else ["full", *rows])
    assert Plan.read(tmp_path / "run").minus == minus


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    tiny = ["data.limit=120", "data.auxiliary=20", "partition.clients=3", "partition.min_train=5", "train.rounds=1"]
    sets = [part for value in [*tiny, "model.hidden=[8]"] for part in ("--set", value)]

    def call(*args: str) -> Any:
        more = sets if args[0] == "ablate" else []
        return CliRunner().invoke(app, [*args, *more], catch_exceptions=False)

    return call


def test_the_command_runs_and_shows_an_ablation(command: Callable[..., Any], tmp_path: Path) -> None:
    done = command("ablate", "--method", "pfedkdh", "--set", "algorithm.kd_weight=0.3")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "runs" / "digits-pfedkdh-ablate"
    assert Config.load(folder / "distillation" / "config.toml").algorithm.options["kd_weight"] == 0.3
    assert f"wrote runs/{folder.name}/curves.png" in done.output
    shown = command("show", str(folder)).output
    assert shown in done.output
    assert shown.startswith("pfedkdh; digits; ")
    before, after = shown.split("clients' own test images, after local training")
    answers = [line.partition("  ")[0] for line in before.splitlines() if "post_agg  " in line and "personal" in line]
    assert answers == [f"{label} ({which})" for which in ("Fair", "teacher, prior") for label in FIG_3]
    steps = after.split("difference, percentage points")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in steps.splitlines()]
    assert [row[:2] for row in rows if row and row[0] in FIG_3] == [[label, above] for above, label in pairwise(FIG_3)]


def test_the_command_wants_another_method(command: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="'fedavg' declares no parts"):
        command("ablate", "--method", "fedavg")
    with pytest.raises(InputError, match="unknown method 'fedecuple'; did you mean 'fedecouple'"):
        command("ablate", "--method", "fedecuple")


def test_parts_that_are_off_are_no_rows() -> None:
    rows = FedeCouple(global_epochs=0, head_epochs=0).ablations(2)
    assert list(rows) == ["without GFA", "without similarity", "without RandAugment"]
