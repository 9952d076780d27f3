"""The scores of a study against values worked out by hand."""

import math

import pandas as pd
import pytest

from coterie.errors import BadInput
from coterie.measure.metrics import summarize

COLUMNS = ["method", "seed", "round", "silo", "split", "measure", "value"]


def table(scores, method="amp", seed=0, split="test", measure="accuracy"):
    """Rows from {round: {silo: value}}."""
    rows = [(method, seed, r, s, split, measure, v) for r, silos in scores.items() for s, v in silos.items()]
    return pd.DataFrame(rows, columns=COLUMNS)


TEST = {0: {"a": 0.9, "b": 0.9}, 1: {"a": 0.5, "b": 0.3}, 2: {"a": 0.8, "b": 0.4}, 3: {"a": 0.6, "b": 0.4}}
VALIDATION = {1: {"a": 0.7, "b": 0.1}, 2: {"a": 0.1, "b": 0.1}, 3: {"a": 0.3, "b": 0.5}}  # rounds 1 and 3 tie
SIZES = {seed: {"a": 30, "b": 10} for seed in (0, 3, 7)}


def test_every_score_of_one_seed():
    results = pd.concat([table(TEST), table(VALIDATION, split="validation")])
    summary = summarize(results, SIZES, {"amp": [{"bytes_up": 10, "bytes_down": 20, "train_seconds": 1.5}]})
    scores = summary["amp"]
    assert set(scores) == {
        "val_picked", "picked_round", "last", "bmta", "best_round", "weighted", "bottom_decile", "per_silo",
        "per_silo_picked", "bytes_up", "bytes_down", "train_seconds", "missing", "per_seed",
    }  # fmt: skip
    assert scores["bmta"] == pytest.approx(60.0)  # (80 + 40) / 2 at round 2; round 0 does not count
    assert scores["best_round"] == 2
    assert scores["last"] == pytest.approx(50.0)
    assert scores["val_picked"] == pytest.approx(40.0)  # the tie goes to round 1
    assert scores["picked_round"] == scores["per_seed"][0]["picked_round"] == 1
    assert scores["per_silo_picked"] == pytest.approx({"a": 50.0, "b": 30.0})
    assert next(iter(scores)) == "val_picked"  # what a method is judged by comes first
    assert scores["weighted"] == pytest.approx(70.0)  # (30·80 + 10·40) / 40
    assert scores["bottom_decile"] == pytest.approx(44.0)  # a tenth of the way from 40 to 80
    assert scores["per_silo"] == pytest.approx({"a": 80.0, "b": 40.0})
    assert (scores["bytes_up"], scores["bytes_down"], scores["train_seconds"]) == (10, 20, 1.5)
    assert scores["per_seed"][0]["seed"] == 0
    assert scores["per_seed"][0]["bmta"] == scores["bmta"]


def test_each_seed_has_its_own_best_round():
    other = {1: {"a": 0.9, "b": 0.9}, 2: {"a": 0.5, "b": 0.5}}
    summary = summarize(pd.concat([table(TEST, seed=7), table(other, seed=3)]), SIZES, {})
    scores = summary["amp"]
    assert scores["bmta"] == pytest.approx(75.0)  # (60 + 90) / 2
    assert scores["bmta_std"] == pytest.approx(math.sqrt(2 * 15**2))  # of a sample of two
    assert scores["best_round"] == 1.5
    assert scores["per_silo"] == pytest.approx({"a": 85.0, "b": 65.0})
    assert [seed["seed"] for seed in scores["per_seed"]] == [7, 3]
    assert scores["val_picked"] is None
    assert [seed["picked_round"] for seed in scores["per_seed"]] == [3, 2]  # the last of each
    assert scores["per_silo_picked"] == pytest.approx({"a": 55.0, "b": 45.0})
    assert scores["bytes_up"] is None


