"""What a study costs, known before it is run: the mini-batches that silos train on."""

from typing import Any

import numpy as np

from coterie.data.catalog import CATALOG
from coterie.data.synthetic import Synthetic, draw_sizes
from coterie.engine.training import Training, suiting_batch
from coterie.options import parse
from coterie.studies.study import Study

OWN_TESTS = 1 / 7  # of MNIST and its family; of CIFAR a sixth
Counts = np.ndarray[Any, np.dtype[np.float64]]


def client_steps(study: Study) -> int:
    """Mini-batches of one silo, over all its methods, rounds and silos, for one seed.

    Where a split is random a silo counts as one of mean size. Fine-tuning, measuring, and that some methods train
    several models on a mini-batch, are not counted.
    """
    samples = training_samples(study.data)
    trainings = [study.training_of(label) for label in study.methods]
    return sum(round(_per_round(samples, training) * training.rounds) for training in trainings)


def training_samples(data: dict[str, Any]) -> Counts:
    """The training samples of each silo."""
    keep, split = data.get("keep", np.inf), data.get("split")
    if split == "groups":
        return np.asarray(np.minimum(np.repeat(data["sizes"], data["members"]), keep), float)
    entry = CATALOG[data["name"]]
    if split is None and entry.size and entry.owners:  # tables of centres
        held = np.full(entry.owners, entry.size / entry.owners)
    elif split is None:
        options = {key: value for key, value in data.items() if key in Synthetic.__dataclass_fields__}
        held = draw_sizes(parse(Synthetic, options, "[data]"), np.random.default_rng(0)).astype(float)
    else:
        silos = data.get("silos", 1)  # all owners there are, however many, as one
        owners = entry.owners or silos if split == "natural" else silos
        total = (entry.size or 0) * data["subsample"] / data.get("stride", 1)
        held = np.full(silos, data.get("samples", total / owners))
    if data.get("test"):  # generated on top
        return held
    test_share = OWN_TESTS if data["test_share"] == "own" else data["test_share"]
    train = held * (1 - test_share)
    return np.asarray(train * (1 - data["validation"]) if np.isinf(keep) else np.minimum(train, keep))


def _per_round(samples: Counts, training: Training) -> float:
    samples = np.minimum(samples, training.round_samples or np.inf)
    batches = samples / (training.batch_size or suiting_batch(samples.tolist()))
    batches = np.maximum(np.floor(batches), 1) if training.whole_batches else np.ceil(batches)
    taking_part = training.participation * (1 - training.drop) * (1 - training.unseen)
    return float(batches.sum()) * training.local_epochs * taking_part
