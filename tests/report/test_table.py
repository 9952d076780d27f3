"""What the summary looks like in a terminal."""

import io

import pytest
from rich.console import Console

from coterie.data.own.agree import Difference
from coterie.report.table import compared_score, differences_table, main_score, summary_cells, summary_table

SCORES = {
    "bmta": 90.0, "best_round": 12, "last": 88.0, "val_picked": None, "weighted": 89.0, "bottom_decile": 70.0,
    "bytes_up": 2_500_000.0, "bytes_down": 12_345e6, "train_seconds": 3.25, "per_silo": {}, "per_seed": [],
}  # fmt: skip


def printed(summary, verdict=None, own=False, **console):
    out = io.StringIO()
    Console(file=out, width=100, **console).print(summary_table(summary, verdict=verdict, own=own))
    return out.getvalue()


def test_best_of_each_score_is_marked_without_colour():
    known = {**SCORES, "val_picked": 89.5}
    text = printed({"separate": {**known, "bmta": 85.0, "last": 91.5}, "fedamp": {**known, "val_picked_std": 0.5}})
    separate, fedamp = (next(line for line in text.splitlines() if line.startswith(m)) for m in ("separate", "fedamp"))
    costs = ["2.5", "12,345", "3.2"]
    assert separate.split() == ["separate", "89.50*", "91.50*", "85.00", "12", "89.00*", "70.00*", *costs]
    assert fedamp.split() == ["fedamp", "89.50±0.50*", "88.00", "90.00*", "12", "89.00*", "70.00*", *costs]


def test_what_is_judged_comes_first_and_the_rest_says_what_it_is():
    known = {**SCORES, "val_picked": 89.0}
    assert summary_cells({"a": known, "b": SCORES})[0][:3] == ["val-picked", "last", "BMTA"]
    told = " ".join(printed({"a": known}).split())
    assert "val-picked: the round that validation data pick, whose models are saved." in told
    assert "BMTA picks its round on test data, as papers do." in told
    assert summary_cells({"a": SCORES})[0][:2] == ["last", "BMTA"]  # without validation data
    assert "last: without validation data the last round is judged" in " ".join(printed({"a": SCORES}).split())
    assert main_score({"a": known}) == ("val_picked", "val-picked test accuracy, %")
    assert main_score({"a": SCORES}) == ("last", "last test accuracy, %")
    assert compared_score({"a": {**known, "published": 91.0}}) == ("bmta", "BMTA, %")
    assert compared_score({"a": known}) == main_score({"a": known})


def test_best_is_bold_green_where_there_is_colour():
    text = printed({"a": SCORES, "b": {**SCORES, "bmta": 1.0}}, force_terminal=True, color_system="standard")
    assert "\x1b[1;32m90.00*" in text
    assert "\x1b[1;32m1.00" not in text


def test_cloud_column_only_where_a_method_has_one():
    assert "cloud BMTA" not in summary_cells({"a": SCORES})[0]
    headings, rows = summary_cells({"a": SCORES, "b": {**SCORES, "bmta_cloud": 50.0}})
    column = headings.index("cloud BMTA")
    assert (rows["a"][column].text, rows["b"][column].text) == ("-", "50.00")
    assert not rows["b"][column].best  # there is nothing to be better than
    legend = "cloud: of the model that the server keeps for a silo."
    assert legend in printed({"a": SCORES, "b": {**SCORES, "bmta_cloud": 50.0}}) and legend not in printed(
        {"a": SCORES}
    )


def test_a_full_table_fits_100_columns():
    wide = dict.fromkeys(("bmta", "bmta_cloud", "last", "val_picked", "weighted", "bottom_decile"), 99.99)
    costs = {"bytes_up": 99_999e6, "bytes_down": 99_999e6, "train_seconds": 99_999.0, "best_round": 199.67}
    full = {**SCORES, **wide, **costs, "val_picked_std": 10.0}
    text = printed({"heurfedamp": full, "fedamp": full})
    assert "…" not in text
    row = next(line for line in text.splitlines() if line.startswith("heurfedamp"))
    assert row.split()[1:] == ["99.99±10.00*", *["99.99*"] * 3, "200", *["99.99*"] * 2, *["99,999"] * 3]


def test_small_costs_do_not_vanish():
    headings, rows = summary_cells({"a": {**SCORES, "bytes_up": 1200.0, "bytes_down": 0.0}})
    costs = dict(zip(headings, rows["a"], strict=True))
    assert (costs["MB up"].text, costs["MB down"].text) == ("0.0012", "0")


@pytest.mark.parametrize("error", ["loss", "rmse"])
def test_regression_marks_the_lowest_error(error):
    low = {"best_round": 3, f"last_{error}": 0.5, f"weighted_{error}": 1.0, f"bottom_decile_{error}": 2.0}
    headings, rows = summary_cells(
        {
            "a": {**low, f"best_{error}": 0.125, f"val_picked_{error}": 0.25},
            "b": {**low, f"best_{error}": 0.25, f"val_picked_{error}": 0.5},
        }
    )
    assert headings[:3] == ["val-picked", f"last {error}", f"best {error}"]
    for column, text in ((0, "0.25"), (2, "0.125")):
        assert (rows["a"][column].text, rows["a"][column].best, rows["b"][column].best) == (text, True, False)


def test_a_method_name_is_not_read_as_markup():
    assert "[red]x" in printed({"[red]x": SCORES})


def test_unseen_column_only_where_silos_arrived_late():
    assert "unseen" not in summary_cells({"a": SCORES})[0]
    headings, rows = summary_cells({"a": {**SCORES, "unseen": 60.0}, "b": {**SCORES, "unseen": 50.0}})
    column = headings.index("unseen")
    assert [(rows[m][column].text, rows[m][column].best) for m in "ab"] == [("60.00", True), ("50.00", False)]