def test_costs_are_means_over_seeds_and_belong_to_their_seed():
    results = pd.concat([table(TEST, seed=7), table(TEST, seed=3)])
    cost = {"bytes_down": 0, "train_seconds": 0.0}
    summary = summarize(
        results, SIZES, {"amp": [{"seed": 3, "bytes_up": 30, **cost}, {"seed": 7, "bytes_up": 70, **cost}]}
    )
    assert summary["amp"]["bytes_up"] == 50
    assert [seed["bytes_up"] for seed in summary["amp"]["per_seed"]] == [70, 30]
    summary = summarize(results, SIZES, {"amp": [{"bytes_up": 1, **cost}, {"bytes_up": 2, **cost}]})
    assert [seed["bytes_up"] for seed in summary["amp"]["per_seed"]] == [1, 2]


def test_round_zero_counts_when_it_is_all_there_is():
    scores = summarize(table({0: {"a": 0.25, "b": 0.75}}), SIZES, {})["amp"]
    assert (scores["bmta"], scores["best_round"]) == (50.0, 0)


def test_a_round_of_the_easy_silo_alone_does_not_win():
    scores = summarize(table({1: {"a": 0.6, "b": 0.2}, 2: {"a": 1.0}}), SIZES, {})["amp"]
    assert (scores["best_round"], scores["bmta"], scores["last"]) == (1, pytest.approx(40.0), pytest.approx(40.0))


def test_silos_without_validation_data_are_left_out_of_the_pick_only():
    validation = table({1: {"b": 0.1}, 3: {"b": 0.5}}, split="validation")
    scores = summarize(pd.concat([table(TEST), validation]), SIZES, {})["amp"]
    assert scores["val_picked"] == pytest.approx(50.0)  # round 3, over both silos


def test_the_cloud_model_has_its_own_best_round():
    cloud = table({1: {"a": 0.4, "b": 0.6}, 2: {"a": 0.1, "b": 0.1}}, measure="accuracy_cloud")
    summary = summarize(pd.concat([table(TEST), cloud, table(TEST, method="avg")]), SIZES, {})
    assert summary["amp"]["bmta_cloud"] == pytest.approx(50.0)
    assert summary["amp"]["last_cloud"] == summary["amp"]["per_seed"][0]["last_cloud"] == pytest.approx(10.0)
    assert summary["amp"]["per_silo_cloud"] == pytest.approx({"a": 40.0, "b": 60.0})
    assert list(summary) == ["amp", "avg"]
    assert "bmta_cloud" not in summary["avg"]


def test_regression_is_scored_by_its_lowest_loss():
    losses = {0: {"a": 0.0, "b": 0.0}, 1: {"a": 4.0, "b": 2.0}, 2: {"a": 1.0, "b": 3.0}, 3: {"a": math.nan, "b": 0.1}}
    scores = summarize(table(losses, measure="loss"), SIZES, {})["amp"]
    assert "bmta" not in scores
    assert scores["best_loss"] == pytest.approx(2.0)
    assert scores["best_round"] == 2
    assert scores["last_loss"] == math.inf  # a silo that diverged is not skipped
    assert scores["weighted_loss"] == pytest.approx(1.5)
    assert scores["bottom_decile_loss"] == pytest.approx(2.8)
    assert scores["val_picked_loss"] is None


def test_accuracy_outranks_loss_where_both_are_measured():
    scores = summarize(pd.concat([table(TEST), table(TEST, measure="loss")]), SIZES, {})["amp"]
    assert "bmta" in scores and "best_loss" not in scores


@pytest.mark.parametrize(
    ("results", "sizes", "extras", "said"),
    [
        (table(TEST), {0: {"a": 1}}, {}, "silo 'b'"),
        (table(TEST), {0: {"a": 0, "b": 0}}, {}, "sum to 0"),
        (pd.concat([table(TEST), table(TEST)]), SIZES, {}, "two values"),
        (table(TEST).drop(columns="silo"), SIZES, {}, "silo"),
        (table(TEST, split="train"), SIZES, {}, "no test"),
        (table(TEST), SIZES, {"amp": [{}, {}]}, "2 records"),
    ],
)
def test_bad_results_are_refused(results, sizes, extras, said):
    with pytest.raises(BadInput, match=said):
        summarize(results, sizes, extras)


