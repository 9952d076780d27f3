"""What a method's silo half works with: k silos' data and the few things one can do with k rows on them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.data.silo import HoldsData
from coterie.engine import recorded
from coterie.engine.dpsgd import DPSGD, PoissonPlan
from coterie.engine.layout import Columns
from coterie.engine.plan import BatchPlan
from coterie.engine.rows import Model
from coterie.engine.solver import Gradient, Optimizer, optimizer
from coterie.engine.store import Store
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.wire import Deployable, Record, State, rows, stack

S = TypeVar("S", bound=Record)
Loss = Callable[[Tensor, "Batch", Tensor | None], Tensor]  # of every sample, from outputs, batch and features

# How many samples are evaluated at once, over all rows: enough to fill the machine, few enough to fit it.
SAMPLES_AT_ONCE = {"cpu": 4096, "cuda": 65536}


@dataclass(frozen=True, repr=False)
class Batch(HoldsData):
    """One mini-batch of each of k silos."""

    x: Tensor  # (k, b, ...)
    y: Tensor  # (k, b, ...)
    index: Tensor  # (k, b) the sample's position in its silo's training set
    mask: Tensor  # (k, b) 1 for a sample, 0 for the filling of a partial batch
    keys: Tensor  # (k,) for dropout
    lr: float | Tensor  # one number, or (k,) with one for each row
    round: int
    ragged: bool = False  # whether a model that couples samples has to tell them from the filling
    draw: int = 0  # which of DP-SGD's draws of noise are this batch's

    def about(self) -> str:
        return f"{len(self.x)} silos, {self.x.shape[1]} samples each, round {self.round + 1}"

    def repeated(self, each: int) -> "Batch":
        """With every silo so many times, one after the other: for so many models of each."""
        if each == 1:
            return self
        names = ("x", "y", "index", "mask", "keys")
        return replace(self, **{name: getattr(self, name).repeat_interleave(each, 0) for name in names})

    def of(self, per_sample: Tensor) -> Tensor:
        """This batch's part of something known of every training sample: (k, n) -> (k, b), (k, c, n) -> (k, c, b)."""
        if per_sample.ndim == 2:
            return per_sample.gather(1, self.index)
        return per_sample.gather(2, self.index[:, None].expand(-1, per_sample.shape[1], -1))


class Weights(State):
    """Plain local training: one model and its optimiser."""

    w: Tensor = rows("the model", role="model")
    opt: Record


