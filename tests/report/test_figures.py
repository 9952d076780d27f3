"""What the figures hold."""

import sys

import numpy as np
import pandas as pd
import pytest

from coterie.errors import BadInput
from coterie.report.canvas import axis_labels, label
from coterie.report.collaboration import MOST_ROUNDS, collaboration, shown_rounds
from coterie.report.figures import bars, curves, label_distribution, silo_distribution
from coterie.report.theme import inks


def results(method, seed, values, measure="accuracy"):
    rows = [(method, seed, r, s, "test", measure, v) for r, silos in values.items() for s, v in silos.items()]
    return pd.DataFrame(rows, columns=["method", "seed", "round", "silo", "split", "measure", "value"])


def test_a_curve_is_the_mean_over_silos_then_seeds_in_percent():
    drawn = curves(
        pd.concat(
            [
                results("amp", 0, {0: {"a": 0.1, "b": 0.3}, 5: {"a": 0.5, "b": 0.7}}),
                results("amp", 1, {0: {"a": 0.2, "b": 0.4}, 5: {"a": 0.7, "b": 0.9}}),
            ]
        ),
        inks(["amp"]),
    )
    band, line = drawn.data
    assert list(line.x) == [0, 5]
    assert list(line.y) == pytest.approx([25.0, 70.0])
    assert list(band.y) == pytest.approx([30.0, 80.0, 60.0, 20.0])  # highest out, lowest back
    assert line.line.color == inks(["amp"])["amp"].colour


def test_the_cloud_model_is_dashed_in_the_colour_of_its_method():
    both = pd.concat([results("apfl", 0, {1: {"a": 0.5}}), results("apfl", 0, {1: {"a": 0.25}}, "accuracy_cloud")])
    personal, cloud = curves(both, inks(["apfl"])).data
    assert (cloud.name, cloud.line.dash, list(cloud.y)) == ("apfl (cloud)", "dash", [25.0])
    assert personal.line.color == cloud.line.color


def test_regression_draws_its_loss():
    (line,) = curves(results("amp", 0, {1: {"a": 2.0, "b": 4.0}}, "loss"), inks(["amp"]), "loss").data
    assert list(line.y) == [3.0]


def test_a_round_that_diverged_is_a_gap():
    runs = results("amp", 0, {1: {"a": 2.0, "b": 4.0}, 2: {"a": 1.0, "b": np.nan}, 3: {"a": 1.0, "b": 1.0}}, "loss")
    (line,) = curves(runs, inks(["amp"]), "loss").data
    assert list(line.x) == [1, 2, 3]
    assert np.array_equal(line.y, [3.0, np.nan, 1.0], equal_nan=True)


def test_the_distribution_has_one_point_per_silo():
    (box,) = silo_distribution({"amp": {"per_silo_picked": {"a": 50.0, "b": 60.0}}}, inks(["amp"])).data
    assert list(box.x) == [50.0, 60.0]
    assert list(box.text) == ["a", "b"]


def test_methods_keep_their_ink_and_no_two_share_one():
    drawn = inks([f"m{i}" for i in range(25)])
    assert len(set(drawn.values())) == 25
    assert drawn["m0"].faded(0.5) == "rgba(0,114,178,0.5)"


def test_the_heat_map_opens_on_the_last_round_and_has_a_step_per_round():
    weights = np.arange(12).reshape(3, 2, 2) / 12
    figure = collaboration(weights, ["a", "b"])
    assert np.allclose(figure.data[0].z, weights[2])
    assert [frame.name for frame in figure.frames] == ["1", "2", "3"]
    assert np.allclose(figure.frames[0].data[0].z, weights[0])
    steps = figure.layout.sliders[0].steps
    assert [list(step.args[0]) for step in steps] == [["1"], ["2"], ["3"]]
    assert figure.layout.sliders[0].active == 2


def test_the_heat_map_colours_by_the_weights_between_silos():
    weights = np.array([[[0.9, 0.1], [0.2, 0.8]]])
    figure = collaboration(weights, ["a", "b"])
    assert (figure.data[0].zmin, figure.data[0].zmax) == (0.0, pytest.approx(0.2))
    assert not figure.layout.sliders
    figure = collaboration(-weights, ["a", "b"])
    assert (figure.data[0].zmin, figure.data[0].zmax) == (pytest.approx(-0.2), pytest.approx(0.2))


def test_one_silo_alone_still_has_a_heat_map():
    assert collaboration(np.ones((2, 1, 1)), ["a"]).data[0].zmax == 1.0


def test_many_rounds_are_thinned_to_an_even_choice_with_both_ends():
    assert shown_rounds(3, 10) == [0, 1, 2]
    thin = shown_rounds(200, 10)
    assert (len(thin), thin[0], thin[-1]) == (MOST_ROUNDS, 0, 199)
    assert shown_rounds(200, 1000) == [0, 199]
    assert shown_rounds(1, 10) == [0]


def test_a_heat_map_of_the_wrong_shape_is_refused():
    with pytest.raises(BadInput, match=r"3 × 3 weights, found \(4, 2, 2\)"):
        collaboration(np.zeros((4, 2, 2)), ["a", "b", "c"])


def test_labels_are_stacked_in_their_natural_order():
    labels = pd.DataFrame({"silo": ["z", "z", "a"], "label": ["10", "9", "10"], "count": [3, 4, 5]})
    nine, ten = label_distribution(labels).data
    assert (nine.name, ten.name) == ("9", "10")
    assert (list(nine.x), list(nine.y), list(ten.y)) == (["z", "a"], [4, 0], [3, 5])


def test_labels_without_their_columns_are_refused():
    with pytest.raises(BadInput, match="count"):
        label_distribution(pd.DataFrame({"silo": ["a"], "label": [1]}))


def test_a_name_is_never_plotly_markup_and_cut_names_stay_apart():
    assert label("<b>x</b>") == "&lt;b&gt;x&lt;/b&gt;"
    cut = axis_labels(["hospital of the north", "hospital of the south"], longest=10)
    assert cut == ["hospital … #1", "hospital … #2"]


def test_without_plotly_the_error_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name == "plotly" or name.startswith("plotly.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(BadInput, match="pip install plotly"):
        collaboration(np.ones((1, 1, 1)), ["a"])


def test_bars_are_of_the_score_that_the_paper_reports():
    ours = {"bmta": 80.0, "weighted": 76.0, "per_silo": {}}
    summary = {"fedem": {**ours, "published": 75.0, "compared": "weighted"}, "fedavg": ours}
    drawn = bars(summary, inks(summary))
    assert drawn.data[0].x == (76.0, 76.0) and drawn.data[1].x == (75.0, None)
    assert drawn.layout.xaxis.title.text == "weighted, %"
    del summary["fedem"]["compared"]
    assert bars(summary, inks(summary)).data[0].x == (80.0, 80.0)
