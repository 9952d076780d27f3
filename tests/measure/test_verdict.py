"""Who is better off, and which method to take: made silos whose answer is known."""

import numpy as np
import pandas as pd
import pytest

from coterie.measure import verdict_words
from coterie.measure.verdict import judge

COLUMNS = ["method", "seed", "round", "silo", "split", "measure", "value"]
PREDICTED = ["method", "seed", "round", "silo", "sample", "value"]
N = 200


def hits(right):
    return np.arange(N) < right


SAMPLES = {  # of 200 test samples how many are right, one nested in the other
    "separate": {"north": 140, "south": 180, "east": 150, "west": 170},
    "fedamp": {"north": 170, "south": 180, "east": 110, "west": 174},
    "fedavg": {"north": 150, "south": 150, "east": 150, "west": 150},
}
VALIDATION = {"separate": 0.75, "fedamp": 0.85, "fedavg": 0.7}


def made(samples=SAMPLES, validation=VALIDATION, measure="accuracy", seeds=(0,)):
    rows, predictions = [], []
    for seed in seeds:
        for method, silos in samples.items():
            for silo, right in silos.items():
                share = right / N
                rows += [(method, seed, r, silo, "test", measure, v) for r, v in ((0, 0.99), (1, 0.5), (2, share))]
                if validation is not None:
                    worse = 0.1 if measure == "loss" else -0.1
                    picked = [(1, validation[method] + worse), (2, validation[method])]
                    rows += [(method, seed, r, silo, "validation", measure, v) for r, v in picked]
                predictions += [(method, seed, 2, silo, i, float(v)) for i, v in enumerate(hits(right))]
    return pd.DataFrame(rows, columns=COLUMNS), pd.DataFrame(predictions, columns=PREDICTED)


def judged(traces=None, alone="separate", untold=False, **options):
    results, predictions = made(**options)
    sizes = {seed: dict.fromkeys(results["silo"].unique(), N) for seed in results["seed"].unique()}
    return judge(results, predictions.iloc[:0] if untold else predictions, traces or {}, alone, sizes)


def standing(verdict, silo):
    return next(each for each in verdict["silos"] if each["silo"] == silo)


def test_each_silo_has_its_outcome():
    verdict = judged()
    assert {each["silo"]: each["outcome"] for each in verdict["silos"]} == {
        "north": "better", "south": "same", "east": "worse", "west": "unclear",
    }  # fmt: skip
    north = standing(verdict, "north")
    assert (north["score"], north["alone"], north["gain"]) == pytest.approx((85.0, 70.0, 15.0))
    assert north["low"] < 85 < north["high"] and 9 < north["gain_low"] < 15 < north["gain_high"] < 21
    assert standing(verdict, "west")["p"] == pytest.approx(0.125)  # four of four discordant samples
    assert standing(verdict, "west")["p_holm"] == pytest.approx(0.25)
    counts = verdict["methods"]["fedamp"]
    assert [counts[key] for key in ("better", "worse", "same", "unclear")] == [1, 1, 1, 1]


def test_the_method_is_chosen_by_validation_data_and_never_by_test_data():
    assert judged()["chosen"] == "fedamp"
    assert judged(validation={**VALIDATION, "fedavg": 0.9})["chosen"] == "fedavg"  # whatever its test accuracy


def test_without_validation_data_nothing_is_chosen():
    verdict = judged(validation=None)
    assert (verdict["chosen"], verdict["judged"], verdict["silos"]) == (None, None, [])
    assert verdict["methods"]["fedamp"]["better"] == 1
    assert "no validation data" in verdict_words.consortium(verdict)[0]
    only = judged(validation=None, samples={key: SAMPLES[key] for key in ("separate", "fedamp")})
    assert only["judged"] == "fedamp" and standing(only, "north")["outcome"] == "better"


def test_without_separate_it_says_what_is_missing():
    verdict = judged(alone=None)
    assert verdict["chosen"] == "fedamp" and verdict["silos"] == []
    assert "`separate` is not in the study" in verdict_words.consortium(verdict)[1]


def test_where_training_alone_is_best_the_verdict_says_so_and_tells_of_the_next():
    verdict = judged(validation={**VALIDATION, "separate": 0.95})
    assert (verdict["chosen"], verdict["judged"]) == ("separate", "fedamp")
    assert verdict_words.consortium(verdict)[0].startswith("Take separate: each silo on its own.")


