"""The first screen: what to take, what it brings, what it costs, what may go wrong, in sentences."""

import re
from urllib.parse import unquote

import numpy as np
import pandas as pd

from coterie.report.decision import cost, decision, gain, headline, risk
from coterie.report.page import page_of, render
from coterie.runs.read import Run

EVIL = "<img src=x onerror=alert(1)>"


def standing(silo, outcome, gain=1.0, needs=None, **more):
    return {
        "silo": silo, "outcome": outcome, "gain": gain, "low": gain - 5, "high": gain + 5, "n": 20, "needs": needs,
        "score": 80.0, "score_low": 70.0, "score_high": 90.0, "alone": 79.0, "p": 0.5, "p_adjusted": 0.6, "margin": 2.0,
        "shrunk": 0.5, "shrunk_low": -1.0, "shrunk_high": 2.0, "peers": [], **more,
    }  # fmt: skip


def verdict(silos, chosen="fedamp", **more):
    counts = {o: sum(s["outcome"] == o for s in silos) for o in ("better", "worse", "equivalent", "undecided")}
    federated = {
        "test": 87.2, "validation": 82.0, "gain": 13.3, "gain_low": -8.5, "gain_high": 31.4, "p": 0.26, "between": 1.0,
        "rounds": {"0": 2}, **counts,
    }  # fmt: skip
    return {
        "measure": "accuracy", "title": "accuracy", "margin": 2.0, "relative": False, "higher_better": True,
        "alone": "separate", "paired": True, "chosen": chosen, "best": chosen, "sure": 0.7, "equals": [],
        "undecided": [], "ranked": ["fedamp", "separate"], "judged": "fedamp",
        "methods": {"separate": {"test": 73.9, "validation": 70.0, "rounds": {"0": 2}}, "fedamp": federated},
        "silos": silos, "words": {"consortium": ["Take it.", "They gain."], "silos": []}, **more,
    }  # fmt: skip


def run_of(found, **more):
    silos = [s["silo"] for s in found["silos"]] or ["a"]
    rows = [(m, 0, r, s, "test", "accuracy", 0.5) for m in ("separate", "fedamp") for r in (1, 2, 3, 4) for s in silos]
    results = pd.DataFrame(rows, columns=["method", "seed", "round", "silo", "split", "measure", "value"])
    scores = {
        "bmta": 90.0, "best_round": 2, "last": 88.0, "val_picked": 87.2, "weighted": 89.0, "bottom_decile": 70.0,
        "train_seconds": 1.0, "per_silo": {}, "per_silo_picked": dict.fromkeys(silos, 80.0), "picked_round": 2,
    }  # fmt: skip
    costs = {"bytes_up": 4e6 * len(silos), "bytes_down": 8e6 * len(silos)}
    methods = {"separate": {**scores, "bytes_up": 0.0, "bytes_down": 0.0}, "fedamp": {**scores, **costs}}
    return Run("made", methods, results, verdict=found, **more)


def test_the_gain_is_a_sentence_with_its_interval():
    found = verdict([standing("a", "undecided")])
    assert headline(found) == "Take fedamp; a gain over training alone is not shown."
    assert gain(found) == (
        "With fedamp the silos' accuracy is on average 13.3 points better than alone: 87.2% instead of 73.9%. With 95% "
        "confidence the difference lies between 8.5 points worse and 31.4 points better, so it may be chance."
    )
    found["methods"]["fedamp"] |= {"gain_low": 3.0, "p": 0.01}
    assert headline(found) == "Take fedamp."
    stay = {**found, "baseline": {"name": "boosted trees", "beats": True, "low": -2.0}}
    assert headline(stay) == "Stay with boosted trees on each silo alone for now."
    assert gain(found).endswith("lies between 3.0 and 31.4 points better: unlikely to be chance.")
    found["methods"]["fedamp"] |= {"gain": -4.0, "gain_low": -6.0, "gain_high": -2.0}
    assert "on average 4.0 points worse than alone" in gain(found)
    assert gain(found).endswith("lies between 2.0 and 6.0 points worse: unlikely to be chance.")


def test_alone_may_be_the_best():
    found = verdict([standing("a", "worse", -4.0)], chosen="separate")
    assert headline(found) == "Train alone: take separate."
    assert gain(found).startswith("With fedamp, the best method that federates, the silos' accuracy is on average")
    assert cost(run_of(found)) == "Nothing is exchanged between silos."


def test_without_validation_data_nothing_is_recommended():
    found = verdict([], chosen=None, judged=None)
    assert headline(found) == "No method can be recommended."
    assert "No method can be recommended." in decision(run_of(found))


def test_the_cost_is_per_silo_and_round():
    found = verdict([standing("a", "better"), standing("b", "better")])
    assert cost(run_of(found)) == "4 rounds of training. In each, a silo sends 1 MB and receives 2 MB on average."


