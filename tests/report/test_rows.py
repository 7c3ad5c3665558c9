from pathlib import Path
from types import SimpleNamespace

import pytest

from manyheads.errors import InputError
from manyheads.report.rows import (
    Key,
    final_lines,
    is_headline,
    is_teacher,
    line_name,
    load_runs,
    not_started,
    order,
    runs_of,
)
from manyheads.storage.log import read_rows

FAIR = Key("personal", "client test", "post_agg", "macro")
EA = FAIR._replace(moment="post_adapt")
LOCAL = FAIR._replace(moment="post_local")
GLOBAL = FAIR._replace(model="global")
TOGETHER = Key("global", "global test", "post_agg", "micro")


def test_a_run_folder_holds_one_run_named_after_its_method(fake: SimpleNamespace, tmp_path: Path) -> None:
    path = fake.run(tmp_path / "some-name", [], method="fedper", seed=4)
    assert runs_of(path) == [("fedper", "fedper", 4, path)]


def test_runs_of_a_comparison_come_in_the_order_of_its_methods_then_by_seed(
    fake: SimpleNamespace, tmp_path: Path
) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedper", "apfl"], [0, 1])
    for method, seed in [("apfl", 0), ("fedper", 1), ("fedper", 0), ("aaa", 0)]:
        fake.run(folder / f"{method}-seed{seed}", [], method, seed)
    found = [(run.label, run.method, run.seed) for run in runs_of(folder)]
    assert found == [("fedper", "fedper", 0), ("fedper", "fedper", 1), ("apfl", "apfl", 0), ("aaa", "aaa", 0)]


def test_labels_are_those_of_the_plan(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["+ prox", "a/b", "prox"], [0, 1])
    for name, seed in [("prox-seed1", 1), ("prox-2-seed0", 0), ("prox-seed0", 0), ("a-b-seed0", 0)]:
        fake.run(folder / name, [fake.row(0, fake.personal(0.1))], "pfedkdh", seed)
    assert [run[:3] for run in runs_of(folder)] == [
        ("+ prox", "pfedkdh", 0),
        ("+ prox", "pfedkdh", 1),
        ("a/b", "pfedkdh", 0),
        ("prox", "pfedkdh", 0),
    ]
    assert not_started(folder, load_runs(folder)) == ["a/b, seed 1", "prox, seed 1"]


def test_a_comparison_of_an_earlier_version_lists_methods(fake: SimpleNamespace, tmp_path: Path) -> None:
    fake.run(tmp_path / "fedper-seed1", [fake.row(0, fake.personal(0.1))], "fedper", 1)
    (tmp_path / "comparison.toml").write_text('methods = ["fedavg", "fedper"]\nseeds = [1, 2]\n')
    assert [run[:3] for run in runs_of(tmp_path)] == [("fedper", "fedper", 1)]
    assert not_started(tmp_path, load_runs(tmp_path)) == ["fedavg, seed 1", "fedavg, seed 2", "fedper, seed 2"]


