"""What each silo mixes, as the page shows it."""

from dataclasses import replace

import pandas as pd

from coterie.report.mixtures import drawn, mixtures
from coterie.runs.read import Run

SHARES = {"north": {"separate": 0.25, "fedavg": 0.75}, "south": {"separate": 1.0, "fedavg": 0.0}}


def test_a_bar_for_each_silo_and_a_colour_for_each_candidate():
    figure = drawn(SHARES)
    assert [bar.name for bar in figure.data] == ["separate", "fedavg"]
    assert list(figure.data[0].x) == ["north", "south"] and list(figure.data[1].y) == [0.75, 0.0]


def test_the_page_names_who_was_switched_and_is_silent_without_mixtures():
    run = Run("made", {"stack": {"mixtures": SHARES, "gated": {"south": "separate"}}}, None)
    assert "taken alone: south (separate)" in mixtures(run) and "Not guaranteed" in mixtures(run)
    assert "No silo has anything today" in mixtures(replace(run, methods={"stack": {"mixtures": SHARES}}))
    assert mixtures(replace(run, methods={"fedavg": {}})) == ""


def test_the_guarantee_names_its_test_its_level_and_how_many_rows_it_is_of() -> None:
    samples = {"0": {"north": {"validation": 1200, "test": 5}, "south": {"validation": 12}}, "1": {}}
    results = pd.DataFrame({"measure": ["accuracy", "loss"]})
    run = Run(
        "made", {"mix": {"mixtures": SHARES}}, results, about={"toml": "[methods.mix]\nalpha = 0.1", "samples": samples}
    )
    page = mixtures(run)
    assert "The test is a bet" in page and "at most α = 0.1, over all silos" in page
    assert "Validation rows: north 1,200, south 12." in page
    numbers = replace(
        run, results=pd.DataFrame({"measure": ["rmse"]}), data={"group": "patient"}, about={"samples": samples}
    )
    assert "t-test" in mixtures(numbers) and "α = 0.05" in mixtures(numbers) and "at most α" not in mixtures(numbers)
    assert "south 12; those of one patient count as one to the test." in mixtures(numbers)
    many = {f"s{i}": {"validation": 30 + i} for i in range(25)}
    crowd = {"mix": {"mixtures": dict.fromkeys(many, SHARES["north"])}}
    assert "Validation rows: 30 to 54 a silo." in mixtures(replace(run, methods=crowd, about={"samples": {"0": many}}))
    assert "Validation rows" not in mixtures(replace(run, about={}))


def test_the_page_states_what_one_network_loses():
    losses = {"north": {"mixture": 0.5, "network": 0.6}, "south": {"mixture": 0.3, "network": 0.32}}
    page = mixtures(Run("made", {"stack": {"mixtures": SHARES, "distilled": losses}}, None))
    assert "mean validation loss 0.460, the mixture 0.400; the most that a silo loses is 0.100 (north)" in page
