"""What each silo mixes, as the page shows it."""

from dataclasses import replace

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


def test_the_page_states_what_one_network_loses():
    losses = {"north": {"mixture": 0.5, "network": 0.6}, "south": {"mixture": 0.3, "network": 0.32}}
    page = mixtures(Run("made", {"stack": {"mixtures": SHARES, "distilled": losses}}, None))
    assert "mean validation loss 0.460, the mixture 0.400; the most that a silo loses is 0.100 (north)" in page
