"""Who is better off, and which method to take: made silos whose answer is known."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from coterie.measure import verdict_words
from coterie.measure.measures import MEASURES
from coterie.measure.paired import Estimate, difference, scored
from coterie.measure.pooling import mean_of, of_silos
from coterie.measure.predictions import Key, Rows
from coterie.measure.verdict import judge

COLUMNS = ["method", "seed", "round", "silo", "split", "measure", "value"]
N = 200
SAMPLES = {  # of 200 test rows how many are right, one nested in the other
    "separate": {"north": 140, "south": 180, "east": 150, "west": 170},
    "fedamp": {"north": 170, "south": 180, "east": 110, "west": 174},
    "fedavg": {"north": 150, "south": 150, "east": 150, "west": 150},
}
VALIDATION = {"separate": 0.75, "fedamp": 0.85, "fedavg": 0.7}


def rows(right, n=N):
    """Two classes, the label always the second, so many right."""
    hits = (np.arange(n) < right).astype(float)
    return Rows(2, np.ones(n, int), np.stack([1 - hits, hits], 1) * 0.8 + 0.1, np.arange(n), np.arange(n))


def rows_right(which, n=30):
    """The same, of these rows."""
    made = rows(n, n)
    wrong = np.setdiff1d(np.arange(n), list(which))
    made.predicted[wrong] = made.predicted[wrong][:, ::-1]
    return made


def made(samples=SAMPLES, validation=VALIDATION, measure="accuracy", seeds=(0,)):
    table, predictions = [], {}
    for seed in seeds:
        for method, silos in samples.items():
            for silo, right in silos.items():
                share = right / N
                table += [(method, seed, r, silo, "test", measure, v) for r, v in ((0, 0.99), (1, 0.5), (2, share))]
                if measure == "accuracy":
                    predictions[Key(method, seed, silo, "test")] = rows(right)
                if validation is not None:
                    worse = 0.1 if measure == "rmse" else -0.1
                    picked = [(1, validation[method] + worse), (2, validation[method])]
                    table += [(method, seed, r, silo, "validation", measure, v) for r, v in picked]
                    if measure == "accuracy":
                        predictions[Key(method, seed, silo, "validation")] = rows(round(N * validation[method]))
    return pd.DataFrame(table, columns=COLUMNS), predictions


def judged(traces=None, alone="separate", untold=False, costs=None, mixtures=(), **options):
    results, predictions = made(**options)
    sizes = {seed: dict.fromkeys(results["silo"].unique(), N) for seed in results["seed"].unique()}
    by = options.get("measure", "accuracy")
    given = (traces or {}, alone, sizes, by, costs or {})
    return judge(results, {} if untold else predictions, *given, mixtures=mixtures)


def standing(verdict, silo):
    return next(each for each in verdict["silos"] if each["silo"] == silo)


def test_each_silo_has_its_outcome():
    verdict = judged()
    assert {each["silo"]: each["outcome"] for each in verdict["silos"]} == {
        "north": "better", "south": "equivalent", "east": "worse", "west": "undecided",
    }  # fmt: skip
    north = standing(verdict, "north")
    assert (north["score"], north["alone"], north["gain"], north["n"]) == pytest.approx((85.0, 70.0, 15.0, N))
    assert north["score_low"] < 85 < north["score_high"] and 9 < north["low"] < 15 < north["high"] < 21
    west = standing(verdict, "west")
    assert west["low"] < 0 < west["high"] and west["needs"] > 10
    counts = verdict["methods"]["fedamp"]
    assert [counts[key] for key in ("better", "worse", "equivalent", "undecided")] == [1, 1, 1, 1]


def test_an_interval_beside_zero_that_decides_nothing_among_many_silos_says_why():
    silos = {"north": 152, **{f"silo-{i}": 140 for i in range(5)}}
    verdict = judged(samples={"separate": dict.fromkeys(silos, 140), "fedamp": silos, "fedavg": silos})
    north = standing(verdict, "north")
    assert north["low"] > 0 and north["p"] < 0.05
    north["outcome"] = "undecided"  # as where more silos are judged
    assert verdict_words.silo(north, verdict).endswith("200 test rows; of 6 silos one may look so by chance)")


@pytest.mark.parametrize("gain", [0.0, -1e-15, 0.04])
def test_a_gain_that_rounds_to_zero_has_no_sign(gain):
    verdict = judged()
    for outcome in ("undecided", "equivalent"):
        told = verdict_words.silo(standing(verdict, "west") | {"gain": gain, "outcome": outcome}, verdict)
        assert "(0.0 points [" in told
    verdict["baseline"] = {"name": "boosted trees", "test": 69.0, "validation": 60.0, "gain": gain, "beats": False}
    verdict["baseline"] |= {"low": -2.0, "high": 2.0}
    text = "On test rows fedamp is level with boosted trees on each silo alone (69.0%): "
    assert f"{text}0.0 points [−2.0, 2.0]." in verdict_words.consortium(verdict)
    verdict["baseline"]["name"] = "majority"
    assert "level with always predicting the majority class (69.0%)" in verdict_words.consortium(verdict)[2]


def test_methods_with_the_same_score_are_said_to_be_level():
    validation = {"separate": 0.85, "fedamp": 0.85, "fedavg": 0.7}
    verdict = judged(validation=validation, costs={"separate": 1.0, "fedamp": 0.0, "fedavg": 3.0})
    assert (verdict["best"], verdict["chosen"]) == ("separate", "fedamp")
    text = verdict_words.consortium(verdict)[0]
    assert text.startswith("Take fedamp. Its mean accuracy on validation data (85.0%) is level with that of separate; ")


def test_what_few_rows_cannot_tell_is_a_sentence():
    verdict = judged() | {"best": "fedamp", "chosen": "fedamp", "equals": []}
    one, two = (verdict_words.consortium(verdict | {"undecided": names})[0] for names in (["a"], ["a", "b"]))
    assert one.endswith(" The rows are too few to say whether a is as good as fedamp.")
    assert two.endswith(" The rows are too few to say whether a and b are as good as fedamp.")


def test_a_silo_with_a_number_for_a_name_is_called_a_silo():
    told = {"silo": "29", "gain": None, "outcome": "worse"}
    assert verdict_words.silo(told, {}).startswith("silo 29: ")
    assert verdict_words.silo(told | {"silo": "north"}, {}).startswith("north: ")


def test_a_silo_with_few_rows_is_drawn_towards_the_others():
    names = [f"s{i}" for i in range(6)]
    verdict = judged(
        samples={"separate": dict.fromkeys(names, 140), "fedamp": dict.fromkeys(names, 170) | {"s0": 200}},
        validation={"separate": 0.7, "fedamp": 0.8},
    )
    most = standing(verdict, "s0")
    assert 15 < most["shrunk"] < most["gain"] == pytest.approx(30)
    assert most["shrunk_low"] < most["shrunk"] < most["shrunk_high"]


def test_of_equals_the_one_that_sends_less_is_taken():
    validation = {"separate": 0.75, "fedamp": 0.85, "fedavg": 0.8475}
    costs = {"separate": 0.0, "fedamp": 9.0, "fedavg": 3.0}
    verdict = judged(validation=validation, costs=costs)
    assert (verdict["best"], verdict["chosen"], verdict["judged"]) == ("fedamp", "fedavg", "fedavg")
    assert "(85.0%) is level with that of fedamp; " in verdict_words.consortium(verdict)[0]
    assert judged(validation={**validation, "fedavg": 0.83}, costs=costs)["chosen"] == "fedamp"


def test_the_method_is_chosen_by_validation_data_and_never_by_test_data():
    assert judged()["chosen"] == "fedamp"
    assert judged(validation={**VALIDATION, "fedavg": 0.9})["chosen"] == "fedavg"  # whatever its test accuracy


def test_without_validation_data_nothing_is_chosen():
    verdict = judged(validation=None)
    assert (verdict["chosen"], verdict["judged"], verdict["silos"]) == (None, None, [])
    assert verdict["methods"]["fedamp"]["better"] == 1
    assert verdict_words.consortium(verdict)[1] == (
        "With fedamp 1 of 4 silos is shown to be better off than alone, and with no other method more."
    )
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


def test_a_method_that_learns_from_validation_rows_is_not_preferred_by_them():
    results, predictions = made(validation={**VALIDATION, "fedavg": 0.99})
    sizes = {0: dict.fromkeys(results["silo"].unique(), N)}
    given = (results, predictions, {}, "separate", sizes, "accuracy", {})
    assert judge(*given)["chosen"] == "fedavg"
    verdict = judge(*given, flattered=["fedavg"])
    assert (verdict["chosen"], verdict["flattered"]) == ("fedamp", ["fedavg"])
    assert verdict["ranked"] == ["fedamp", "separate"] and verdict["methods"]["fedavg"]["validation"] == 99.0
    text = verdict_words.consortium(verdict)[0]
    assert "highest" in text and "Left out of this choice: fedavg; what learns from validation data" in text
    both = judge(*given, flattered=["fedavg", "fedamp"])
    assert both["chosen"] == "separate" and "diverge" not in verdict_words.consortium(both)[0]
    assert judge(*given, flattered=list(VALIDATION))["chosen"] == "fedavg"  # nothing else is there to be taken


def test_where_nothing_was_learned_no_method_is_taken():
    results, predictions = made()
    guessed = {Key("majority", 0, silo, "validation"): rows(180) for silo in SAMPLES["separate"]}
    sizes = {0: dict.fromkeys(results["silo"].unique(), N)}
    verdict = judge(results, predictions | guessed, {}, "separate", sizes, "accuracy", {}, ["majority"])
    assert verdict["chosen"] is None and verdict["silos"] == []
    text = verdict_words.consortium(verdict)[0]
    assert "none is shown to be better than always predicting the majority class" in text
    guessed = {key: rows(100) for key in guessed}
    assert (
        judge(results, predictions | guessed, {}, "separate", sizes, "accuracy", {}, ["majority"])["chosen"] == "fedamp"
    )


def test_whether_anything_was_learned_is_asked_of_the_method_that_is_taken():
    """fedavg sends less than fedamp and is next to it; a guess is between the two."""
    validation = {"separate": 0.75, "fedamp": 0.855, "fedavg": 0.85}
    results, predictions = made(validation=validation)
    guessed = {}
    for silo in SAMPLES["separate"]:
        predictions[Key("fedavg", 0, silo, "validation")] = surer = rows_right(range(30, N), N)
        surer.predicted[30:] = [0.09, 0.91]  # so that its log-loss is that of fedamp, which has one more right
        predictions[Key("fedamp", 0, silo, "validation")] = rows(171 if silo in ("north", "south") else 170)
        right = 171 if silo == "north" else 170
        guessed[Key("majority", 0, silo, "validation")] = guess = rows(right)
        guess.predicted[right:] = [0.99, 0.01]  # where it is wrong, so that its log-loss is the highest
    given = ({}, "separate", {0: dict.fromkeys(results["silo"].unique(), N)}, "accuracy", {"fedamp": 9.0})
    assert judge(results, predictions, *given)["chosen"] == "fedavg"
    assert judge(results, predictions | guessed, *given, ["majority"])["chosen"] is None


def test_silos_whose_own_plain_model_is_ahead_of_every_method_are_named():
    results, predictions = made()
    own = {"north": 195, "south": 180, "east": 140, "west": 178}  # of 200; the best method has 170, 180, 150 and 174
    trees = {Key("boosted trees", 0, silo, "test"): rows(right) for silo, right in own.items()}
    trees |= {Key("boosted trees", 0, silo, "validation"): rows(100) for silo in own}
    given = ({}, "separate", {0: dict.fromkeys(own, N)}, "accuracy", {})
    verdict = judge(results, predictions | trees, *given, ["boosted trees"])
    assert verdict["plain_ahead"] == {"north": "boosted trees"}
    assert (
        "At north boosted trees of its own are ahead of every method here, beyond chance."
        in verdict_words.consortium(verdict)
    )
    assert judge(results, predictions, *given)["plain_ahead"] == {}


@pytest.mark.parametrize(("right", "sure", "chosen"), [(169, 0.51, None), (169, 0.99, "fedamp"), (150, 0.51, "fedamp")])
def test_a_lead_over_a_guess_that_may_be_chance_needs_a_lower_log_loss(right, sure, chosen):
    """Of nine methods that learned nothing one is a little ahead: fedamp has 170 right of 200 validation rows."""
    results, predictions = made()
    guess = rows(right)
    guess.predicted[right:] = [sure, 1 - sure]  # where it is wrong
    guessed = {Key("majority", 0, silo, "validation"): guess for silo in SAMPLES["separate"]}
    sizes = {0: dict.fromkeys(results["silo"].unique(), N)}
    verdict = judge(results, predictions | guessed, {}, "separate", sizes, "accuracy", {}, ["majority"])
    assert verdict["chosen"] == chosen


@pytest.mark.parametrize(
    ("mixture", "right", "chosen", "why"),
    [
        ("fedavg", {"fedamp": 190, "fedavg": 156}, "fedamp", "highest mean accuracy"),  # surely better
        ("fedavg", {"fedamp": 171, "fedavg": 170}, "fedamp", "highest mean accuracy"),  # surely within the margin
        ("fedamp", {"fedamp": 170, "fedavg": 170}, "fedavg", "is shown to be as good as fedamp, within 2.0 points"),
        ("fedavg", {"fedamp": 172, "fedavg": 180}, "fedavg", "highest mean accuracy"),  # surely behind
    ],
)
def test_of_methods_beside_a_mixture_one_is_taken_that_is_shown_to_be_as_good(mixture, right, chosen, why):
    validation = {"separate": 0.7, **{name: many / N for name, many in right.items()}}
    verdict = judged(validation=validation, costs={mixture: 9.0}, mixtures=[mixture])
    assert verdict["chosen"] == chosen and why in verdict_words.consortium(verdict)[0]


def test_where_training_alone_is_taken_it_is_held_against_what_would_be_taken_of_those_that_federate():
    validation = {"separate": 0.85, "fedavg": 0.85, "fedamp": 0.855}
    verdict = judged(validation=validation, costs={"fedamp": 5.0, "fedavg": 9.0}, mixtures=["fedavg"])
    assert [verdict[key] for key in ("ranked", "preferred", "chosen")] == [
        ["fedamp", "separate", "fedavg"], "fedavg", "separate",
    ]  # fmt: skip
    assert verdict["judged"] == "fedavg"
    told = verdict_words.consortium(verdict)[1]
    assert told.startswith("fedavg would be taken of those that federate; with it ")


def beside_a_mixture(hits, **known):
    """A verdict where fedavg is a mixture that sends more, and of each silo's 100 validation rows these are right."""
    validation = {name: len(right) / 100 for name, right in hits.items()}
    results, predictions = made(validation=validation)
    few = {
        key: rows_right(hits[key.method], 100) if key.split == "validation" else each
        for key, each in predictions.items()
    }
    sizes = {0: dict.fromkeys(SAMPLES["separate"], N)}
    return judge(results, few, {}, "separate", sizes, "accuracy", {"fedavg": 9.0}, **known)


