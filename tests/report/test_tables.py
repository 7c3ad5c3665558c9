from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table
from rich.text import Text

from manyheads.report.rows import Key, Line, Run, RunEntry
from manyheads.report.tables import (
    cost_table,
    difference_table,
    final_table,
    in_words,
    paired_interval,
    plus_minus,
    size,
)

FAIR = Key("personal", "client test", "post_agg", "macro")
GLOBAL = Key("global", "global test", "post_agg", "micro")


def line(label: str, accuracies: Mapping[int, float], key: Key = FAIR, done: int = 30, **more: float) -> Line:
    spread = {} if key == GLOBAL else {"clients": 20, "left_out": 0, "std": 0.125, "worst_decile": 0.5} | more
    metrics = {seed: {"accuracy": accuracy, **spread} for seed, accuracy in accuracies.items()}
    name = label if key.moment == "post_agg" else f"{label} ({key.moment})"
    return Line(name, label, label, key, done, 30, metrics)


def cells(table: Table | None) -> list[list[str]]:
    """The cells of each row, as plain text."""
    assert table is not None
    columns = [[cell.plain for cell in column.cells if isinstance(cell, Text)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def test_final_numbers_of_one_seed_the_highest_first() -> None:
    table = final_table([line("a", {0: 0.5}), line("b", {0: 0.91234})])
    assert table.title == "personal model, client test, macro average"
    assert [str(column.header).replace("\n", " ") for column in table.columns] == [
        "method", "moment", "accuracy %", "std over clients", "worst decile", "clients",
    ]  # fmt: skip
    assert cells(table) == [
        ["b", "post_agg", "91.23", "12.50", "50.00", "20"],
        ["a", "post_agg", "50.00", "12.50", "50.00", "20"],
    ]


def test_global_test_has_no_spread_over_clients() -> None:
    table = final_table([line("a", {0: 0.5}, GLOBAL)])
    assert (table.title, cells(table)) == ("global model, global test", [["a", "post_agg", "50.00"]])


def test_several_seeds_give_mean_and_standard_deviation() -> None:
    # 60, 62, 67: mean 63, squared distances 9 + 1 + 16 = 26, 26 / 2 = 13
    table = final_table([line("a", {0: 0.60, 1: 0.62, 2: 0.67})])
    assert cells(table) == [["a", "post_agg", "63.00 ± 3.61", "3", "12.50", "50.00", "20"]]


def test_what_a_row_does_not_say_is_a_dash() -> None:
    bare = Line("a", "a", "a", FAIR, 30, 30, {0: {"accuracy": 0.5}})
    assert cells(final_table([bare])) == [["a", "post_agg", "50.00", "-", "-", "-"]]
    assert in_words([bare]).count("; mean over clients;") == 1


def test_another_round_than_the_last_is_named() -> None:
    table = final_table([line("a", {0: 0.5}, done=12), line("b", {0: 0.4}, done=0), line("c", {0: 0.3})])
    assert [row[1] for row in cells(table)] == ["post_agg, round 12", "post_agg, untrained", "post_agg"]


def test_brackets_in_a_name_are_printed() -> None:
    assert cells(final_table([line("[red]x", {0: 0.5})]))[0][0] == "[red]x"


def test_words_below_a_table() -> None:
    expected = (
        "Last round (30 of 30): accuracy of personal models on their own client's test images, "
        "before local training (post_agg); mean over 20 clients (2 without test images left out)"
        "; worst decile: mean of the lowest tenth."
    )
    assert in_words([line("a", {0: 0.5}, left_out=2)]) == expected
    assert in_words([line("a", {0: 0.5}, GLOBAL, done=12)]) == (
        "Latest evaluated round (12 of 30): accuracy of the global model on all test images."
    )


def test_words_say_when_only_a_sample_was_measured() -> None:
    assert "mean over 20 clients, a fixed sample of the 3400;" in in_words([line("a", {0: 0.5}, of=3400)])
    assert "fixed sample" not in in_words([line("a", {0: 0.5}, of=22, left_out=2)])


def test_words_name_each_moment_and_the_seeds() -> None:
    words = in_words(
        [line("a", {0: 0.5, 1: 0.5}), line("a", {0: 0.6}, FAIR._replace(moment="post_adapt"), clients=1, done=3)]
    )
    for part in (
        "or the one named",
        "(post_agg) or after adaptation",
        "1 or 20 clients",
        "standard deviation over seeds",
    ):
        assert part in words


def test_paired_interval_by_hand() -> None:
    # differences 1, 2, 3: mean 2, standard deviation 1; t(0.975, 2) = 4.30265; 4.30265 / sqrt(3) = 2.48414
    assert paired_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, -0.48414, 4.48414), abs=1e-5)


def test_one_difference_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two"):
        paired_interval([1.0])


def test_differences_are_paired_by_seed_and_moment() -> None:
    adapt = FAIR._replace(moment="post_adapt")
    lines = [
        line("a", {0: 0.50, 1: 0.70, 2: 0.60}),
        line("b", {2: 0.63, 1: 0.72, 0: 0.51}),
        line("b", {0: 0.60, 1: 0.80, 2: 0.70}, adapt),
        line("c", {0: 0.60, 7: 0.80}),
        line("d", {0: 0.60, 1: 0.80}, done=12),
    ]
    assert cells(difference_table(lines, "a")) == [
        ["b", "a", "+2.00", "-0.48 to +4.48", "3"],
        ["b (post_adapt)", "a", "+10.00", "+10.00 to +10.00", "3"],
    ]
    adapted = line("a", {0: 0.5, 1: 0.6}, adapt)
    assert cells(difference_table([*lines[:3], adapted], "a"))[1][1:3] == ["a (post_adapt)", "+15.00"]


def test_one_seed_has_no_differences() -> None:
    assert difference_table([line("a", {0: 0.5}), line("b", {0: 0.6})], "a") is None


def test_costs_are_medians_over_clients_and_rounds(fake: SimpleNamespace) -> None:
    # up: 1000, 1200 in each of two rounds, 9000, 9200 in the third; the evaluation before training costs nothing
    rows = [fake.row(0), fake.row(1), fake.row(2, train=0.7), fake.row(3, up=9000, down=7, train=60.0)]
    run = Run(RunEntry("a", "a", 0, Path()), rows, {})
    assert cells(cost_table([run])) == [["a", "1.2 kB", "2 kB", "0.7", "0.01", "0.25"]]


def test_costs_of_a_method_that_sends_nothing_and_of_rows_that_say_nothing() -> None:
    silent = Run(RunEntry("a", "a", 0, Path()), [{"round": 0, "bytes": {"up": {}, "down": {}}}], {})
    bare = Run(RunEntry("b", "b", 0, Path()), [{"round": 0}], {})
    assert cells(cost_table([silent, bare])) == [["a", "0 B", "0 B", "-", "-", "-"], ["b", "-", "-", "-", "-", "-"]]
    assert cost_table([Run(RunEntry("c", "c", 0, Path()), [{"round": -1}], {})]) is None


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (999.7, "1 kB"), (2307900, "2.31 MB"), (5e12, "5e+03 GB")]
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


def test_plus_minus() -> None:
    assert (plus_minus([91.0]), plus_minus([90.0, 92.0])) == ("91.00", "91.00 ± 1.41")
