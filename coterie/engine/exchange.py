"""One exchange between the server and its silos: what an engine is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from coterie.engine.method import Cohort, Model
from coterie.wire import Deployable


@dataclass(frozen=True)
class Failure:
    """Why a silo did not reply."""

    reason: str


class Rejected(Failure):
    """It did reply, and why that does not count."""


@dataclass(frozen=True)
class CohortPart:
    """Of a cohort whose silos live in several processes, those of this one."""

    places: Tensor  # in the cohort; where none is here, the uploads have one row that stands in
    gathered: Callable[[Tensor], Tensor]  # what is known of the rows here (k_here, ...), as of all of them (k, ...)

    def kept(self, good: Tensor) -> Tensor:
        """Which of the rows here are among these places of the cohort."""
        return torch.isin(self.places, good).nonzero()[:, 0] if len(self.places) else good.new_zeros(1)


@dataclass(frozen=True)
class Replies:
    """Those who replied, their uploads stacked in the same order, and why the others did not."""

    cohort: Cohort
    up: Any  # the method's Up; None when nobody replied
    failures: Mapping[str, Failure] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    share: CohortPart | None = None  # whose uploads are here; None: all

    @property
    def rejected(self) -> dict[str, str]:
        """Those whose replies came and do not count, and why."""
        return {name: failure.reason for name, failure in self.failures.items() if isinstance(failure, Rejected)}


@dataclass(frozen=True)
class Measures:
    """What silos report of their models: by split and measure, one value per silo of the cohort (NaN: no data)."""

    cohort: Cohort
    values: Mapping[tuple[str, str], np.ndarray]
    # By split and silo what its model gives for every sample, where the samples are here: (n, C) or (n,).
    outputs: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    models: Callable[[], Deployable] | None = None  # gives what was measured, on the CPU, where it is here and kept


@dataclass(frozen=True)
class Kept:
    """What an engine needs to go on in another process: tensors, and what JSON can hold."""

    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]


class Engine(Protocol):
    """Where silos are: rows in this process, or real ones behind a network."""

    model: Model

    def train(self, cohort: Cohort, down: Any) -> Replies:
        """One round of local training; what silos keep of it stands once it is settled."""

    def confirm(self, cohort: Cohort, question: Any) -> Replies:
        """A second exchange of the same round, in which nothing is trained."""

    def settle(self, rejected: Tensor) -> None:
        """The replies of these silos do not count: they go back to where they were before the round."""

    def measure(self, cohort: Cohort, down: Any, splits: tuple[str, ...], hold: tuple[int, ...] = ()) -> Measures:
        """What each silo's model is worth on its own data, also by the measure that the study goes by.

        Silos that are elsewhere hold their models after these rounds: the one picked so far, and the one measured.
        """

    def keep_models(self, cohort: Cohort, down: Any, hold: tuple[int, ...]) -> dict[str, int | None]:
        """Have silos that are elsewhere keep the model they hold of this round; without one, what `down` gives.

        Returned are those whose model is not of this round: of which it is, or None if they have kept none.
        """

    def private(self) -> Any | None:
        """The silos' private state in the roster's order, where this engine may see it."""

    def kept(self) -> Kept:
        """What a checkpoint keeps of it."""

    def restore(self, kept: Kept) -> None:
        """Put back what `kept` once gave."""


def as_table(measures: Measures, round: int) -> pd.DataFrame:
    """Measures as rows of the results: round, silo, split, measure, value."""
    names = measures.cohort.names
    if not measures.values:
        return pd.DataFrame(columns=["round", "silo", "split", "measure", "value"])
    # One table at once: a small one for each measure would cost more than the measuring.
    columns = {
        "round": round,
        "silo": names * len(measures.values),
        "split": [split for split, _ in measures.values for _ in names],
        "measure": [measure for _, measure in measures.values for _ in names],
        "value": np.concatenate(list(measures.values.values())),
    }
    return pd.DataFrame(columns).dropna(subset=["value"])
