"""How silos train: the `[train]` table of a study."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.errors import BadInput
from coterie.measure.measures import AUTO, fitting, measure_of, usual
from coterie.options import option


@dataclass(frozen=True)
class Training:
    """Rounds, local training and who takes part."""

    rounds: int = option(30, "rounds of the federation, at most; auto: 200, with a patience of 10", low=1)
    patience: int = option(0, "rounds without a better score on validation data that end a method; 0: any", low=0)
    local_epochs: int = option(5, "epochs of local training in a round", low=1, high=1e5)
    round_samples: int = option(
        0, "training samples that a silo takes part in a round with at most, others in each round; 0: all", low=0
    )
    batch_size: int = option(32, "samples of a mini-batch; 0: as suits the silos' sizes", low=0, high=1e6)
    whole_batches: bool = option(False, "leave out an epoch's last, partial batch, unless a silo has no other")
    optimizer: Literal["sgd", "adam"] = option(
        "sgd", "the silos' optimiser; it starts afresh each round; auto: searched for with lr"
    )
    lr: float = option(0.05, "learning rate; auto: searched for on validation data", above=0, high=1e6)
    momentum: float = option(0.0, "momentum of sgd", low=0, below=1)
    weight_decay: float = option(
        0.0, "weight decay; auto: searched for with lr where columns outnumber rows", low=0, high=1e6
    )
    clip_gradient: float = option(0.0, "longest gradient of a mini-batch; longer ones are scaled back; 0: any", low=0)
    class_weight: Literal["none", "balanced"] = option(
        "none", "balanced: in a silo's training loss its classes count alike, however many samples they have"
    )
    schedule: Literal["constant", "steps", "cosine"] = option("constant", "how the learning rate falls over the rounds")
    schedule_at: tuple[float, ...] = option(
        (0.5, 0.75), "shares of the rounds after which `steps` lowers it", low=0, high=1
    )
    schedule_rounds: int = option(
        0, "rounds that the schedule is laid out over, so that fewer are its beginning; 0: as many as `rounds`", low=0
    )
    schedule_factor: float = option(0.1, "what `steps` multiplies it with", above=0, high=1)
    participation: float = option(1.0, "share of the silos that a round asks", above=0, high=1)
    drop: float = option(0.0, "share of the replies that are lost", low=0, high=1)
    norm_limit: float = option(10.0, "how many times the usual length an upload may have; 0: any", low=0)
    unseen: float = option(0.0, "share of the silos that arrive only after training", low=0, below=1)
    buffers: Literal["shared", "local"] = option(
        "shared", "BatchNorm's statistics: averaged like weights, or kept local"
    )
    keep_features: bool | Literal["auto"] = option(
        AUTO, "compute what is frozen before anything that trains once for each sample, and keep it; auto: where it can"
    )
    measure_every: int = option(1, "rounds between measurements", low=1)
    by: str = option(AUTO, "the measure that rounds and methods are picked by; auto: as the labels are")
    positive: int | Literal["auto"] = option(
        AUTO, "of two classes the one that is looked for, 0 or 1; auto: the rarer", low=0, high=1
    )
    measure: tuple[Literal["train", "validation", "test"], ...] = option(
        ("train", "validation", "test"), "splits that are measured"
    )

    def lr_at(self, round: int) -> float:
        """The learning rate of a round counted from 0."""
        done = round / (self.schedule_rounds or self.rounds)
        if self.schedule == "steps":
            return self.lr * self.schedule_factor ** sum(done >= share for share in self.schedule_at)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * min(done, 1))) / 2
        return self.lr

    def measures(self, round: int) -> bool:
        """Whether to measure after this many rounds."""
        return round % self.measure_every == 0 or round == self.rounds

    def taken(self, samples: int) -> int:
        """With how many of its training samples a silo takes part in a round."""
        return min(samples, self.round_samples or samples)

    def __post_init__(self) -> None:
        if len({*self.measure}) < len(self.measure):
            raise ValueError("measure: name each split once")


def suited(training: Training, classes: int, counts: Sequence[float] | None, sizes: Sequence[int]) -> Training:
    """Training with what the data decide: batch size, measure, and of two classes the one looked for, the rarer.

    `counts` are the training rows of each class (None: of numbers, or not known), `sizes` those of each silo.
    """
    by = training.by
    if by == AUTO:
        by = usual(counts) if counts is not None else "accuracy" if classes else "rmse"
    positive = training.positive
    if positive == AUTO:
        positive = int(np.argmin(counts)) if counts is not None and len(counts) == 2 else 1
    if not measure_of(by).fits(classes):
        what, known = f"{classes} classes" if classes else "numbers", ", ".join(fitting(classes))
        raise BadInput(f"[measure] by = '{by}': cannot be taken of labels that are {what}; take {known}")
    batch = training.batch_size or suiting_batch([training.taken(size) for size in sizes])
    return replace(training, by=by, positive=positive, batch_size=batch)


def suiting_batch(sizes: Sequence[int]) -> int:
    """A batch size, a power of two, for silos of so many training rows.

    The middle silo takes about 20 steps an epoch, the largest 200 at most: enough to learn, few enough to end.
    """
    wanted = max(float(np.median(sizes)) / 20, max(sizes) / 200)
    return int(2 ** np.clip(np.ceil(np.log2(max(wanted, 1))), 4, 14))