def test_silos_that_arrive_after_training_are_a_score_of_their_own():
    late = pd.concat(
        [table({3: {"c": 0.9, "d": 0.7}}, measure="accuracy_unseen"), table({3: {"c": 0.1}}, measure="loss_unseen")]
    )
    with_late, without = (summarize(runs, SIZES, {})["amp"] for runs in (pd.concat([table(TEST), late]), table(TEST)))
    assert with_late["unseen"] == with_late["per_seed"][0]["unseen"] == pytest.approx(80.0)
    assert with_late["per_silo_unseen"] == pytest.approx({"c": 90.0, "d": 70.0})
    for key in without:
        assert with_late[key] == without[key] or key == "per_seed"
    assert not {"unseen", "per_silo_unseen"} & set(without)


def test_late_silos_differ_from_seed_to_seed():
    parts = [
        table(TEST, seed=7), table({3: {"c": 0.9}}, seed=7, measure="accuracy_unseen"),
        table(TEST, seed=3), table({3: {"d": 0.7}}, seed=3, measure="accuracy_unseen"),
    ]  # fmt: skip
    scores = summarize(pd.concat(parts), SIZES, {})["amp"]
    assert scores["unseen"] == pytest.approx(80.0)
    assert scores["per_silo_unseen"] == pytest.approx({"c": 90.0, "d": 70.0})


def test_regression_with_an_rmse_is_scored_by_it_and_less_is_better():
    parts = [table(TEST, measure="loss"), table({1: {"a": 3.0, "b": 5.0}, 2: {"a": 1.0, "b": 2.0}}, measure="rmse")]
    scores = summarize(pd.concat(parts), SIZES, {})["amp"]
    assert (scores["best_rmse"], scores["best_round"]) == (pytest.approx(1.5), 2) and "best_loss" not in scores


def test_one_measure_picks_the_round_whatever_is_reported_of_it():
    """A regression that goes by its mae: the rmse reported is of that round."""
    rmse = {1: {"a": 3.0, "b": 5.0}, 2: {"a": 1.0, "b": 2.0}}
    mae = {1: {"a": 0.1, "b": 0.1}, 2: {"a": 0.5, "b": 0.5}}
    parts = [
        table(each, measure=m, split=s) for m, each in (("rmse", rmse), ("mae", mae)) for s in ("test", "validation")
    ]
    scores = summarize(pd.concat(parts), SIZES, {}, by="mae")["amp"]
    assert (scores["picked_round"], scores["val_picked_rmse"]) == (1, pytest.approx(4.0))
    assert (scores["best_round"], scores["best_rmse"]) == (2, pytest.approx(1.5))
    assert scores["per_silo_picked"] == pytest.approx({"a": 3.0, "b": 5.0})


def test_a_round_in_which_fewer_silos_validated_is_not_picked():
    validation = {1: {"a": 0.2, "b": 0.2}, 2: {"a": 0.9}, 3: {"a": 0.1, "b": 0.1}}
    scores = summarize(pd.concat([table(TEST), table(validation, split="validation")]), SIZES, {})["amp"]
    assert scores["picked_round"] == 1


def picked_of(accuracies, losses):
    """The round picked by silos' validation accuracies, and losses that all silos have alike."""
    test = {round: dict.fromkeys(each, 0.5) for round, each in accuracies.items()}
    each = {round: dict.fromkeys(accuracies[round], loss) for round, loss in losses.items()}
    parts = [
        table(test),
        *(table(v, split="validation", measure=m) for v, m in ((accuracies, "accuracy"), (each, "loss"))),
    ]
    sizes = {0: dict.fromkeys(accuracies[1], 10)}
    return summarize(pd.concat(parts), sizes, {})["amp"]["picked_round"]


