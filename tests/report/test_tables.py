from collections.abc import Mapping, Sequence
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
)

FAIR = Key("personal", "client test", "post_agg", "macro")
EA = FAIR._replace(moment="post_adapt")
LOCAL = FAIR._replace(moment="post_local")
GLOBAL = FAIR._replace(model="global")
TOGETHER = Key("global", "global test", "post_agg", "micro")


def line(
    label: str, accuracies: Mapping[int, float], key: Key = FAIR, done: int = 30, method: str = "", **more: float
) -> Line:
    spread = {} if key == TOGETHER else {"clients": 20, "left_out": 0, "std": 0.125, "worst_decile": 0.5} | more
    metrics = {seed: {"accuracy": accuracy, **spread} for seed, accuracy in accuracies.items()}
    return Line(label, method or label, key, done, 30, metrics)


def to(first: str, lines: Sequence[Line]) -> dict[str, str]:
    """Every label is compared with the first."""
    return {line.label: first for line in lines}


def cells(table: Table | None) -> list[list[str]]:
    """The cells of each row, as plain text."""
    assert table is not None
    columns = [[cell.plain for cell in column.cells if isinstance(cell, Text)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def headers(table: Table) -> list[str]:
    return [str(column.header).replace("\n", " ") for column in table.columns]


def test_final_numbers_of_one_seed_the_highest_first() -> None:
    table = final_table([line("a", {0: 0.5}), line("b", {0: 0.91234}), line("c", {0: 0.7}, GLOBAL)])
    assert table.title == "clients' own test images, macro average"
    assert headers(table) == [
        *("method", "model", "moment", "accuracy %", "round", "seeds"),
        *("client std", "worst decile"),
    ]
    assert cells(table) == [
        ["b", "personal", "post_agg", "91.23", "30/30", "1", "12.50", "50.00"],
        ["c", "global", "post_agg", "70.00", "30/30", "1", "12.50", "50.00"],
        ["a", "personal", "post_agg", "50.00", "30/30", "1", "12.50", "50.00"],
    ]


def test_lines_that_are_not_ranked_keep_their_order() -> None:
    table = final_table([line("full", {0: 0.5}), line("less", {0: 0.9}), line("least", {0: 0.7})], ranked=False)
    assert [row[0] for row in cells(table)] == ["full", "less", "least"]


def test_after_local_training_is_in_the_title_and_in_the_words() -> None:
    lines = [line("pfedkdh", {0: 0.5}, LOCAL), line("fedavg", {0: 0.6}, LOCAL)]
    table = final_table(lines)
    assert table.title == "clients' own test images, after local training, macro average"
    assert [row[:3] for row in cells(table)] == [
        ["fedavg", "personal", "post_local"],
        ["pfedkdh", "personal", "post_local"],
    ]
    assert "mean over 20 clients" in in_words(lines)
    assert "Not comparable with the table above." in in_words(lines)
    table = difference_table(lines, {"fedavg": "pfedkdh"}, least=1)
    assert table is not None
    assert "before local training" not in str(table.title)


def test_all_test_images_have_no_spread_over_clients() -> None:
    table = final_table([line("a", {0: 0.5}, TOGETHER)])
    assert (table.title, cells(table)) == (
        "all test images, micro average",
        [["a", "global", "post_agg", "50.00", "30/30", "1"]],
    )


def test_several_seeds_give_mean_and_standard_deviation() -> None:
    # 60, 62, 67: mean 63, squared distances 9 + 1 + 16 = 26, 26 / 2 = 13
    table = final_table([line("a", {0: 0.60, 1: 0.62, 2: 0.67})])
    assert cells(table) == [["a", "personal", "post_agg", "63.00 ± 3.61", "30/30", "3", "12.50", "50.00"]]


def test_what_a_row_does_not_say_is_a_dash() -> None:
    bare = Line("a", "a", FAIR, 30, 30, {0: {"accuracy": 0.5}})
    assert cells(final_table([bare])) == [["a", "personal", "post_agg", "50.00", "30/30", "1", "-", "-"]]
    assert "every client alike" in in_words([bare])


def test_every_row_says_its_round_and_its_seeds() -> None:
    lines = [line("a", {0: 0.5}, done=12), line("b", {0: 0.4, 1: 0.4}, done=0), line("c", {0: 0.3}, clients=7)]
    assert [row[4:6] for row in cells(final_table(lines))] == [["12/30", "1"], ["0/30", "2"], ["30/30", "1"]]
    words = in_words(lines)
    assert "±: standard deviation over seeds" in words
    assert "mean over 7 or 20 clients" in words


def test_a_teacher_is_no_rival() -> None:
    lines = [line("pfedkdh", {0: 0.9}, GLOBAL), line("pfedkdh", {0: 0.8})]
    assert [row.style for row in final_table(lines).rows] == ["dim", ""]
    assert "Teacher: pFedKDH's global model, a diagnostic" in in_words(lines)
    assert "Teacher" not in in_words(lines[1:])


def test_brackets_in_a_name_are_printed() -> None:
    assert cells(final_table([line("[red]x", {0: 0.5})]))[0][0] == "[red]x"


def test_words_below_a_table() -> None:
    expected = (
        "Accuracy on each client's own test images (client test), mean over 20 clients (2 "
        "without test images left out), every client alike (macro average); client std: standard deviation over "
        "clients; worst decile: mean of the lowest tenth. Personal: the client's own model, before local training "
        "(post_agg)."
    )
    assert in_words([line("a", {0: 0.5}, left_out=2)]) == expected
    assert in_words([line("a", {0: 0.5}, TOGETHER)]) == (
        "Accuracy on all test images together (global test), every image alike "
        "(micro average). Global: the one model of all clients, as aggregated (post_agg)."
    )


def test_words_say_when_only_a_sample_was_measured() -> None:
    assert "mean over 20 clients, a fixed sample of the 3400," in in_words([line("a", {0: 0.5}, of=3400)])
    assert "fixed sample" not in in_words([line("a", {0: 0.5}, of=22, left_out=2)])


def test_words_say_when_not_everybody_has_trained_yet() -> None:
    words = in_words([line("a", {0: 0.5}, LOCAL, of=24, left_out=2)])
    assert "mean over 20 clients (2 without test images left out), those that have taken part, of the 24;" in words
    assert "taken part" not in in_words([line("a", {0: 0.5}, LOCAL, of=22, left_out=2)])


def test_words_name_each_model_and_moment_and_the_seeds() -> None:
    two = {0: 0.5, 1: 0.5}
    words = in_words([line("a", two), line("a", two, EA), line("b", two, GLOBAL)])
    for part in ("(post_agg) or after adaptation", "(post_adapt). Global:", "standard deviation over seeds"):
        assert part in words


def test_paired_interval_by_hand() -> None:
    # differences 1, 2, 3: mean 2, standard deviation 1; t(0.975, 2) = 4.30265; 4.30265 / sqrt(3) = 2.48414
    assert paired_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, -0.48414, 4.48414), abs=1e-5)


