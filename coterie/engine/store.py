"""The silos' data on the device: each split of all silos end to end, so that a batch is one gather by index."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.data import mapped
from coterie.data.silo import HoldsData, Part, Silo
from coterie.keys import generator

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, repr=False)
class Ragged(HoldsData):
    """One split of all silos."""

    x: Tensor  # (N, ...)
    y: Tensor  # (N, ...)
    start: Tensor  # (m,) where each silo's samples begin
    count: np.ndarray  # (m,) how many it has
    incumbent: Tensor | None = None  # (N, ...) what the silos' own models of today give; NaN of silos without one
    units: Tensor | None = None  # (N,) a code, from 0 in each silo, that samples of one group share
    places: Tensor | None = None  # (n,) which of the samples are these, where they are not all

    def about(self) -> str:
        return f"{len(self.count)} silos, {len(self.x)} samples"

    def gather(self, silos: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Samples (k, b) of k silos, by their position in the silo."""
        place = self._place(silos, index)
        # What is too large for a GPU lies elsewhere.
        return _picked(self.x, place.to(self.x.device)).to(place.device), _picked(self.y, place)

    def beside(self, silos: Tensor, index: Tensor) -> Tensor | None:
        """What the silos' own models give for these samples (k, b, ...), where any has one."""
        if self.incumbent is None:
            return None
        return _picked(self.incumbent, self._place(silos, index))

    def _place(self, silos: Tensor, index: Tensor) -> Tensor:
        """Where these samples lie."""
        # A silo without samples points past the end; what it is handed instead counts for nothing.
        place = self.start[silos][:, None] + index
        if self.places is None:
            return place.clamp_max(len(self.x) - 1)
        return self.places[place.clamp_max(len(self.places) - 1)]

    def taken(self, places: Sequence[np.ndarray]) -> "Ragged":
        """Some samples of each silo, by their positions in all; they stay where they are."""
        count = np.array([len(place) for place in places])
        start = torch.from_numpy(np.cumsum(count) - count).to(self.start.device)
        return replace(
            self, start=start, count=count, places=torch.from_numpy(np.concatenate(places)).to(self.start.device)
        )

    def units_of(self, silos: Tensor, n: int) -> Tensor | None:
        """The groups of k silos' first n samples (k, n), where any silo has groups; what is missing is in none."""
        if self.units is None:
            return None
        index = torch.arange(n, device=silos.device).expand(len(silos), -1)
        there = index < torch.from_numpy(self.count).to(silos.device)[silos][:, None]
        found = _picked(self.units, self._place(silos, index))
        return torch.where(there, found, index)


class Store:
    """All splits of all silos held in this process."""

    def __init__(self, silos: Sequence[Silo], device: torch.device | str, dtype: torch.dtype = torch.float32) -> None:
        self.names = tuple(silo.name for silo in silos)
        self.device = torch.device(device)
        self._class_weights: Tensor | None = None
        self._whole = self  # of which this holds a round's samples
        self.kept: dict[object, Store] = {}  # the same silos with what a model's frozen prefix gives for their samples
        self._labels: dict[tuple[str, str], np.ndarray] = {
            (split, silo.name): getattr(silo, split).y for silo in silos for split in SPLITS
        }
        self._parts = {split: _ragged([getattr(silo, split) for silo in silos], self.device, dtype) for split in SPLITS}
        self.held = self["train"].count  # (m,) training samples of each silo, also of what a round takes a part of
        self._drawn: tuple[object, Store] | None = None  # what the last round took part with

    def __getitem__(self, split: str) -> Ragged:
        return self._parts[split]

    def class_weights(self, classes: int) -> Tensor:
        """(m, classes) what a sample of a class counts so that a silo's classes count alike, 1 on average."""
        if self._whole is not self:
            return self._whole.class_weights(classes)
        if self._class_weights is None:
            counts = np.stack([np.bincount(self.labels("train", name), minlength=classes) for name in self.names])
            present = (counts > 0).sum(1, keepdims=True)
            made = counts.sum(1, keepdims=True) / (present * np.maximum(counts, 1))
            self._class_weights = torch.from_numpy(made).to(self.device)
        return self._class_weights

    def with_samples(self, samples: Mapping[str, Tensor]) -> "Store":
        """The same silos with other samples (N, ...) of each split."""
        made = copy.copy(self)
        made._drawn = None
        made._parts = {split: replace(part, x=samples[split]) for split, part in self._parts.items()}
        return made

    def drawn(self, most: int, seed: int, round: int) -> "Store":
        """The same silos with at most so many training samples, drawn for a round; 0: all."""
        train, key = self["train"], (most, seed, round)
        if not most or (train.count <= most).all():
            return self
        if self._drawn is not None and self._drawn[0] == key:
            return self._drawn[1]
        made, places, first = copy.copy(self), list[np.ndarray](), train.start.tolist()
        made._labels = {**self._labels}
        for row, (name, n) in enumerate(zip(self.names, train.count.tolist(), strict=True)):
            place = of_round(name, n, most, seed, round)
            made._labels["train", name] = self.labels("train", name)[place]
            places.append(first[row] + place)
        made._parts = {**self._parts, "train": train.taken(places)}
        self._drawn = key, made
        return made

    def labels(self, split: str, silo: str) -> np.ndarray:
        """One silo's, as its data have them."""
        return self._labels[split, silo]


def of_round(name: str, n: int, most: int, seed: int, round: int) -> np.ndarray:
    """With which of its n training samples a silo takes part in a round: at most so many, or with 0 all."""
    if not 0 < most < n:
        return np.arange(n)
    return np.sort(generator(seed, "round samples", round, name).choice(n, most, replace=False, shuffle=False))


def _picked(samples: Tensor, place: Tensor) -> Tensor:
    # Whole samples as rows of a matrix are copied several times faster than by indexing their first axis.
    flat = samples.flatten(1) if samples.ndim > 1 else samples
    return flat.index_select(0, place.flatten()).view(*place.shape, *samples.shape[1:])


def _ragged(parts: list[Part], device: torch.device, dtype: torch.dtype) -> Ragged:
    count = np.array([len(part) for part in parts])
    x = torch.from_numpy(mapped.end_to_end([part.x for part in parts]))
    y = torch.from_numpy(np.concatenate([part.y for part in parts]))
    x = x.to(device, dtype) if x.is_floating_point() else x.to(device)
    y = y.to(device, dtype) if y.is_floating_point() else y.to(device)
    start = torch.from_numpy(np.concatenate([[0], np.cumsum(count)[:-1]])).to(device)
    units = _units(parts, device)
    known = [part.incumbent for part in parts if part.incumbent is not None]
    if not known:
        return Ragged(x, y, start, count, units=units)
    absent = [np.full((len(part), *known[0].shape[1:]), np.nan, np.float32) for part in parts]
    beside = [own if part.incumbent is None else part.incumbent for part, own in zip(parts, absent, strict=True)]
    return Ragged(x, y, start, count, torch.from_numpy(np.concatenate(beside)).to(device, dtype), units)


def _units(parts: list[Part], device: torch.device) -> Tensor | None:
    if all(part.units is None for part in parts):
        return None
    every = [np.arange(len(p)) if p.units is None else np.unique(p.units, return_inverse=True)[1] for p in parts]
    return torch.from_numpy(np.concatenate(every)).to(device)