def test_a_lead_over_a_mixture_that_may_be_chance_is_not_taken():
    hits = {"separate": range(60), "fedamp": range(15, 96), "fedavg": range(80)}
    assert beside_a_mixture(hits)["chosen"] == "fedamp"
    verdict = beside_a_mixture(hits, mixtures=["fedavg"])
    assert (verdict["best"], verdict["chosen"], verdict["judged"]) == ("fedamp", "fedavg", "fedavg")
    text = verdict_words.consortium(verdict)[0]
    assert "(80.0%) is not clearly behind the best (fedamp, 81.0%); it mixes what the others found, and nothing" in text
    flattered = beside_a_mixture(hits, mixtures=["fedavg"], flattered=list(hits))  # all of them
    assert flattered["chosen"] == "fedamp"


def test_a_mixture_that_is_far_behind_is_not_taken_however_few_the_rows():
    far = {"separate": range(60), "fedamp": range(15, 100), "fedavg": range(80)}
    assert beside_a_mixture(far, mixtures=["fedavg"])["chosen"] == "fedamp"
    apart = {"separate": 0.6, "fedamp": 0.81, "fedavg": 0.8}  # silos that keep their rows: of those nothing is shown
    assert judged(untold=True, validation=apart, mixtures=["fedavg"])["chosen"] == "fedamp"


