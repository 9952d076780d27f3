"""What a study costs, counted before it is run."""

import numpy as np
import pytest

from coterie.data import catalog
from coterie.studies.cost import client_steps, training_samples
from coterie.studies.study import built_in, check, read, select

LAPTOP = 150_000  # client-steps of a small scale: minutes on a laptop
AT_ONCE = ("mlp", "linear")  # models of which all silos' train in one call, so that twice as many do


def test_steps_are_silos_times_rounds_times_batches() -> None:
    data = {"name": "digits", "split": "groups", "groups": 2, "members": [2, 1], "sizes": [20, 9], "dominating": "even"}
    table = {
        "data": data,
        "train": {"rounds": 3, "local_epochs": 2, "batch_size": 8},
        "methods": {"fedavg": {}, "slow": {"method": "fedavg", "train": {"batch_size": 4}}},
    }
    assert client_steps(check(table)) == 3 * 2 * (2 * 3 + 2) + 3 * 2 * (2 * 5 + 3)
    fewer = {**table["train"], "drop": 0.5, "whole_batches": True}
    assert client_steps(check({**table, "train": fewer})) == 3 * (2 * 2 + 1) + 3 * (2 * 5 + 2)


@pytest.mark.parametrize(
    "data",
    [
        {"name": "digits", "split": "iid", "silos": 10},
        {"name": "digits", "split": "dirichlet", "silos": 10, "alpha": 100.0, "keep": 20},
        {"name": "digits", "split": "iid", "silos": 10, "subsample": 0.5, "validation": 0.5},
        {"name": "digits", "split": "groups", "silos": 10, "groups": 5, "sizes": [30], "dominating": "even"},
        {"name": "synthetic", "silos": 2000, "dimension": 1},
    ],
)
def test_silos_hold_about_as_much_as_they_will_be_dealt(data: dict[str, object]) -> None:
    expected = training_samples(catalog.resolved(str(data["name"]), data))
    dealt = np.array([len(silo.train) for silo in catalog.load(str(data["name"]), data, 0).silos])
    assert len(expected) == len(dealt) and expected.mean() == pytest.approx(dealt.mean(), rel=0.05)


@pytest.mark.parametrize("name", built_in())
def test_every_cell_has_a_cost_and_a_small_one_fits_a_laptop(name: str) -> None:
    table = read(name)
    for cell in table.get("cells", {None: {}}):
        full, small = (check(select(table, cell, scale)) for scale in ("full", "small"))
        fits = LAPTOP * (2 if small.model["name"] in AT_ONCE else 1)
        assert 0 < client_steps(small) <= min(client_steps(full), fits)
