"""What ``comparison.toml`` says, and the names of folders."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manyheads.algorithms import registry
from manyheads.errors import InputError
from manyheads.plan import FILE, Plan, variants


def _rows(*names: str, minus: str = "") -> str:
    """Text of variants given as label/folder; the last one has the minus."""
    rows = ['[[variants]]\nlabel = "{}"\nfolder = "{}"\n'.format(*name.split("/")) for name in names]
    return "seeds = [0]\n" + "".join(rows) + (f'minus = "{minus}"\n' if minus else "")


def read(text: str, folder: Path) -> Plan:
    (folder / FILE).write_text(text, "utf-8")
    return Plan.read(folder)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=20), max_size=6, unique=True))
@example(["../..", "/etc", "a/b", "a b", "A-B", "base.toml", "con", "x" * 300, ""])
def test_folders_are_safe_and_told_apart_by_any_file_system(labels: list[str]) -> None:
    folders = [variant.folder for variant in variants({label: {} for label in labels})]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,70}", name) for name in folders)
    assert len({name.lower() for name in folders}) == len(labels)


def test_folders_look_like_their_labels() -> None:
    labels = ["without GLF", "+ proximal term", "Proximal term", "+", *registry.names()]
    folders = [variant.folder for variant in variants({label: {} for label in labels})]
    assert folders == ["without-GLF", "proximal-term", "Proximal-term-2", "variant", *registry.names()]


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    values = {"algorithm.head_lr": None, "algorithm.kd_weight": 0.5, "algorithm.augment": False, "model.hidden": [4, 8]}
    rows = variants({"full": {}, 'a "row" = é': values}, {'a "row" = é': "full"})
    plan = Plan(seeds=[3, 1], variants=rows)
    assert read(plan.to_toml(), tmp_path) == plan
    assert plan.variants[1].values == values
    assert plan.minus == {'a "row" = é': "full"}


def test_runs_come_seed_by_seed_and_are_named_after_label_and_seed() -> None:
    rows = variants({"full": {}, "no GPC": {}})
    entries = [entry[1:] for entry in Plan(seeds=[2, 0], variants=rows).entries()]
    assert entries == [
        (2, "full, seed 2", "full-seed2"),
        (2, "no GPC, seed 2", "no-GPC-seed2"),
        (0, "full, seed 0", "full-seed0"),
        (0, "no GPC, seed 0", "no-GPC-seed0"),
    ]
    alone = [entry[1:] for entry in Plan(seeds=[2], variants=rows).entries()]
    assert alone == [(2, "full", "full"), (2, "no GPC", "no-GPC")]


def test_folders_of_earlier_versions_list_methods(tmp_path: Path) -> None:
    plan = read('methods = ["fedavg", "local_only"]\nseeds = [0, 1]\n', tmp_path)
    assert plan.seeds == [0, 1]
    assert [(row.label, row.folder, row.values) for row in plan.variants] == [
        ("fedavg", "fedavg", {"algorithm.name": "fedavg"}),
        ("local_only", "local_only", {"algorithm.name": "local_only"}),
    ]
    assert plan.minus == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("methods = [", "Invalid value"),
        ('methods = ["fedper"]', "seeds: Field required"),
        ("methods = 3\nseeds = [0]", "methods = 3: must be a list of names"),
        ('methods = "fedavg"\nseeds = [0]', "methods = 'fedavg': must be a list of names"),
        ("methods = [3]\nseeds = [0]", "variants.0.label = 3: "),
        ('methods = ["fedavg", "fedavg"]\nseeds = [0]', "variants.1.label = 'fedavg': must differ"),
        ('methods = ["../fedper"]\nseeds = [0]', "variants.0.folder = '../fedper': "),
        ("variants = []\nseeds = [-1]", "seeds.0 = -1: "),
        ('seeds = [0]\n[[variants]]\nlabel = "a"\nfolder = "/etc"', "variants.0.folder = '/etc': "),
        ('seeds = [0]\n[[variants]]\nlabel = 1\nfolder = "a"', "variants.0.label = 1: "),
        ('seeds = [0]\nvariant = "a\\nb"\nvariants = []', r"variant = 'a\nb': Extra inputs"),
        (_rows("a/a", "a/b"), "variants.1.label = 'a': must differ from those of other variants"),
        (_rows("a/a", "b/b", "c/A"), "variants.2.folder = 'A': must differ from those of other variants"),
        (_rows("full/a", "no GLF/b", minus="Full"), "variants.1.minus: unknown label 'Full'; did you mean 'full'?"),
    ],
)
def test_a_damaged_plan_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InputError) as refused:
        read(text, tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / FILE} is damaged: {why}")
    assert "\n" not in str(refused.value)


def test_variants_that_cannot_be_told_apart_are_refused_before_they_are_stored() -> None:
    [row] = variants({"a": {}})
    with pytest.raises(InputError, match=r"^variants\.1\.label = 'a': must differ"):
        Plan(seeds=[0], variants=[row, row])