def test_how_sure_the_choice_is():
    clear = judged()
    assert clear["sure"] == 1.0
    rows, predictions = made()
    wins = {"north": 0.9, "south": 0.9, "east": 0.9, "west": 0.45}  # three silos of four say fedavg
    of_fedavg = (rows["method"] == "fedavg") & (rows["split"] == "validation") & (rows["round"] == 2)
    rows.loc[of_fedavg, "value"] = rows.loc[of_fedavg, "silo"].map(wins)
    sizes = {0: dict.fromkeys(rows["silo"].unique(), N)}
    close = judge(rows, predictions, {}, "separate", sizes)
    assert close["chosen"] == "fedamp" and 0.5 < close["sure"] < 0.9
    assert "fedavg" in close["equals"]


def test_who_a_silo_learns_from_is_read_at_the_picked_round():
    silos = np.array(["north", "south", "east", "west"])
    weights = np.zeros((3, 4, 4))
    weights[2, 0] = [0.4, 0.1, 0.3, 0.2]  # half of 0.6 takes east and west
    weights[1, 0] = [0.4, 0.6, 0.0, 0.0]
    verdict = judged({"fedamp": {"silos": silos, "rounds": np.array([0, 1, 2]), "collaboration": weights}})
    assert standing(verdict, "north")["peers"] == ["east", "west"]
    assert standing(verdict, "south")["peers"] == []
    text = verdict_words.silo(standing(verdict, "north"), verdict)
    assert text.startswith("north gains 15.0 ± ") and text.endswith(" points, mostly from east and west")


def test_silos_that_do_not_tell_their_samples_are_judged_by_counts():
    verdict = judged(untold=True)
    assert not verdict["paired"] and verdict["judged"] == "fedamp"
    assert standing(verdict, "north")["outcome"] == "better"
    assert standing(verdict, "south")["gain"] == 0 and standing(verdict, "south")["outcome"] == "unclear"
    paired = standing(judged(), "north")
    assert standing(verdict, "north")["p"] > paired["p"]


def test_the_same_samples_under_three_seeds_are_no_more_evidence():
    once, thrice = judged(), judged(seeds=(0, 1, 2))
    assert standing(thrice, "north")["gain_low"] == pytest.approx(standing(once, "north")["gain_low"], abs=0.5)


def test_of_losses_less_is_better():
    verdict = judged(
        measure="loss",
        samples={"separate": {"a": 100, "b": 100}, "fedamp": {"a": 40, "b": 160}},
        validation={"separate": 0.6, "fedamp": 0.4},
    )
    assert verdict["chosen"] == "fedamp"
    assert [each["outcome"] for each in verdict["silos"]] == ["better", "worse"]
    assert standing(verdict, "a")["gain"] == pytest.approx(0.3)
    assert verdict_words.silo(standing(verdict, "a"), verdict).startswith("a gains 0.3 ± ")


def test_a_diverged_model_is_no_number_but_has_an_outcome():
    rows, predictions = made(measure="loss", samples={"separate": {"a": 100, "b": 9}, "fedamp": {"a": 90, "b": 9}})
    lost = (rows["method"] == "fedamp") & (rows["silo"] == "b") & (rows["round"] == 2) & (rows["split"] == "test")
    rows.loc[lost, "value"] = np.inf
    verdict = judge(rows, predictions, {}, "separate", {0: {"a": N, "b": N}})
    b = next(each for each in verdict["silos"] if each["silo"] == "b")
    assert (b["outcome"], b["gain"], b["score"]) == ("worse", None, None)
    assert "diverges in the federation" in verdict_words.silo(b, verdict)


def test_a_terminal_is_told_only_what_is_sure_of_many_silos():
    silos = {f"s{i}": 140 for i in range(9)}
    better = {**silos, "s3": 190}
    verdict = judged(samples={"separate": silos, "fedamp": better}, validation={"separate": 0.7, "fedamp": 0.8})
    lines = verdict_words.compact(verdict)
    assert len(lines) == 3 and lines[2].startswith("s3 gains 25.0")
    assert "1 better off and 8 as well off alone" in lines[1]


def test_the_number_of_test_samples_is_told_as_it_is():
    verdict = judged()
    assert ", with 200 test samples each." in verdict_words.consortium(verdict)[1]
    standing(verdict, "west")["samples"] = 90
    assert ", with 90 to 200 test samples each." in verdict_words.consortium(verdict)[1]
