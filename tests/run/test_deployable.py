"""What stands beside a model that is deployed."""

from coterie.run.deployable import _card


def test_a_card_has_the_gain_with_its_unit_and_one_sign_for_minus():
    beside = {"outcome": "undecided", "gain": -8.33, "low": -36.0, "high": 21.7, "n": 12}
    none = dict.fromkeys(("temperature", "threshold", "beside_today", "base", "interval"))
    about = none | {
        "silo": "north", "study": "hospitals", "method": "fedavg-ft", "round": 11, "trained_on": "train rows",
        "rows": {"train": 38, "validation": 10, "test": 12}, "learned_from": [], "measures": {}, "measure": "accuracy",
        "versions": {"coterie": "0.1.0"}, "sha256": "ab", "beside_alone": beside,
    }  # fmt: skip
    told = "Beside a model of this silo alone: undecided (−8.3 points [−36.0, 21.7], 95%)."
    assert told in _card(about).splitlines()