def test_a_mixture_that_is_one_of_its_members_everywhere_is_not_taken_in_its_place():
    hits = {"separate": range(80), "fedamp": range(60), "fedavg": range(80)}
    verdict = beside_a_mixture(hits, mixtures=["fedavg"])
    assert verdict["chosen"] == "separate"


def test_what_validation_rows_can_tell_of_the_others():
    verdict = judged(validation={"separate": 0.6, "fedamp": 0.85, "fedavg": 0.84})
    assert verdict["sure"] > 0.95 and verdict["undecided"] == [] and verdict["equals"] == ["fedavg"]
    assert "Shown to be as good as fedamp, within 2.0 points: fedavg." in verdict_words.consortium(verdict)[0]
    results, predictions = made(validation={"separate": 0.6, "fedamp": 0.85, "fedavg": 0.8})
    few = {
        key: rows(2 + (key.method == "fedamp"), 3) if key.split == "validation" else each
        for key, each in predictions.items()
    }
    sizes = {0: dict.fromkeys(results["silo"].unique(), N)}
    unsure = judge(results, few, {}, "separate", sizes, "accuracy", {})
    assert unsure["chosen"] == "fedamp" and set(unsure["undecided"]) == {"fedavg", "separate"}


def test_who_a_silo_learns_from_is_read_at_the_picked_round():
    silos = np.array(["north", "south", "east", "west"])
    weights = np.zeros((3, 4, 4))
    weights[2, 0] = [0.4, 0.1, 0.3, 0.2]  # half of 0.6 takes east and west
    weights[1, 0] = [0.4, 0.6, 0.0, 0.0]
    verdict = judged({"fedamp": {"silos": silos, "rounds": np.array([0, 1, 2]), "collaboration": weights}})
    assert standing(verdict, "north")["peers"] == ["east", "west"]
    assert standing(verdict, "south")["peers"] == []
    text = verdict_words.silo(standing(verdict, "north"), verdict)
    assert text.startswith("north gains 15.0 points [") and text.endswith("], mostly from east and west")