def test_the_risk_names_who_is_worse_off_and_what_would_decide():
    few = [standing("a", "worse", -3.0), standing("b", "undecided", needs=221), standing("c", "undecided", needs=30)]
    assert risk(verdict(few)) == (
        "1 of 3 silos (33%) is worse off than alone: a. For 2 of 3 silos the test rows cannot decide: about 30 more "
        "would decide for c and 221 for b."
    )
    many = [standing(f"s{i}", "undecided", needs=10 * (i + 1)) for i in range(9)]
    assert risk(verdict([*many, standing("x", "better")])) == (
        "No silo is shown to be worse off than alone. For 9 of 10 silos the test rows cannot decide: about 50 more "
        "each would decide for half of them."
    )
    assert "For all 9 silos the test rows cannot decide: about 50 more" in risk(verdict(many))
    some = [*many[:2], *(standing(f"n{i}", "undecided") for i in range(7))]
    assert risk(verdict(some)).endswith("about 20 more each would decide for 2 of them.")
    never = [standing("a", "undecided", needs=None)]
    assert risk(verdict(never)).endswith("the test rows cannot decide, and no likely number of them would.")
    assert "all test rows" not in risk(verdict([standing("a", "better")]))


def test_baselines_are_set_beside_where_there_are_some():
    silos = [
        standing("a", "better", baseline={"name": EVIL, "score": 70.0, "gain": 5.0, "low": 1.0, "high": 9.0,
                                          "outcome": "better"}),
        standing("b", "better", baseline={"name": "forest", "score": 90.0, "gain": -5.0, "low": -9.0, "high": -1.0,
                                          "outcome": "worse"}),
    ]  # fmt: skip
    shown = page_of(run_of(verdict(silos), baselines={EVIL: {"where": "alone", "measures": {}}}))
    assert "Compared with &lt;img src=x" in shown and "1 better off and 1 worse off" in shown
    assert EVIL not in shown
    assert "<td>forest 90.0%</td><td>−5.0</td><td>−9.0 to −1.0</td>" in shown


def test_models_to_deploy_are_linked(tmp_path):
    (tmp_path / "models" / "fedamp").mkdir(parents=True)
    run = run_of(verdict([standing("a", "better")]), folder=tmp_path)
    assert "<a href='models/fedamp/'>models/fedamp/</a>" in page_of(run)
    for silo in ("north", "b%2F<i>"):
        (tmp_path / "deploy" / silo).mkdir(parents=True)
    shown = page_of(run)
    assert "<a href='deploy/north/'>north</a>" in shown
    assert "<a href='deploy/b%252F%3Ci%3E/'>b%2F&lt;i&gt;</a>" in shown
    for place in (tmp_path / "report.html", tmp_path / "pages" / "of-april.html"):
        render(run, place)
        links = re.findall("<a href='([^'#]*deploy[^']*)'", place.read_text("utf-8"))
        assert len(links) == 2 and all((place.parent / unquote(link)).is_dir() for link in links)


def test_what_makes_scores_flatter_comes_before_the_gain():
    lines = {column: f"{column}, every silo: tells the label by itself {EVIL}" for column in "abcd"}
    shown = decision(run_of(verdict([standing("a", "better")]), flattering=lines))
    assert shown.index("Caution") < shown.index("<dt>Gain")
    assert "a, every silo: tells the label by itself &lt;img" in shown and "c, every silo" not in shown
    assert "of 2 more columns" in shown and "href='#training'" in shown and EVIL not in shown
    alone = decision(run_of(verdict([standing("a", "better")]), flattering={"a": lines["a"]}))
    assert "more column" not in alone and "href='#training'" in alone
    assert "Caution" not in decision(run_of(verdict([standing("a", "better")])))


def test_equal_scores_are_said_to_be_the_same():
    found = verdict([standing("a", "undecided", -1e-15)])
    found["methods"]["fedamp"] |= {"gain": -1e-15, "gain_low": -2.0, "gain_high": 2.0, "p": 1.0, "test": 73.9}
    assert gain(found) == (
        "With fedamp the silos' accuracy is on average the same as alone: 73.9%. With 95% confidence the difference "
        "lies between 2.0 points worse and 2.0 points better."
    )


def test_why_a_measure_was_taken_is_said():
    run = run_of(verdict([standing("a", "better")]), about={"measure": {"by": "accuracy", "why": f"asked {EVIL}"}})
    assert "Judged by accuracy: asked &lt;img" in page_of(run)


def test_two_hundred_silos_stay_short():
    silos = [standing(f"s{i}", "undecided", float(np.sin(i)), needs=i + 1) for i in range(200)]
    shown = decision(run_of(verdict(silos)))
    assert len(shown) < 3000