@dataclass(frozen=True)
class Task:
    """k silos of a federation in one round."""

    model: Model
    store: Store
    silos: Tensor  # (k,) rows of the store, the silo with the most training steps first
    optimizer: Optimizer
    batch_size: int
    epochs: int  # of local training in a round
    lr: float
    round: int  # counted from 0
    seed: int
    clip_gradient: float = 0.0  # the longest gradient; 0: any
    whole_batches: bool = False  # an epoch's last, partial batch is left out where a silo has another
    most_steps: int | None = None  # of a loop, in a rehearsal
    secret: str = ""  # what only the silo knows, for its noise; a simulation has none
    balanced: bool = False  # a silo's classes count alike in its loss, however many samples they have
    training: Training | None = None  # what all this is from
    rounds: int = 1  # of the whole run
    dpsgd: DPSGD | None = None  # within a loop whose gradients hide every single sample
    group: bytes = b""  # what all silos of a run know and the server does not; a simulation's goes by the seed
    pair: Callable[[str], bytes] | None = None  # what the silo and another one of a run alone know; likewise
    context: bytes = b""  # a digest of what all silos of a round are asked; a simulation asks all the same
    members: tuple[str, ...] = ()  # the roster's names, where the store has not all of them
    largest: Mapping[str, int] = field(default_factory=dict)  # the most samples that a silo of the roster has, by split

    def __post_init__(self) -> None:
        self.model.examine(self.store["train"].x)

    @property
    def k(self) -> int:
        """How many silos."""
        return len(self.silos)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.store.names[i] for i in self.silos.tolist())

    def counts(self, split: str = "train") -> Tensor:
        """How many samples each has: (k,)."""
        return torch.from_numpy(self.store[split].count).to(self.store.device)[self.silos]

    def held(self) -> Tensor:
        """How many training samples each has in all, also where a round takes fewer: (k,)."""
        return torch.from_numpy(self.store.held).to(self.store.device)[self.silos]

    def most(self, split: str) -> int:
        """The most that any silo has, also of those in other processes."""
        return max(int(self.store[split].count.max(initial=0)), self.largest.get(split, 0))

    def take(self, index: Tensor | slice) -> "Task":
        """Some of these silos."""
        return replace(self, silos=self.silos[index])

    def trained_with(self, **own: Any) -> "Task":
        """The same silos, trained with other settings of `[train]` than the study's; the loop stays as it is."""
        assert self.training is not None  # `task_of` sets it
        t = replace(self.training, **own)
        return replace(self, optimizer=_optimizer(t), lr=t.lr_at(self.round) if "lr" in own else self.lr)

    def rng(self, purpose: str, row: int) -> np.random.Generator:
        """A silo's own generator for a purpose of this round."""
        return generator(self.seed, purpose, self.round, self.names[row])

    def start(self, common: bool = True) -> Tensor:
        """First models (k, d) for silos that have none."""
        return self.model.starts(self.seed, self.names, common)

    # The gradient primitive, and its companions.

    def grad(
        self,
        models: Tensor,
        batch: Batch,
        weight: Tensor | None = None,
        loss: Loss | None = None,
        features: bool = False,
    ) -> Gradient:
        """Gradients of the mean loss of each row on its silo's batch.

        models (k, d), or (k, c, d) for c models of each silo; `weight` (k, b) or (k, c, b) multiplies the samples'
        losses before the mean over the batch. A method's own `loss(out, batch, features)` gives the loss of every
        sample (k·c, b) from the outputs (k·c, b, ...), the batch with each silo c times, and what the head is given
        (k·c, b, ...), which is None without `features`.
        """
        if self.dpsgd is not None:
            return self._noised(models, batch, plain=weight is None and loss is None)
        lead = models.shape[:-1]
        flat = models.reshape(-1, models.shape[-1])
        each = batch.repeated(len(flat) // len(batch.x))
        share = each.mask / each.mask.sum(1, keepdim=True)
        share = share if weight is None else share * weight.reshape(share.shape)
        if self.balanced and self.model.classes and each.y.ndim == 2:
            weights = self.store.class_weights(self.model.classes)[self.silos]
            share = share * weights.repeat_interleave(len(each.y) // self.k, 0).gather(1, each.y).to(share.dtype)
        known = each.mask if batch.ragged else None
        own = None if loss is None else lambda out, seen: loss(out, each, seen)
        grads, means, buffers = self.model.gradient(flat, each.x, each.y, share, each.keys, known, own, features)
        grads = self._clipped(grads)
        if buffers is not None:
            buffers = buffers.reshape(*lead, -1)
        return Gradient(grads.reshape(models.shape), means.reshape(lead), buffers, still=self.model.still)

    def _noised(self, models: Tensor, batch: Batch, plain: bool) -> Gradient:
        """The same, so that every single sample is hidden; the batch's loss, which is not, is not given."""
        assert self.dpsgd is not None
        if not plain or self.balanced:
            raise BadInput("privacy: level = 'record' is for the plain loss of each sample; take class_weight = 'none'")
        several = models if models.ndim == 3 else models[:, None]
        total = self.dpsgd.clipped_sum(self.model, several, batch.x, batch.y, batch.mask, batch.keys)
        total += self.dpsgd.noise_of(self.model, self.names, self.silos, several.shape[1], batch.draw)
        expected = self.counts().clamp_max(self.batch_size).to(total.dtype)  # q n, whatever this batch has
        grads = self._clipped((total / expected[:, None, None]).flatten(0, 1)).reshape(models.shape)
        return Gradient(grads, grads.new_full(models.shape[:-1], torch.nan), still=self.model.still)

    def _clipped(self, grads: Tensor) -> Tensor:
        if not self.clip_gradient:
            return grads
        scale: Tensor = (self.clip_gradient / grads.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1)
        return grads * scale

    @torch.no_grad()
    def losses(self, models: Tensor, split: str = "train") -> Tensor:
        """The loss of every sample of a split: (k, n) or (k, c, n), 0 where a silo has fewer than n."""
        if self._apart:
            return _filled([part.losses(models[i : i + 1], split) for i, part in enumerate(self._each())], -1)
        parts = [
            self.model.sample_losses(out, y).reshape(*models.shape[:-1], -1)
            * (mask if models.ndim == 2 else mask[:, None])
            for out, y, mask in self._outputs(models, split)
        ]
        return torch.cat(parts, -1) if parts else models.new_zeros(*models.shape[:-1], 0)

    @torch.no_grad()
    def features(self, models: Tensor, samples: str | Batch = "train") -> Tensor:
        """What the head is given for every sample of a split or of a batch, in evaluation mode.

        (k, n, ...) or (k, c, n, ...), 0 where a silo has fewer than n.
        """
        lead, flat, each = models.shape[:-1], models.reshape(-1, models.shape[-1]), _models_each(models)
        if isinstance(samples, str) and self._apart:
            alone = [part.features(models[i : i + 1], samples) for i, part in enumerate(self._each())]
            return _filled(alone, len(lead))
        batch = (
            [(samples.x, samples.mask)]
            if isinstance(samples, Batch)
            else ((s[0], s[2]) for s in self._samples(samples, each))
        )
        parts = [self._features(flat, _repeated(x, each), _repeated(mask, each)) for x, mask in batch]
        found = torch.cat(parts, 1) if parts else models.new_zeros(len(flat), 0, *self.model.features_shape)
        return found.reshape(*lead, *found.shape[1:])

    def _features(self, rows: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        """The same for rows (k, d) and samples x (k, b, ...), of which some are `mask` (k, b)."""
        if not self.model.couples_evaluation or mask.all():
            found = self.model.features(rows, x)
            return torch.where(mask.reshape(*mask.shape, *[1] * (found.ndim - 2)) > 0, found, 0)
        alone = [self.model.features(rows[i : i + 1], x[i : i + 1, : int(n)]) for i, n in enumerate(mask.sum(1))]
        return _filled(alone, 1, mask.shape[1])

    @torch.no_grad()
    def predict(self, predictor: Deployable, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """Class probabilities (k, b, C, ...) of each silo's model, or values for regression, on x (k, b, ...).

        `beside` is what the silos' own models of today give for them, where they have some.
        """
        return predictor.predict(self.model, x, beside)

    @torch.no_grad()
    def outcomes(self, predictor: Deployable, split: str, raw: bool = False) -> dict[str, Tensor]:
        """What is known of every sample of a split: (k, n, ...) each, 0 where a silo has fewer than n.

        The loss; of classes whether the guess was right, of numbers how far off it was in the label's own unit; and
        the model's outputs; `raw`: as the model gives them, of sequences (k, n, C, ...), which is much.
        """
        if self._apart:
            silos = enumerate(self._each())
            each = [part.outcomes(predictor.take(slice(i, i + 1)), split, raw) for i, part in silos]
            names = next((found for found in each if found), {})
            return {name: _filled([found.get(name, like[:, :0]) for found in each], 1) for name, like in names.items()}
        parts: dict[str, list[Tensor]] = {}
        done = 0
        for x, y, mask, beside in self._samples(split, predictor.networks):
            part = slice(done, done := done + x.shape[1])
            out = self.predict(predictor.held_out(part) if split == "validation" else predictor, x, beside)
            if self.model.classes:
                hits = (out.argmax(2) == y) & out.isfinite().all(2)  # NaN would be the largest, and so a guess
                hits = hits.reshape(*y.shape[:2], -1).to(out.dtype).mean(-1)
                chosen = out.gather(2, y.unsqueeze(2)).squeeze(2).clamp_min(1e-30).log()
                values = {"accuracy": hits, "loss": -chosen.reshape(*y.shape[:2], -1).mean(-1)}
                values["outputs"] = out if y.ndim == 2 or raw else hits
            else:
                values = {
                    "loss": self.model.sample_losses(out, y),
                    **_moments(out.reshape(y.shape), y, self.model.unit),
                }
                values["outputs"] = self.model.unit * out.reshape(y.shape) if y.ndim == 2 else values["mae"]
                values["outputs"] = out.reshape(y.shape) if raw else values["outputs"]
            # A diverged model has lost everything; NaN would say that there was nothing to measure.
            values["loss"] = values["loss"].nan_to_num(nan=torch.inf, posinf=torch.inf)
            for name, value in values.items():
                within = mask.reshape(*mask.shape, *[1] * (value.ndim - 2)) > 0
                parts.setdefault(name, []).append(torch.where(within, value, 0))
        return {name: torch.cat(values, 1) for name, values in parts.items()}

    # Loops. The engine owns them; a method hands over what one step does.

    def run(
        self,
        step: Callable[["Task", S, Batch], S],
        state: S,
        purpose: str,
        epochs: int | None = None,
        every_sample: bool = False,
        dpsgd: DPSGD | None = None,
    ) -> S:
        """Take `step` over some epochs (default: a round's) of every silo's own data; small silos finish earlier.

        With `dpsgd`, batches are drawn by chance and the gradients of `step` hide every single sample.
        """
        full = self.whole_batches and not every_sample
        epochs = self.epochs if epochs is None else epochs
        counts = self.store["train"].count[self.silos.cpu().numpy()]
        silos, key, task = (self.names, counts, self.batch_size, epochs), (self.seed, purpose, self.round), self
        if dpsgd is not None and (self.store.held > self.store["train"].count).any():
            raise BadInput(
                "privacy: level = 'record' draws its batches from all samples; take [train] round_samples = 0"
            )
        if dpsgd is None:
            plan = BatchPlan(*silos, *key, whole=full)
        else:
            dpsgd = dpsgd.keyed(self.secret, *key)
            plan, task = PoissonPlan(*silos, dpsgd, *key), replace(self, dpsgd=dpsgd)
        if self.most_steps is not None:
            plan.shorten(self.most_steps)
        order = torch.from_numpy(plan.order).to(self.store.device)
        mask, index = (order >= 0).to(self.model.dtype), order.clamp_min(0)
        noise = plan.noise() if self.model.draws else np.zeros(plan.order.shape[:2], dtype=np.int64)
        keys = torch.from_numpy(noise).to(self.store.device)
        finished = list[S]()

        def batch(task: Task, rows: Tensor | slice, t: int, size: int, ragged: bool = False) -> Batch:
            made = task._batch(index[rows, t, :size], mask[rows, t, :size], keys[rows, t], ragged)
            return replace(made, draw=t)

        t, total = 0, int(plan.steps.max(initial=0))
        while t < total:
            active = plan.active(t)
            if active < task.k:
                # A copy of these rows alone: a view would keep all rows of this step until the end.
                finished.append(state.take(slice(active, task.k)).map(torch.clone))
                state, task = state.take(slice(0, active)), task.take(slice(0, active))
            last = int(plan.steps[active - 1])  # the step before which all of these rows train
            alike = not self.model.couples_samples and task.dpsgd is None
            if alike and recorded.pays(self.store.device, last - t, step, state):
                known = (task, index[:active], mask[:active], keys[:active])
                state, t = recorded.replayed(step, partial(_step_at, step, *known), state, t, last)
                continue
            groups = list(plan.alike(t)) if self.model.couples_samples else []
            if len(groups) < 2 or self.model.takes_padding:
                size = groups[0][1] if groups else plan.width(t)
                state = step(task, state, batch(task, slice(0, active), t, size, len(groups) > 1))
            else:
                for group, size in groups:
                    part = task.take(group)
                    state = state.put(group, step(part, state.take(group), batch(part, group, t, size)))
            t += 1
        return stack([state, *reversed(finished)])

    def fit(self, models: Tensor, purpose: str, epochs: int | None = None) -> Tensor:
        """Plain local training of one model per silo."""
        return self.run(plain_step, begun(self, models), purpose, epochs).w

    def first_batch(self) -> Batch:
        """Each silo's first samples, for a trial."""
        size = min(self.batch_size, int(self.counts().min()))
        index = torch.arange(size, device=self.store.device).expand(self.k, -1)
        mask = torch.ones(self.k, size, dtype=self.model.dtype, device=self.store.device)
        return self._batch(index, mask, torch.zeros(self.k, dtype=torch.int64, device=self.store.device))

    def _batch(self, index: Tensor, mask: Tensor, keys: Tensor, ragged: bool = False) -> Batch:
        x, y = self.store["train"].gather(self.silos, index)
        return Batch(x, y, index, mask, keys, self.lr, self.round, ragged)

    @property
    def _apart(self) -> bool:
        """Whether what fills a smaller silo's samples would change what is measured of them."""
        return self.k > 1 and self.model.couples_evaluation

    def _each(self) -> Iterator["Task"]:
        return (self.take(slice(i, i + 1)) for i in range(self.k))

    def _samples(self, split: str, each: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
        """All samples of a split for `each` models a silo, a stack of (k, b) at a time, and which of them are real."""
        ragged = self.store[split]
        counts = self.counts(split)
        longest = int(counts.max())
        at_once = max(1, SAMPLES_AT_ONCE.get(self.store.device.type, 4096) // (self.k * each))
        for first in range(0, longest, at_once):
            index = torch.arange(first, min(first + at_once, longest), device=self.store.device)
            mask = index < counts[:, None]
            place = torch.where(mask, index, 0)
            x, y = ragged.gather(self.silos, place)
            yield x, y, mask.to(self.model.dtype), ragged.beside(self.silos, place)

    def _outputs(self, models: Tensor, split: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        flat = models.reshape(-1, models.shape[-1])
        each = _models_each(models)
        for x, y, mask, _ in self._samples(split, each):
            out, _ = self.model.forward(flat, _repeated(x, each), training=False)
            yield out, _repeated(y, each), mask


def task_of(
    training: Training,
    model: Model,
    store: Store,
    silos: Tensor,
    round: int,
    seed: int,
    most_steps: int | None = None,
    secret: str = "",
) -> Task:
    """These silos (k,) of a store in one round, trained as a study says."""
    t, store = training, store.drawn(training.round_samples, seed, round)
    return Task(
        model=model, store=store, silos=silos, round=round, seed=seed, most_steps=most_steps, secret=secret,
        optimizer=_optimizer(t), batch_size=t.batch_size, epochs=t.local_epochs, lr=t.lr_at(round), rounds=t.rounds,
        clip_gradient=t.clip_gradient, whole_batches=t.whole_batches, balanced=t.class_weight == "balanced", training=t,
    )  # fmt: skip


def _optimizer(training: Training) -> Optimizer:
    return optimizer(training.optimizer, training.momentum, training.weight_decay)


def _moments(out: Tensor, y: Tensor, unit: float) -> dict[str, Tensor]:
    """Of every sample (k, b, targets): how far off, and what the variance of the targets is made of."""
    out, y = (t.reshape(*y.shape[:2], -1) for t in (out, y))
    off = unit * (out - y).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return {"mae": off.mean(-1), "mean": y, "square": y.square()}


def _filled(parts: list[Tensor], axis: int, least: int = 0) -> Tensor:
    """Silos' values one below the other, with zeros where one has fewer along an axis than another or the least."""
    longest = max(least, *(part.shape[axis] for part in parts))
    after = [0, 0] * (parts[0].ndim - 1 - axis % parts[0].ndim)
    return torch.cat([F.pad(part, (*after, 0, longest - part.shape[axis])) for part in parts])


def _step_at(
    step: Callable[[Task, S, Batch], S], task: Task, index: Tensor, mask: Tensor, keys: Tensor, state: S, at: Tensor
) -> S:
    """A step on the batches (k, steps, b) at a place (1,) that is known on the device."""
    here = [t.index_select(1, at).squeeze(1) for t in (index, mask, keys)]
    return step(task, state, task._batch(here[0], here[1], here[2]))


def begun(task: Task, w: Tensor, only: Columns | None = None) -> Weights:
    """Rows (k, d) before the first step, on all of their columns or on some."""
    return Weights(w=w, opt=task.optimizer.init(w, only))


def stepped(task: Task, state: S, gradient: Gradient, batch: Batch, only: Columns | None = None) -> S:
    """A state after one optimiser step of its model `w` along a gradient, on all of its columns or on some."""
    now: Any = state
    w, opt = task.optimizer.step(now.w, gradient, now.opt, batch.lr, only)
    return state.replace(w=w, opt=opt)


def plain_step(task: Task, state: S, batch: Batch) -> S:
    """One optimiser step of a state's model `w` on the silo's own loss."""
    now: Any = state
    return stepped(task, state, task.grad(now.w, batch), batch)


def _models_each(models: Tensor) -> int:
    """How many models of each silo: c of (k, c, d), 1 of (k, d)."""
    return models.shape[1] if models.ndim == 3 else 1


def _repeated(t: Any, each: int) -> Any:
    return t if each == 1 else t.repeat_interleave(each, 0)