def test_silos_that_do_not_show_their_rows_are_judged_by_their_standard_errors():
    results, _ = made()
    test = results[(results["split"] == "test") & (results["round"] == 2)]
    errors = test.assign(measure="accuracy_error", value=np.sqrt(test["value"] * (1 - test["value"]) / N))
    sizes = {0: dict.fromkeys(results["silo"].unique(), N)}
    verdict = judge(pd.concat([results, errors]), {}, {}, "separate", sizes, "accuracy", {})
    assert not verdict["paired"] and verdict["judged"] == "fedamp"
    assert standing(verdict, "north")["outcome"] == "better"
    assert standing(verdict, "south")["gain"] == 0 and standing(verdict, "south")["outcome"] == "undecided"
    assert standing(verdict, "north")["p"] > standing(judged(), "north")["p"]
    silent = judged(untold=True)  # not even those: nothing is said of one silo
    assert {each["outcome"] for each in silent["silos"]} == {"undecided"}


def test_the_same_rows_under_three_seeds_are_no_more_evidence():
    once, thrice = judged(), judged(seeds=(0, 1, 2))
    assert standing(thrice, "north")["low"] == pytest.approx(standing(once, "north")["low"], abs=0.5)


def test_of_errors_less_is_better():
    verdict = judged(
        measure="rmse",
        samples={"separate": {"a": 100, "b": 100}, "fedamp": {"a": 40, "b": 160}},
        validation={"separate": 0.6, "fedamp": 0.4},
    )
    assert verdict["chosen"] == "fedamp"
    assert standing(verdict, "a")["gain"] == pytest.approx(0.3)
    assert standing(verdict, "b")["gain"] == pytest.approx(-0.3)