def test_one_difference_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two"):
        paired_interval([1.0])


def test_differences_are_paired_by_seed_and_moment() -> None:
    lines = [
        line("a", {0: 0.50, 1: 0.70, 2: 0.60}),
        line("b", {2: 0.63, 1: 0.72, 0: 0.51}),
        line("b", {0: 0.60, 1: 0.80, 2: 0.70}, EA),
        line("c", {0: 0.60, 7: 0.80}),
        line("d", {0: 0.60, 1: 0.80}, done=12),
    ]
    assert cells(difference_table(lines, to("a", lines))) == [
        ["b", "a", "+2.00", "-0.48 to +4.48", "3"],
        ["b (post_adapt)", "a", "+10.00", "+10.00 to +10.00", "3"],
    ]
    adapted = line("a", {0: 0.5, 1: 0.6}, EA)
    assert cells(difference_table([*lines[:3], adapted], to("a", lines)))[1][1:3] == ["a (post_adapt)", "+15.00"]


def test_differences_are_to_the_personal_models_of_the_first_or_else_to_its_global_model() -> None:
    two = {0: 0.5, 1: 0.6}
    per, avg = line("fedper", two), line("fedavg", two, GLOBAL)
    ditto = [line("ditto", two, GLOBAL), line("ditto", two), line("ditto", two, FAIR._replace(variant="generic"))]
    both = [avg, line("fedavg", two, EA)]

    def pairs(lines: list[Line], first: str) -> list[list[str]]:
        return [row[:2] for row in cells(difference_table(lines, to(first, lines)))]

    assert pairs([*both, per], "fedper") == [["fedavg (global)", "fedper"], ["fedavg (post_adapt)", "fedper"]]
    assert pairs([per, *both], "fedavg") == [["fedper", "fedavg (global)"]]
    assert pairs([per, avg, *ditto], "ditto") == [["fedper", "ditto"], ["fedavg (global)", "ditto"]]