def test_of_rounds_that_tie_the_lowest_validation_loss_is_picked_and_then_the_earliest():
    each = VALIDATION | {2: {"a": 0.1, "b": 0.0}}  # behind both in both silos
    assert picked_of(each, {1: 0.6, 2: 0.1, 3: 0.5}) == 3
    assert picked_of(each, {1: 0.5, 2: 0.1, 3: 0.6}) == 1
    assert picked_of(each, {1: 0.5, 2: 0.1, 3: 0.5}) == 1
    assert picked_of(each, {1: math.nan, 2: 0.1, 3: 0.5}) == 3  # a model that diverged


def test_a_lead_in_one_silo_alone_is_level_whatever_rounding_makes_of_it():
    """The mean of one difference among zeros is its standard error."""
    for silos in (3, 6, 7, 40):
        for lead in (0.05, 0.1, 1 / 3):
            first = {f"s{i}": 0.5 for i in range(silos)}
            assert picked_of({1: first, 2: first | {"s0": 0.5 + lead}}, {1: 0.4, 2: 0.5}) == 1


def test_a_lead_within_a_standard_error_over_silos_is_no_reason_to_pick_a_round():
    first = {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5}
    chance = {"a": 0.7, "b": 0.4, "c": 0.6, "d": 0.4}  # ahead by 0.025 ± 0.075
    clear = {"a": 0.6, "b": 0.6, "c": 0.7, "d": 0.6}  # by 0.125 ± 0.025
    assert picked_of({1: first, 2: chance}, {1: 0.5, 2: 0.6}) == 1
    assert picked_of({1: first, 2: chance}, {1: 0.5, 2: 0.4}) == 2
    assert picked_of({1: chance, 2: first}, {1: 0.5, 2: 0.4}) == 2
    assert picked_of({1: first, 2: clear}, {1: 0.5, 2: 0.6}) == 2
    assert picked_of({1: clear, 2: first}, {1: 0.5, 2: 0.4}) == 1


def test_the_pick_never_strays_from_the_best_by_more_than_a_standard_error():
    """Each round is level with the one before it and has a lower loss, but the third is not level with the first."""
    near = {1: {"a": 0.9, "b": 0.9}, 2: {"a": 0.92, "b": 0.8}, 3: {"a": 0.8, "b": 0.82}}
    assert picked_of({r: near[r] for r in (1, 2)}, {1: 0.5, 2: 0.4}) == 2  # behind by 0.04 ± 0.06
    assert picked_of({1: near[2], 2: near[3]}, {1: 0.4, 2: 0.3}) == 2  # by 0.05 ± 0.07
    assert picked_of(near, {1: 0.5, 2: 0.4, 3: 0.3}) == 2  # the third, of the first, by 0.09 ± 0.01


def test_late_silos_of_a_regression_have_their_loss():
    parts = [table(TEST, measure="loss"), table({3: {"c": 2.0, "d": 4.0}}, measure="loss_unseen")]
    scores = summarize(pd.concat(parts), SIZES, {})["amp"]
    assert scores["unseen_loss"] == pytest.approx(3.0) and "unseen" not in scores


def test_each_seed_is_weighted_by_its_own_sizes():
    runs = pd.concat([table({1: {"a": 1.0, "b": 0.0}}, seed=seed) for seed in (0, 1)])
    scores = summarize(runs, {0: {"a": 30, "b": 10}, 1: {"a": 10, "b": 30}}, {})["amp"]
    assert [seed["weighted"] for seed in scores["per_seed"]] == pytest.approx([75.0, 25.0])


def test_rejected_uploads_are_listed_with_their_seed() -> None:
    both = pd.concat([table({0: {"a": 0.5}, 1: {"a": 0.5}}, seed=seed) for seed in (4, 7)])
    told = {"round": 1, "silo": "a", "reason": "'w' is not finite"}
    extras = {"amp": [{"seed": 4, "rejected": []}, {"seed": 7, "rejected": [told]}]}
    assert summarize(both, {4: {"a": 2}, 7: {"a": 2}}, extras)["amp"]["rejected"] == [{"seed": 7, **told}]