def test_a_diverged_model_is_no_number_but_has_an_outcome():
    table, predictions = made(measure="rmse", samples={"separate": {"a": 100, "b": 9}, "fedamp": {"a": 90, "b": 9}})
    lost = (table["method"] == "fedamp") & (table["silo"] == "b") & (table["round"] == 2) & (table["split"] == "test")
    table.loc[lost, "value"] = np.inf
    verdict = judge(table, predictions, {}, "separate", {0: {"a": N, "b": N}}, "rmse", {})
    b = next(each for each in verdict["silos"] if each["silo"] == "b")
    assert (b["outcome"], b["gain"], b["score"]) == ("worse", None, None)
    assert "diverges in the federation" in verdict_words.silo(b, verdict)


def test_a_terminal_is_told_only_what_is_sure_of_many_silos():
    silos = {f"s{i}": 140 for i in range(9)}
    better = {**silos, "s3": 190}
    verdict = judged(samples={"separate": silos, "fedamp": better}, validation={"separate": 0.7, "fedamp": 0.8})
    lines = verdict_words.compact(verdict)
    assert len(lines) == 3 and lines[2].startswith("s3 gains 25.0")
    assert "Of 9 silos: 1 better off and 8 as well off alone" in lines[1]


def chances(second):
    return np.stack([1 - second, second], 1)


def by_accuracy(rng, n, gain):
    """Labels, and what a model alone and a better one give: 70% right, and by `gain` more."""
    u = rng.random(n)
    v = np.where(rng.random(n) < 0.7, u, rng.random(n))
    return np.ones(n, int), *(chances(hits.astype(float)) for hits in (u < 0.7, v < 0.7 + gain))


def by_auroc(rng, n, gain):
    """Normal scores of two classes lie √2 Φ⁻¹(AUROC) apart."""
    y, common = (rng.random(n) < 0.25).astype(int), rng.normal(size=n)
    y[:2] = 0, 1  # of one class alone there is none
    scores = [np.sqrt(2) * norm.ppf(0.75 + more) * y + 0.8 * common + 0.6 * rng.normal(size=n) for more in (0.0, gain)]
    return y, *(chances(norm.cdf(each)) for each in scores)


def by_rmse(rng, n, gain):
    """Errors that share much, those of the better model smaller by `gain`; a few are large, as Student's with 5."""
    common = rng.standard_t(5, n)
    own, other = (0.8 * common + 0.6 * rng.standard_t(5, n) for _ in range(2))
    return np.zeros(n), own, (1 - gain) * other


MADE = {"accuracy": by_accuracy, "auroc": by_auroc, "rmse": by_rmse}
AT_MARGIN = {"accuracy": 0.021, "auroc": 0.021, "rmse": 0.051}