def test_a_folder_with_one_seed_needs_no_suffix(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedavg"])
    fake.run(folder / "fedavg", [], "fedavg", 7)
    assert [run[:3] for run in runs_of(folder)] == [("fedavg", "fedavg", 7)]


def test_runs_that_are_promised_or_empty_are_named(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedavg", "fedper"], [0, 1])
    fake.run(folder / "fedavg-seed0", [fake.row(0, fake.personal(0.1))], "fedavg", 0)
    fake.run(folder / "fedavg-seed1", [], "fedavg", 1)
    fake.run(folder / "apfl-seed0", [], "apfl", 0)
    expected = ["fedavg, seed 1", "fedper, seed 0", "fedper, seed 1", "apfl, seed 0"]
    assert not_started(folder, load_runs(folder)) == expected


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such folder"):
        runs_of(tmp_path / "nowhere")


def test_a_folder_of_something_else_points_to_the_run_inside_it(fake: SimpleNamespace, tmp_path: Path) -> None:
    fake.run(tmp_path / "inside", [])
    with pytest.raises(InputError, match=r"no comparison\.toml\); did you mean .*inside\?"):
        runs_of(tmp_path)


def test_a_run_without_rows_says_which_file_is_missing(fake: SimpleNamespace, tmp_path: Path) -> None:
    path = fake.run(tmp_path / "run", [])
    (path / "rounds.jsonl").unlink()
    with pytest.raises(InputError, match=r"run/rounds\.jsonl"):
        load_runs(path)


def test_an_empty_comparison_says_so(fake: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to show yet"):
        load_runs(fake.comparison(tmp_path / "all", ["fedavg"]))


@pytest.mark.parametrize("text", ["not toml", "[run]\nseed = 0\n", '[algorithm]\nname = "x"\n[run]\nseed = "y"\n'])
def test_a_damaged_config_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(InputError, match=r"config\.toml: "):
        runs_of(tmp_path)


def test_an_unfinished_last_line_is_not_read(fake: SimpleNamespace, tmp_path: Path) -> None:
    path = fake.run(tmp_path / "run", [fake.row(0), fake.row(1)])
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 1, "metr')
    assert [row["round"] for row in read_rows(path / "rounds.jsonl")] == [-1, 0]


@pytest.mark.parametrize("line", ["{", "3", '{"loss": 1}', '{"round": "x"}'])
def test_a_damaged_line_is_named(fake: SimpleNamespace, tmp_path: Path, line: str) -> None:
    path = fake.run(tmp_path / "run", [fake.row(0)])
    with (path / "rounds.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match="line 2: not "):
        read_rows(path / "rounds.jsonl")


@pytest.mark.parametrize(
    ("key", "headline"),
    [
        (FAIR, True),
        (EA, True),
        (FAIR._replace(variant="prototype"), True),
        (FAIR._replace(average="micro"), False),
        (LOCAL, True),
        (LOCAL._replace(average="micro"), False),
        (LOCAL._replace(model="global"), False),
        (Key("global", "global test", "post_agg", "micro"), True),
        (Key("global", "client test", "post_agg", "macro"), True),
        (Key("global", "client test", "post_agg", "micro"), False),
        (Key("global", "global test", "post_adapt", "micro"), False),
        (Key("global", "client test", "post_adapt", "macro"), False),
        (Key("personal", "global test", "post_agg", "micro"), False),
    ],
)
def test_headline_numbers(key: Key, headline: bool) -> None:
    assert is_headline(key) == headline


@pytest.mark.parametrize(
    ("method", "key", "name", "short"),
    [
        ("pfedkdh", FAIR, "pfedkdh (Fair)", "pfedkdh (Fair)"),
        ("pfedkdh", EA, "pfedkdh (EA)", "pfedkdh (EA)"),
        ("pfedkdh", TOGETHER, "pfedkdh (teacher)", "pfedkdh (teacher)"),
        ("pfedkdh", GLOBAL, "pfedkdh (teacher)", "pfedkdh (teacher)"),
        ("fedavg", GLOBAL, "fedavg (global)", "fedavg"),
        ("fedavg", TOGETHER, "fedavg", "fedavg"),
        ("fedper", FAIR, "fedper", "fedper"),
        ("fedper", EA, "fedper (post_adapt)", "fedper"),
        ("fedper", EA._replace(variant="prototype"), "fedper (prototype, post_adapt)", "fedper (prototype)"),
        ("pfedkdh", LOCAL, "pfedkdh", "pfedkdh"),
        ("fedper", LOCAL._replace(variant="prototype"), "fedper (prototype)", "fedper (prototype)"),
    ],
)
def test_names(method: str, key: Key, name: str, short: str) -> None:
    assert (line_name(method, method, key), line_name(method, method, key, full=False)) == (name, short)


def test_lines_are_named_after_the_label_and_know_teachers_by_the_method(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["mine", "pfedkdh"])
    for label, method in [("mine", "pfedkdh"), ("pfedkdh", "fedavg")]:
        fake.run(folder / label, [fake.row(3, fake.personal(0.5), fake.global_test(0.1))], method)
    assert [
        (line_name(line.label, line.method, line.key), is_teacher(line.method, line.key))
        for line in final_lines(load_runs(folder))
    ] == [
        ("mine (Fair)", False),
        ("mine (teacher)", True),
        ("pfedkdh", False),
        ("pfedkdh", False),
    ]


def test_tables_begin_with_the_clients_images_and_lines_with_the_personal_models() -> None:
    keys = [FAIR, EA, FAIR._replace(variant="prototype"), GLOBAL, LOCAL, LOCAL._replace(variant="prototype"), TOGETHER]
    assert sorted(reversed(keys), key=order) == keys


def test_what_may_stand_in_one_table() -> None:
    assert len({key.group for key in (FAIR, EA, GLOBAL, FAIR._replace(variant="prototype"))}) == 1
    assert len({key.group for key in (FAIR, LOCAL, TOGETHER, FAIR._replace(average="micro"))}) == 4


def test_the_last_round_counts_not_the_best(fake: SimpleNamespace, tmp_path: Path) -> None:
    rows = [fake.row(done, fake.personal(accuracy)) for done, accuracy in enumerate([0.1, 0.6, 0.9, 0.7])]
    (line,) = final_lines(load_runs(fake.run(tmp_path / "run", rows)))
    assert (line.done, line.planned) == (3, 3)
    assert line.accuracies == pytest.approx({0: 70})


def test_a_number_that_is_measured_more_rarely_keeps_its_own_round(fake: SimpleNamespace, tmp_path: Path) -> None:
    rows = [
        fake.row(1, fake.personal(0.5), fake.personal(0.6, "post_adapt")),
        fake.row(2, fake.personal(0.7)),
        fake.row(3),
    ]
    lines = final_lines(load_runs(fake.run(tmp_path / "run", rows)))
    assert [(line.key, line.done) for line in lines] == [(FAIR, 2), (EA, 1)]


def test_earlier_stages_are_no_rounds(fake: SimpleNamespace, tmp_path: Path) -> None:
    early = fake.row(0, fake.personal(0.99)) | {"round": -2, "stage": 0}
    start = fake.row(0, fake.personal(0.1))
    (run,) = load_runs(fake.run(tmp_path / "run", [early, start, fake.row(1, fake.personal(0.2))]))
    assert (run.done, sorted(run.headline[FAIR])) == (1, [0, 1])


def test_a_seed_that_stopped_early_is_not_averaged_in(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedavg"], [0, 1, 2])
    for seed, rounds in enumerate([3, 1, 3]):
        rows = [fake.row(done, fake.personal(0.1 * (seed + done))) for done in range(rounds + 1)]
        fake.run(folder / f"fedavg-seed{seed}", rows, "fedavg", seed)
    (line,) = final_lines(load_runs(folder))
    assert line.accuracies == pytest.approx({0: 30, 2: 50})
