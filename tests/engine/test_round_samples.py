"""`round_samples`: a large silo takes part in a round with some of its training samples, others in each round."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from coterie.conformance import CLASSES, small_mlp, small_silos
from coterie.engine.store import Store
from coterie.engine.training import Training, suited, suiting_batch
from coterie.errors import BadInput
from coterie.methods import make
from coterie.run.assembly import Assembly

SIZES = (40, 12, 7)
TRAINING = Training(rounds=3, local_epochs=2, batch_size=4, lr=0.1)


def stores():
    silos = small_silos(sizes=SIZES)
    return silos, Store(silos, "cpu")


def rows_of(store, row):
    part = store["train"]
    x, y = part.gather(torch.tensor([row]), torch.arange(int(part.count[row]))[None])
    return x[0], y[0]


def results(method, training, sizes=SIZES):
    federation = Assembly(small_silos(sizes=sizes), small_mlp, CLASSES, training, 1, "cpu", "all")
    return pd.concat(federation.train(make(method, {})).results)


def test_a_large_silo_takes_part_with_so_many_rows_and_a_small_one_with_all():
    silos, store = stores()
    part = store.drawn(10, seed=1, round=0)
    assert part["train"].count.tolist() == [10, 10, 7] and part.held.tolist() == [*SIZES]
    assert part["validation"] is store["validation"] and part["test"] is store["test"]
    for row, silo in enumerate(silos):
        x, y = rows_of(part, row)
        place = [int(np.flatnonzero((silo.train.x == each).all(1))[0]) for each in x.numpy()]
        assert len({*place}) == len(place)
        assert np.array_equal(y.numpy(), silo.train.y[place])
        assert np.array_equal(part.labels("train", silo.name), silo.train.y[place])
    assert torch.equal(rows_of(part, 2)[0], rows_of(store, 2)[0])


def test_the_rows_are_the_rounds_the_seeds_and_the_silos_own():
    silos, store = stores()
    x = rows_of(store.drawn(10, 1, 0), 0)[0]
    assert torch.equal(x, rows_of(store.drawn(10, 1, 0), 0)[0])
    assert not torch.equal(x, rows_of(store.drawn(10, 1, 1), 0)[0])
    assert not torch.equal(x, rows_of(store.drawn(10, 2, 0), 0)[0])
    alone = Store([silos[0]], "cpu")  # as between organisations
    assert torch.equal(x, rows_of(alone.drawn(10, 1, 0), 0)[0])


@pytest.mark.parametrize("most", [0, 40, 1000])
def test_silos_of_no_more_rows_are_as_they_were(most):
    _, store = stores()
    assert store.drawn(most, 1, 0) is store


@pytest.mark.parametrize("method", ["separate", "fedavg-ft", "apple", "fedem", "stack"])
def test_below_the_limit_nothing_changes_and_above_it_it_does(method):
    plain = results(method, TRAINING)
    pd.testing.assert_frame_equal(plain, results(method, replace(TRAINING, round_samples=40)))
    assert not plain.equals(results(method, replace(TRAINING, round_samples=10)))


def test_a_rounds_training_is_that_of_a_silo_that_has_these_rows_alone():
    silos = small_silos(sizes=SIZES)
    training = replace(TRAINING, rounds=1)
    part = Store(silos, "cpu").drawn(10, 1, 0)
    fewer = [
        replace(silo, train=replace(silo.train, x=x.numpy(), y=y.numpy(), rows=None))
        for silo, (x, y) in ((silo, rows_of(part, row)) for row, silo in enumerate(silos))
    ]

    def trained(silos, training):
        federation = Assembly(silos, small_mlp, CLASSES, training, 1, "cpu", "all")
        return federation.train(make("separate", {})).models.tensors()

    some = trained(silos, replace(training, round_samples=10))
    for name, value in trained(fewer, training).items():
        assert torch.equal(value, some[name])


def test_an_average_still_weighs_a_silo_by_all_that_it_has():
    federation = Assembly(
        small_silos(sizes=SIZES), small_mlp, CLASSES, replace(TRAINING, round_samples=10), 1, "cpu", "all"
    )
    engine = federation.engine(make("fedavg", {}))
    assert engine.roster.sizes.tolist() == [*SIZES]
    task = engine.task(torch.tensor([0, 2]), 0)
    assert task.held().tolist() == [40, 7] and task.counts().tolist() == [10, 7]


def test_batches_of_noised_gradients_are_of_all_rows_or_refused():
    private = make("fedavg", {"privacy": {"level": "record", "clip": 1.0, "noise": 1.0}})

    def trained(most):
        silos = small_silos(sizes=SIZES)
        training = replace(TRAINING, rounds=1, round_samples=most)
        Assembly(silos, lambda: nn.Linear(5, CLASSES), CLASSES, training, 1, "cpu", "all").train(private)

    trained(40)
    with pytest.raises(BadInput, match="take \\[train\\] round_samples = 0"):
        trained(10)


@pytest.mark.parametrize(
    ("sizes", "batch"),
    [([38, 38, 29], 16), ([400, 400], 32), ([12_000, 500, 500], 64), ([960_000, 12_800, 3_200], 8192), ([1e9], 16384)],
)
def test_a_batch_suits_the_middle_and_the_largest_silo(sizes, batch):
    assert suiting_batch(sizes) == batch
    assert max(sizes) / batch <= 200 or batch == 2**14


def test_a_batch_suits_what_a_round_takes():
    training = Training(batch_size=0, round_samples=50_000)
    assert suited(training, 2, [5, 5], [960_000, 12_800, 3_200]).batch_size == suiting_batch([50_000, 12_800, 3_200])
    assert suited(training, 2, [5, 5], [50_000, 800]).batch_size == suiting_batch([50_000, 800])


def test_a_round_takes_no_copy_of_the_samples_and_weighs_classes_by_all():
    _, store = stores()
    part = store.drawn(10, 1, 0)
    assert part["train"].x is store["train"].x and part["train"].y is store["train"].y
    assert torch.equal(part.class_weights(CLASSES), store.class_weights(CLASSES))


def test_with_noise_for_every_record_a_round_takes_all():
    from coterie.studies.study import check

    table = {"train": {"round_samples": 20}, "methods": {"fedavg": {"privacy": {"level": "record", "noise": 1.0}}}}
    assert check(table).training.round_samples == 0
    assert check({**table, "methods": {"fedavg": {}}}).training.round_samples == 20