def test_one_seed_has_no_differences() -> None:
    assert difference_table([line("a", {0: 0.5}), line("b", {0: 0.6})], {"b": "a"}) is None


def test_one_seed_has_differences_without_an_interval_where_they_are_asked_for() -> None:
    lines = [line("a", {0: 0.5}), line("b", {0: 0.6}), line("c", {0: 0.575})]
    table = difference_table(lines, {"b": "a", "c": "b"}, least=1)
    assert table is not None
    assert headers(table) == ["method", "minus", "difference"]
    assert cells(table) == [["b", "a", "+10.00"], ["c", "b", "-2.50"]]
    assert "paired" not in str(table.title)
    # differences 10, 20: standard deviation 10 / sqrt(2); t(0.975, 1) = 12.706; 12.706 * 10 / 2 = 63.53
    lines += [line("a", {1: 0.5, 0: 0.5}, EA), line("b", {1: 0.7, 0: 0.6}, EA)]
    assert cells(difference_table(lines, {"b": "a", "c": "b"}, least=1)) == [
        ["b", "a", "+10.00", "-", "1"],
        ["c", "b", "-2.50", "-", "1"],
        ["b (post_adapt)", "a (post_adapt)", "+15.00", "-48.53 to +78.53", "2"],
    ]


def test_variants_of_a_method_are_compared_number_by_number() -> None:
    def of(label: str, *accuracies: float) -> list[Line]:
        keys = (FAIR, EA, GLOBAL, FAIR._replace(variant="prototype"))
        return [line(label, {0: a}, key, method="ditto") for a, key in zip(accuracies, keys, strict=False)]

    lines = [*of("full", 0.9, 0.8, 0.7), *of("less", 0.8, 0.75, 0.6, 0.5), line("more", {0: 0.5}, GLOBAL)]
    assert cells(difference_table(lines, {"less": "full", "more": "less"}, least=1)) == [
        ["less", "full", "-10.00"],
        ["less (post_adapt)", "full (post_adapt)", "-5.00"],
        ["less (global)", "full (global)", "-10.00"],
        ["more (global)", "less", "-30.00"],
    ]


def test_teachers_are_not_compared_with_each_other() -> None:
    lines = [line(label, {0: 0.5}, key, method="pfedkdh") for label in "ab" for key in (FAIR, GLOBAL)]
    assert cells(difference_table(lines, {"b": "a"}, least=1)) == [["b (Fair)", "a (Fair)", "+0.00"]]


def test_costs_are_medians_over_clients_and_rounds(fake: SimpleNamespace) -> None:
    # up: 1000, 1200 in each of two rounds, 9000, 9200 in the third; the evaluation before training costs nothing
    rows = [fake.row(0), fake.row(1), fake.row(2, train=0.7), fake.row(3, up=9000, down=7, train=60.0)]
    run = Run(RunEntry("a", "a", 0, Path()), rows, {})
    assert cells(cost_table([run])) == [["a", "1.20 kB", "2.00 kB", "0.7", "0.01", "0.25"]]


def test_costs_of_a_method_that_sends_nothing_and_of_rows_that_say_nothing() -> None:
    silent = Run(RunEntry("a", "a", 0, Path()), [{"round": 0, "bytes": {"up": {}, "down": {}}}], {})
    bare = Run(RunEntry("b", "b", 0, Path()), [{"round": 0}], {})
    assert cells(cost_table([silent, bare])) == [
        ["a", "0 bytes", "0 bytes", "-", "-", "-"],
        ["b", "-", "-", "-", "-", "-"],
    ]
    assert cost_table([Run(RunEntry("c", "c", 0, Path()), [{"round": -1}], {})]) is None


def test_plus_minus() -> None:
    assert (plus_minus([91.0]), plus_minus([90.0, 92.0])) == ("91.00", "91.00 ± 1.41")
