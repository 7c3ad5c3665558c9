import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.image import imread
from rich.console import Console

from manyheads.errors import InputError
from manyheads.report.summary import pictures, show


def shown(folder: Path, width: int = 100) -> str:
    stream = io.StringIO()
    show(folder, Console(file=stream, width=width))
    return stream.getvalue()


def finished(
    fake: SimpleNamespace, path: Path, final: float, method: str = "fedavg", seed: int = 0, rounds: int = 3
) -> Path:
    rows = [fake.row(0, fake.personal(0.1), fake.global_test(0.1))]
    for done in range(1, rounds + 1):
        metrics = (fake.personal(final), fake.personal(final + 0.05, "post_adapt"), fake.global_test(final / 2))
        rows.append(fake.row(done, *metrics))
    written: Path = fake.run(path, rows, method, seed)
    return written


def test_a_run_in_the_terminal(fake: SimpleNamespace, tmp_path: Path) -> None:
    text = shown(finished(fake, tmp_path / "run", 0.8125, "pfedkdh"))
    rows = [line.split() for line in text.splitlines()]
    assert "digits; dirichlet(alpha=0.1), 2 clients; model mlp; seed 0" in text
    assert ["pfedkdh", "(EA)", "personal", "post_adapt", "86.25", "3/3", "1", "10.00", "66.25"] in rows
    assert ["pfedkdh", "(Fair)", "personal", "post_agg", "81.25", "3/3", "1", "10.00", "61.25"] in rows
    assert ["pfedkdh", "(teacher)", "global", "post_agg", "40.62", "3/3", "1"] in rows
    assert "resume" not in text
    assert "difference" not in text