def truth(rng, silos, n, gain, measure="accuracy"):
    """Silos of which two methods are known, the federated one better by `gain`."""
    table, predictions = [], {}
    for i in range(silos):
        y, *given = MADE[measure](rng, n, gain)
        for method, p in zip(("separate", "fedamp"), given, strict=True):
            predictions[Key(method, 0, f"s{i}", "test")] = Rows(1, y, p, np.arange(n), np.arange(n))
            table.append((method, 0, 1, f"s{i}", "test", measure, MEASURES[measure].of(y, p)))
            table.append((method, 0, 1, f"s{i}", "validation", measure, 0.7 + gain * (method == "fedamp")))
    sizes = {0: {f"s{i}": n for i in range(silos)}}
    verdict = judge(pd.DataFrame(table, columns=COLUMNS), predictions, {}, "separate", sizes, measure, {})
    return verdict["methods"]["fedamp"]


CASES = [(4, 3), (4, 100), (4, 5000), (20, 30), (20, 1000), (200, 40), (200, 400)]


@pytest.mark.parametrize(
    ("measure", "silos", "n"),
    [
        *(("accuracy", *case) for case in CASES),
        *((measure, *case) for measure in ("auroc", "rmse") for case in CASES[3:6]),
        *((measure, *CASES[place]) for measure in ("auroc", "rmse") for place in (0, 2)),
    ],
)
@pytest.mark.slow
@pytest.mark.soak
def test_how_often_outcomes_are_wrong(measure, silos, n):
    """Known truth. Gain 0: wrong "better" at most 5%; a gain of the margin: wrong "equivalent" at most 5%."""
    rng, again = np.random.default_rng(silos * n), max(1, 400 // silos)
    nothing = [truth(rng, silos, n, 0.0, measure) for _ in range(again)]
    apart = sum(each["better"] + each["worse"] for each in nothing) / (silos * again)
    assert apart <= 0.05
    margin = [truth(rng, silos, n, AT_MARGIN[measure], measure) for _ in range(again)]
    assert sum(each["equivalent"] for each in margin) / (silos * again) <= 0.05 + 1.7 * np.sqrt(0.05 * 0.95 / 400)
    if n >= 400:  # and a large one is found
        large = truth(rng, silos, n, 0.12 if measure != "rmse" else 0.3, measure)
        assert large["better"] >= 0.9 * silos and large["p"] < 0.001


def test_the_mean_over_few_silos_can_be_told_from_zero():
    """Four silos that all gain: a rank test over four could never say so."""
    found = truth(np.random.default_rng(0), 4, 300, 0.1)
    assert found["p"] < 0.01 and found["gain_low"] > 0


def test_what_many_silos_of_few_rows_gain_shows_in_all_of_them():
    """None could be told from zero, and what each cannot exclude would hide what all of them show."""
    found = truth(np.random.default_rng(0), 60, 6, 0.1)
    assert not found["better"] and found["p"] < 0.05 and found["gain_low"] > 0
    assert truth(np.random.default_rng(0), 60, 6, 0.0)["p"] > 0.05


def test_the_error_of_few_rows_is_as_large_as_it_is():
    """By rmse, of which a mean over silos takes many; what is left out of it adds up."""
    rng, measure = np.random.default_rng(1), MEASURES["rmse"]
    made = [by_rmse(rng, 10, 0.0) for _ in range(1000)]
    gains = [difference(measure, [scored(measure, y, a)], [scored(measure, y, b)]) for y, a, b in made]
    assert np.mean([gain.error**2 for gain in gains]) > 0.95 * np.var([gain.value for gain in gains])


def test_many_silos_that_differ_truly_are_judged_by_their_rows():
    """Of these silos the mean is known, however far they lie apart."""
    gains = [Estimate.around(value, 0.01, 100) for value in np.linspace(-0.4, 0.6, 40)]
    assert mean_of(gains).high - mean_of(gains).low < 0.01 and mean_of(gains).low > 0.05


def test_the_number_of_test_rows_is_said_as_it_is():
    verdict = judged()
    assert "; each has 200 test rows." in verdict_words.consortium(verdict)[1]
    standing(verdict, "west")["n"] = 90
    assert "; each has 90 to 200 test rows." in verdict_words.consortium(verdict)[1]


@pytest.mark.parametrize(("right", "beats"), [(172, False), (190, True)])
def test_todays_model_is_to_be_stayed_with_only_where_its_lead_is_no_chance(right, beats):
    results, predictions = made()
    for place, silo in enumerate(SAMPLES["fedamp"]):
        shuffled = np.random.default_rng(place).permutation(N)
        for split in ("validation", "test"):
            known = rows(right)
            mixed = Rows(2, known.labels, known.predicted[shuffled], np.arange(N), np.arange(N))
            predictions[Key("boosted trees", 0, silo, split)] = mixed
    sizes = {0: dict.fromkeys(SAMPLES["fedamp"], N)}
    verdict = judge(results, predictions, {}, "separate", sizes, "accuracy", {}, ["boosted trees"])
    assert verdict["chosen"] == "fedamp" and verdict["baseline"]["validation"] == pytest.approx(right / N * 100)
    assert verdict["baseline"]["beats"] is beats
    first, *_ = verdict_words.consortium(verdict)
    assert first.startswith("Stay with boosted trees on each silo alone for now" if beats else "Take fedamp.")
    verdict["baseline"] |= {"low": 1.0, "high": 2.0}  # had test rows shown the opposite
    first, _, today, *_ = verdict_words.consortium(verdict)
    assert first.startswith("Take fedamp.") and ("test rows contradict them" in today) is beats


def test_a_lead_over_todays_model_that_may_be_chance_is_said_to_be():
    verdict = judged(samples={"separate": dict.fromkeys("ab", 100), "fedamp": dict.fromkeys("ab", 140)})
    today = {"name": "boosted trees", "test": 69.0, "validation": 60.0, "gain": 1.0, "beats": False}
    for ends, chance in (((-1.0, 3.0), True), ((0.2, 1.8), False), ((-1.8, -0.2), False), ((None, None), True)):
        verdict["baseline"] = today | dict(zip(("low", "high"), ends, strict=True))
        assert verdict_words.consortium(verdict)[-1].endswith(", which may be chance.") is chance


def test_of_numbers_no_log_loss_is_spoken_of():
    samples = {
        method: dict.fromkeys("ab", right) for method, right in (("separate", 100), ("fedamp", 40), ("fedem", 40))
    }
    validation = {"separate": 0.6, "fedamp": 0.4, "fedem": 0.401}
    verdict = {**judged(measure="rmse", samples=samples, validation=validation), "chosen": "fedem"}
    text = verdict_words.consortium(verdict)[0]
    assert "it sends least" in text and "log-loss" not in text and "rmse (lower is better)" in text


def rare(rng, n, positive, lift=0.0):
    """Labels of which so many are positive, and a model that finds them better by `lift`."""
    y = (np.arange(n) < positive).astype(int)
    return Rows(2, y, chances(norm.cdf((1 + lift) * y + rng.normal(size=n))), np.arange(n), np.arange(n))


def by_auroc_of(predictions):
    """The verdict on predictions, whose results have the same values where they are defined."""
    measure = MEASURES["auroc"]
    table = [
        (key.method, key.seed, 2, key.silo, key.split, "auroc", measure.of(each.labels, each.predicted))
        for key, each in predictions.items()
    ]
    sizes = {seed: dict.fromkeys({key.silo for key in predictions}, 100) for seed in {key.seed for key in predictions}}
    return judge(pd.DataFrame(table, columns=COLUMNS), predictions, {}, "separate", sizes, "auroc", {})


def test_a_seed_whose_test_rows_are_of_one_class_is_left_out_and_is_no_divergence():
    rng, predictions = np.random.default_rng(0), {}
    for method, lift in (("separate", 0.0), ("fedamp", 1.0)):
        for seed, silo, split in product((0, 1), ("a", "b"), ("validation", "test")):
            none = (seed, silo, split) == (1, "a", "test")
            predictions[Key(method, seed, silo, split)] = rare(rng, 100, 0 if none else 20, lift)
    a = standing(by_auroc_of(predictions), "a")
    own, base = (MEASURES["auroc"].of(r.labels, r.predicted) for r in (
        predictions[Key(method, 0, "a", "test")] for method in ("fedamp", "separate")
    ))  # fmt: skip
    assert (a["score"], a["alone"], a["gain"]) == pytest.approx((own, base, own - base))
    assert a["low"] < a["gain"] < a["high"]


def test_a_silo_of_one_class_is_named():
    rng = np.random.default_rng(0)
    predictions = {
        Key(method, 0, silo, split): rare(rng, 100, 0 if silo == "c" else 20)
        for method, silo, split in product(("separate", "fedamp"), "abc", ("validation", "test"))
    }
    verdict = by_auroc_of(predictions)
    assert verdict["undefined"] == ["c"] and len(verdict["silos"]) == 2
    assert verdict_words.consortium(verdict)[1].endswith("AUROC is undefined in c, which all means leave out.")


def test_a_silo_of_one_class_is_named_where_results_have_no_value_of_it():
    """As those of a run: what is undefined is no row of them."""
    rng, table, predictions = np.random.default_rng(0), [], {}
    for method, silo, split in product(("separate", "fedamp"), "abc", ("validation", "test")):
        rows = predictions[Key(method, 0, silo, split)] = rare(rng, 100, 0 if silo == "c" else 20)
        table.append((method, 0, 2, silo, split, "loss", 0.5))
        if silo != "c":
            table.append((method, 0, 2, silo, split, "auroc", MEASURES["auroc"].of(rows.labels, rows.predicted)))
    sizes = {0: dict.fromkeys("abc", 100)}
    verdict = judge(pd.DataFrame(table, columns=COLUMNS), predictions, {}, "separate", sizes, "auroc", {})
    assert verdict["undefined"] == ["c"]


@pytest.mark.parametrize("measure", ["accuracy", "auroc"])
def test_no_interval_reaches_beyond_what_a_measure_can_be(measure):
    rng = np.random.default_rng(0)
    verdict = truth(rng, 2, 3, 0.0, measure)
    most = 100 if MEASURES[measure].percent else 1
    assert -most <= verdict["gain_low"] < verdict["gain_high"] <= most


def test_equal_gains_of_silos_that_know_nothing_make_nothing_certain():
    assert of_silos(np.zeros(2)).error == np.inf
    assert of_silos(np.array([0.0, 0.1])).error < np.inf


def test_no_difference_is_called_the_same():
    equal = {method: {"a": 60, "b": 60} for method in ("separate", "fedamp")}
    verdict = judged(samples=equal, validation={"separate": 0.6, "fedamp": 0.6})
    assert "mean accuracy is the same as alone [" in verdict_words.consortium(verdict)[1]


@pytest.mark.parametrize("measure", ["accuracy", "auroc"])
def test_a_model_that_gives_no_numbers_is_worth_nothing(measure):
    """NaN is the largest to argmax: taken for a guess, a diverged model would be right about the first class."""
    y = (np.arange(100) < 4).astype(int)
    diverged = Rows(1, y, np.full((100, 2), np.nan), np.arange(100), np.arange(100))
    assert diverged.scored(MEASURES[measure]).value == 0.0


def test_scores_and_gains_are_of_the_same_models():
    """Gains go by tempered probabilities, which are deployed; so must the scores beside them."""
    results, predictions = made()
    results = results.assign(measure="log_loss", value=5.0)  # as measured while training, before tempering
    sizes = {0: dict.fromkeys(results["silo"].unique(), N)}
    verdict = judge(results, predictions, {}, "separate", sizes, "log_loss", {})
    for each in verdict["silos"]:
        assert each["alone"] - each["score"] == pytest.approx(each["gain"])
    judged, alone = (verdict["methods"][name] for name in (verdict["judged"], "separate"))
    assert alone["test"] - judged["test"] == pytest.approx(judged["gain"])


def test_a_silo_in_which_two_methods_give_the_same_has_no_error_and_no_gain():
    rng, predictions, table = np.random.default_rng(0), {}, []
    for silo in ("a", "b", "c"):
        same = 0.1 * rng.normal(size=20)
        for method, split in product(("separate", "fedamp"), ("validation", "test")):
            p = same if silo == "a" else (0.1 if method == "fedamp" else 0.3) * rng.normal(size=20)
            predictions[Key(method, 0, silo, split)] = Rows(2, np.zeros(20), p, np.arange(20), np.arange(20))
            table.append((method, 0, 2, silo, split, "rmse", MEASURES["rmse"].of(np.zeros(20), p)))
    sizes = {0: dict.fromkeys("abc", 20)}
    verdict = judge(pd.DataFrame(table, columns=COLUMNS), predictions, {}, "separate", sizes, "rmse", {})
    assert standing(verdict, "a")["gain"] == 0 and standing(verdict, "a")["outcome"] == "equivalent"
    assert verdict["methods"]["fedamp"]["between"] > 0


def test_the_gain_over_todays_model_is_over_the_silos_whose_scores_stand_beside_it():
    """Of rmse, fewer than 8 rows have no interval: such a silo counts in the gain as it does in the scores."""
    rng, table, predictions = np.random.default_rng(0), [], {}
    for silo, n in (("a", 40), ("b", 40), ("c", 5)):
        for method, error in (("separate", 1.0), ("fedamp", 0.5), ("ridge", 3.0 if silo == "c" else 1.0)):
            for split in ("validation", "test"):
                each = Rows(2, np.zeros(n), error * rng.normal(size=n), np.arange(n), np.arange(n))
                predictions[Key(method, 0, silo, split)] = each
                if method != "ridge":
                    value = MEASURES["rmse"].of(each.labels, each.predicted)
                    table.append((method, 0, 2, silo, split, "rmse", value))
    sizes = {0: {"a": 40, "b": 40, "c": 5}}
    frame = pd.DataFrame(table, columns=COLUMNS)
    verdict = judge(frame, predictions, {}, "separate", sizes, "rmse", {}, ["ridge"])
    today = verdict["baseline"]
    assert today["test"] - verdict["methods"]["fedamp"]["test"] == pytest.approx(today["gain"])