def test_a_narrow_terminal_has_fewer_columns_and_says_so():
    full = {**SCORES, "bmta_cloud": 99.99, "unseen": 99.99, "val_picked_std": 10.0, "val_picked": 90.0}
    for width in (120, 80, 70):
        out = io.StringIO()
        Console(file=out, width=width).print(summary_table({"fedavg-local": full, "fedamp": full}, width))
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width and "…" not in out.getvalue()
        assert any(line.startswith("fedavg-local 90.00±10.00* ") for line in lines)  # no name is broken
        told = " ".join(" ".join(lines).split())
        left_out = {
            120: "",
            80: ": weighted, best round, seconds.",
            70: ": weighted, best round, seconds, MB down.",
        }
        assert left_out[width] in told and ("In the report" in told) == (width < 120)
        assert ("weighted" in lines[1], "seconds" in lines[1]) == (width == 120, width == 120)


def test_what_is_significantly_above_the_reference_is_marked():
    pairs = [{"method": "separate", "other": "fedamp", "mean_difference": -5.0, "p_holm": 0.01}]
    out = io.StringIO()
    low, high = {**SCORES, "val_picked": 85.0}, {**SCORES, "val_picked": 90.0}
    Console(file=out, width=100).print(summary_table({"separate": low, "fedamp": high}, 100, pairs, "separate"))
    assert "90.00↑*" in out.getvalue() and "85.00 " in out.getvalue()
    assert "↑↓ significantly better or worse than separate" in " ".join(out.getvalue().split())


def judged(measure, title, tests, **more):
    return {"measure": measure, "title": title, "methods": {m: {"test": v} for m, v in tests.items()}, **more}


def test_the_study_s_own_measure_comes_first_at_every_width():
    known = {**SCORES, "val_picked": 90.0, "bmta_cloud": 99.0, "unseen": 99.0}
    found = judged("auroc", "AUROC", {"separate": 0.81234, "fedamp": 0.9})
    headings, rows = summary_cells({"separate": known, "fedamp": known}, found)
    assert headings[:4] == ["AUROC", "accuracy", "last accuracy", "BMTA"]
    assert [(rows[m][0].text, rows[m][0].best) for m in rows] == [("0.812", False), ("0.900", True)]
    for width in (200, 100, 60, 40, 20):
        out = io.StringIO()
        Console(file=out, width=width).print(summary_table({"fedamp": known}, width, verdict=found))
        assert "AUROC" in out.getvalue() and "0.900" in out.getvalue()
    caption = " ".join(printed({"fedamp": known}, verdict=found).split())
    assert "AUROC: the mean over silos on test data at the round that validation data pick" in caption


def test_a_measure_of_which_less_is_better_marks_the_least():
    found = judged("log_loss", "log-loss", {"a": 0.5, "b": 0.25})
    _, rows = summary_cells({"a": SCORES, "b": SCORES}, found)
    assert [rows[m][0].best for m in "ab"] == [False, True]


def test_accuracy_stands_there_once_and_with_its_spread():
    known = {**SCORES, "val_picked": 89.5, "val_picked_std": 0.5}
    headings, rows = summary_cells({"a": known}, judged("accuracy", "accuracy", {"a": 89.5}))
    assert headings[:3] == ["accuracy", "last", "BMTA"] and rows["a"][0].text == "89.50±0.50"


def test_own_data_have_no_score_whose_round_test_data_pick():
    known = {**SCORES, "val_picked": 89.5}
    headings, _ = summary_cells({"a": known}, judged("accuracy", "accuracy", {"a": 89.5}), own=True)
    assert headings == ["accuracy", "last", "MB up", "MB down", "seconds"]
    assert "BMTA" not in printed({"a": known}, verdict=judged("accuracy", "accuracy", {"a": 89.5}), own=True)


def test_significance_is_marked_on_what_it_is_of():
    pairs = [{"method": "separate", "other": "fedamp", "mean_difference": -5.0, "p_holm": 0.01}]
    found = judged("auroc", "AUROC", {"separate": 0.8, "fedamp": 0.9})
    low, high = {**SCORES, "val_picked": 85.0}, {**SCORES, "val_picked": 90.0}
    out = io.StringIO()
    table = summary_table({"separate": low, "fedamp": high}, 100, pairs, "separate", found)
    Console(file=out, width=100).print(table)
    assert "90.00↑*" in out.getvalue() and "0.900*" in out.getvalue()


def test_what_a_table_holds_commands_no_terminal() -> None:
    printed = io.StringIO()
    wild = Difference("age\x1b[2J", "east", "lacks level x\nnorth is well\x1b]0;title\x07", True)
    Console(file=printed, width=120).print(differences_table([wild]))
    assert "lacks level x north is well" in printed.getvalue() and "\x1b" not in printed.getvalue()


def test_silos_that_differ_alike_share_a_line_and_what_stops_comes_first():
    found = [Difference("sector", str(1000 + i), "lacks level Public") for i in range(70)]
    found += [Difference("sector", "2000", "lacks level Catholic"), Difference("ses", "2000", "is text", stops=True)]
    out = io.StringIO()
    Console(file=out, width=100).print(differences_table(found))
    lines = [line.split("  ") for line in out.getvalue().splitlines()[2:]]
    assert [[word.strip() for word in line if word.strip()] for line in lines] == [
        ["ses", "2000", "is text"],
        ["sector", "1000, 1001, 1002, 1003 and 66 more", "lacks level Public"],
        ["sector", "2000", "lacks level Catholic"],
    ]