def test_a_comparison_in_the_terminal(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedper", "fedavg"], [0, 1, 2])
    for seed, (first, second) in enumerate([(0.7, 0.71), (0.6, 0.62), (0.5, 0.53)]):
        finished(fake, folder / f"fedper-seed{seed}", first, "fedper", seed)
        finished(fake, folder / f"fedavg-seed{seed}", second, "fedavg", seed)
    text = shown(folder)
    assert "seeds 0, 1, 2" in text
    assert "60.00 ± 10.00" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["fedavg", "fedper", "+2.00", "-0.48", "to", "+4.48", "3"] in rows
    assert ["fedavg", "fedper", "+1.00", "-0.24", "to", "+2.24", "3"] in rows  # the global model


def test_after_local_training_has_a_table_of_its_own(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedavg", "pfedkdh"])
    local = fake.personal(0.9, "post_local")
    fake.run(folder / "fedavg", [fake.row(3, fake.metric("global", "client test", 0.6), local)], "fedavg")
    fake.run(folder / "pfedkdh", [fake.row(3, fake.personal(0.7), local, fake.global_test(0.4))], "pfedkdh")
    text = shown(folder)
    first, rest = text.split("clients' own test images, after local training, macro average")
    second, third = rest.split("all test images, micro")
    assert "post_local" not in first.split("macro average")[1] + third
    assert [line.split()[:4] for line in second.splitlines() if "personal " in line and "90.00" in line] == [
        ["fedavg", "personal", "post_local", "90.00"],
        ["pfedkdh", "personal", "post_local", "90.00"],
    ]
    assert "post_agg" not in second
    assert "after local training" not in shown(finished(fake, tmp_path / "run", 0.8))  # which has no such rows


def test_an_ablation_in_the_terminal(fake: SimpleNamespace, tmp_path: Path) -> None:
    minus = {"+ prox": "start", "= full": "+ prox"}
    folder = fake.comparison(tmp_path / "all", ["start", "+ prox", "= full"], minus=minus)
    for name, final in [("start", 0.5), ("prox", 0.8), ("full", 0.75)]:
        finished(fake, folder / name, final, "pfedkdh")
    text = shown(folder)
    assert text.startswith("pfedkdh; digits; dirichlet(alpha=0.1), 2 clients; model mlp; seed 0\n")
    rows = [line.split() for line in text.split("Accuracy on each")[0].splitlines() if "3/3" in line]
    assert [(row[-8], row[-5]) for row in rows] == [
        *[("(Fair)", "50.00"), ("(Fair)", "80.00"), ("(Fair)", "75.00")],
        *[("(EA)", "55.00"), ("(EA)", "85.00"), ("(EA)", "80.00")],
    ]
    steps = [line.split() for line in text.split("difference, percentage points")[1].splitlines()]
    assert ["+", "prox", "(Fair)", "start", "(Fair)", "+30.00"] in steps
    assert ["=", "full", "(EA)", "+", "prox", "(EA)", "-5.00"] in steps
    assert "95 %" not in text


def test_an_ablation_that_was_stopped_names_what_is_missing(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["full", "without GLF"], minus={"without GLF": "full"})
    finished(fake, folder / "full", 0.5, "fedecouple")
    text = shown(folder)
    assert f"without GLF, seed 0: not started\ngo on with: manyheads resume {folder}\n" in text
    assert "difference" not in text


def test_what_a_method_noted_of_its_clients(fake: SimpleNamespace, tmp_path: Path) -> None:
    rows = [
        fake.row(0, fake.personal(0.1)),
        fake.row(1) | {"notes": {"weight": {"0": 0.5, "3": 0.5}}},
        fake.row(2) | {"notes": {"weight": {"0": 0.123456, "3": 0.7, "5": 0.2}, "gradient": {"4": 1234567.0}}},
        fake.row(3, fake.personal(0.5)),
    ]
    text = shown(fake.run(tmp_path / "run", rows), 140)
    where = 'all rounds and clients: rounds.jsonl, "notes"\n'
    assert f"\nweight in round 2: 0.1235 to 0.7, median 0.2, over 3 clients; {where}" in text
    assert f"\ngradient in round 2: 1.235e+06 to 1.235e+06, median 1.235e+06, over 1 client; {where}" in text
    folder = fake.comparison(tmp_path / "all", ["fedavg", "fedper"])
    for method in ("fedavg", "fedper"):
        fake.run(folder / method, rows, method)
    assert "weight" not in shown(folder)


def test_a_global_model_stands_beside_personal_ones(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedavg", "fedper"])
    in_both = (fake.metric("global", "client test", 0.6), fake.global_test(0.62))
    fake.run(folder / "fedavg", [fake.row(3, *in_both)], "fedavg")
    fake.run(folder / "fedper", [fake.row(3, fake.personal(0.7), fake.personal(0.5, "post_adapt"))], "fedper")
    first, second = shown(folder).split("clients' own test images, macro average")[1].split("all test images, micro")
    assert [line.split()[:4] for line in first.splitlines() if line.startswith("fed")] == [
        ["fedper", "personal", "post_agg", "70.00"],
        ["fedavg", "global", "post_agg", "60.00"],
        ["fedper", "personal", "post_adapt", "50.00"],
    ]
    assert ["fedavg", "global", "post_agg", "62.00", "3/3", "1"] in [line.split() for line in second.splitlines()]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_number_is_broken_or_cut_at_usual_widths(fake: SimpleNamespace, tmp_path: Path, width: int) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedecouple", "local_only"], [0, 1])
    for method in ("fedecouple", "local_only"):
        for seed in (0, 1):
            finished(fake, folder / f"{method}-seed{seed}", 0.7 + seed / 100, method, seed)
    text = shown(folder, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert text.count("70.50 ± 0.71") == 2


def test_no_number_is_broken_and_no_name_cut_with_every_column_there_is(fake: SimpleNamespace, tmp_path: Path) -> None:
    name = "a_long_name_of_a_method"
    folder = fake.comparison(tmp_path / "all", [name, "local_only"], [0, 1])
    for seed in (0, 1):
        rows = [fake.row(3, fake.personal(0.9 + seed / 10, "post_adapt", std=1, worst_decile=1), fake.personal(0.5))]
        fake.run(folder / f"{name}-seed{seed}", rows, name, seed)
    fake.run(folder / "local_only-seed0", [fake.row(1000, fake.personal(0.5))], "local_only", 0)
    text = shown(folder, 80).split(" average")[1].split("Accuracy on")[0]
    assert "…" not in text
    assert "personal  post_adapt  95.00 ± 7.07     3/3      2  100.00  100.00" in text
    assert "personal  post_agg           50.00  1000/3      1   10.00   30.00" in text
    parts = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert name in "".join(parts)  # over two lines


def test_an_incomplete_run_says_how_to_go_on(fake: SimpleNamespace, tmp_path: Path) -> None:
    path = fake.run(tmp_path / ("long" * 20), [fake.row(0), fake.row(1, fake.personal(0.5)), fake.row(2)], rounds=30)
    text = shown(path, 80)
    assert "fedavg, seed 0: stopped after round 2 of 30\n" in text
    assert f"go on with: manyheads resume {path}\n" in text  # in one piece, to be copied
    assert ["fedavg", "personal", "post_agg", "50.00", "1/30", "1"] in [line.split()[:6] for line in text.splitlines()]


def test_a_run_that_was_only_evaluated_says_so(fake: SimpleNamespace, tmp_path: Path) -> None:
    text = shown(fake.run(tmp_path / "run", [fake.row(0, fake.personal(0.5))], rounds=30))
    assert "stopped before round 1 of 30" in text
    assert "cost of a round" not in text


def test_a_comparison_says_what_is_missing(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedavg", "fedper"])
    finished(fake, folder / "fedavg", 0.5)
    assert f"fedper, seed 0: not started\ngo on with: manyheads resume {folder}\n" in shown(folder)


def test_rounds_of_an_earlier_stage_are_told_apart(fake: SimpleNamespace, tmp_path: Path) -> None:
    early = [fake.row(1) | {"round": place, "stage": 0} for place in (-2, -1)]
    begin = fake.row(0) | {"stage": 0}
    path = fake.run(tmp_path / "run", [begin, *early, fake.row(1, fake.personal(0.5))], rounds=1)
    assert "fedavg: 2 rounds of an earlier stage come on top, each 1.10 kB up and 2.00 kB down a client" in shown(path)


def test_clients_that_were_left_out_are_named(fake: SimpleNamespace, tmp_path: Path) -> None:
    rows = [fake.row(1) | {"dropped": {"11": "nan", "3": "nan"}}, fake.row(2) | {"dropped": {"3": "nan"}}]
    assert "fedavg, seed 0: 3 uploads left out, of clients 3, 11" in shown(fake.run(tmp_path / "run", rows))


@pytest.mark.parametrize("clients", [1, 200])
def test_pictures_are_drawn_into_the_folder(fake: SimpleNamespace, tmp_path: Path, clients: int) -> None:
    rows = [fake.row(done, fake.personal(done / 4, clients=clients)) for done in range(4)]
    path = fake.run(tmp_path / "run", rows, counts=[[3, 1]] * clients)
    assert f"{clients} client" in shown(path)
    assert pictures(path) == [path / "curves.png", path / "partition.png"]
    for picture in pictures(path):
        assert imread(picture).shape[:2] == (800, 1400)
        assert imread(picture)[..., :3].std() > 0.05


def test_pictures_of_a_comparison_lie_beside_its_runs(fake: SimpleNamespace, tmp_path: Path) -> None:
    folder = fake.comparison(tmp_path / "all", ["fedavg"], [1, 0])
    for seed in (0, 1):
        finished(fake, folder / f"fedavg-seed{seed}", 0.5, "fedavg", seed)
    (folder / "fedavg-seed1" / "data.json").unlink()  # the partition is that of the lowest seed
    assert [path.parent for path in pictures(folder)] == [folder, folder]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        (json.dumps({"classes": ["a"], "auxiliary": [1]}), "counts"),
        (json.dumps({"classes": ["a", "b"], "auxiliary": [1, 2], "counts": [[1, 2], [1]]}), "one count a class"),
    ],
)
def test_damaged_label_counts_are_named(fake: SimpleNamespace, tmp_path: Path, text: str | None, message: str) -> None:
    path = finished(fake, tmp_path / "run", 0.5)
    (path / "data.json").unlink() if text is None else (path / "data.json").write_text(text)
    with pytest.raises(InputError, match=rf"data\.json: .*{message}"):
        pictures(path)
    assert not list(path.glob("*.png"))


def test_a_folder_that_cannot_take_the_pictures_is_an_input_error(fake: SimpleNamespace, tmp_path: Path) -> None:
    path = finished(fake, tmp_path / "run", 0.5)
    (path / "curves.png").mkdir()
    with pytest.raises(InputError, match="run: cannot be written"):
        pictures(path)
    assert not list(path.glob(".*.tmp"))


def test_reports_need_no_torch() -> None:
    code = "import sys; from manyheads.report import curves, partition, summary; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_numbers_are_whole_on_a_narrow_terminal(fake: SimpleNamespace, tmp_path: Path) -> None:
    out = io.StringIO()
    show(finished(fake, tmp_path / "run", 0.5), Console(file=out, width=40))
    assert "50.00" in out.getvalue()


def test_class_names_may_hold_dollar_signs(fake: SimpleNamespace, tmp_path: Path) -> None:
    path = finished(fake, tmp_path / "run", 0.5)
    data = json.loads((path / "data.json").read_text())
    (path / "data.json").write_text(
        json.dumps({**data, "classes": [rf"$a_{{{i}$" for i in range(len(data["classes"]))]})
    )
    assert len(pictures(path)) == 2


def test_simulated_reality_is_summed_up(fake: SimpleNamespace, tmp_path: Path) -> None:
    happened = [
        {"seconds": 30.0, "dropped": [3], "late": [], "partial": {"0": 1}},
        {"seconds": 12.5, "dropped": [], "late": [], "partial": {"0": 1, "3": 2}},
        {"seconds": 30.0, "dropped": [0], "late": [3], "partial": {}},
    ]
    rows = [fake.row(0, fake.personal(0.1)), *(fake.row(n, fake.personal(0.8)) for n in (1, 2, 3))]
    assert "virtual" not in shown(fake.run(tmp_path / "plain", rows))
    simulated = [rows[0], *(row | {"reality": told} for row, told in zip(rows[1:], happened, strict=True))]
    said = " ".join(shown(fake.run(tmp_path / "real", simulated)).split())
    sums = "2 dropped, 1 late, 3 with fewer epochs; 72.5 virtual seconds"
    assert f"fedavg, seed 0: 6 turns of clients: {sums}" in said
