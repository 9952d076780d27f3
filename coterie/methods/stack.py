"""Stack: a silo need not choose a method. Several train side by side, and each silo mixes their predictions.

Coterie's own; its parts are Guo et al. (ICML 2017) for temperatures, mixture weights by EM with a prior that is learned
from all silos (empirical Bayes), and log-loss bounds of Bayesian mixtures (Vovk 1990; Csiszár and Tusnády 1984).

Candidates are what each member would deploy and, where it has one, the model that the server keeps for the silo.
1. Temper: one temperature T_c for a candidate (of numbers a variance), from sums over all silos' held-out samples.
2. Held-out samples are the validation split: ℓ_cj = p_c(y_j | x_j).
3. Weigh: EM, r_cj ∝ π_c ℓ_cj and π_c ∝ Σ_j r_cj + κ π̄_c. The prior π̄ and κ, in samples, are common to all silos.
4. Gate: a silo takes its model alone instead if that is surely better on its held-out samples.
Temperatures, prior and κ come from the uploads of earlier rounds. A silo finds its own weights whenever its model is
asked for, from the candidates of that very round, so one round is one model. Held-out samples are judged by weights
found without them, those of one group (a patient) without the group, and the gate counts groups.

Members that share a training share it: FedAvg is trained once for itself, for its fine-tuned and its local copies, and
by Ditto. A member's draws, and with them its models, are those of a run of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.engine.method import Batch, Cohort, Method, Model, Roster, Task
from coterie.engine.predictors import Ensemble, Incumbent, tempered
from coterie.engine.wrapper import layers
from coterie.methods.parts import stacking
from coterie.methods.parts.distilling import distilled
from coterie.methods.parts.members import Candidate, as_table, bare, candidates_of, is_alone, members_of, trainings_of
from coterie.methods.parts.stacking import KAPPAS, TEMPERATURES
from coterie.methods.wrappers.blind import WithBlind
from coterie.methods.wrappers.privacy import WithPrivacy
from coterie.methods.wrappers.secagg import WithSecAgg
from coterie.methods.wrappers.trained import WithTraining
from coterie.options import option
from coterie.wire import Deployable, Down, Private, Record, Server, State, Up, rows, shared

MEMBERS = ("separate", "fedavg-ft", "fedamp", "ditto", "fedem", "fedavg")
INCUMBENT = "incumbent"
FIRST_KAPPA = 30.0


class Sums(Server):
    """What the silos last sent of their held-out samples, beside what the members keep."""

    curves: Tensor = rows("summed log-loss of each candidate at each temperature", "c", "t")
    counts: Tensor = rows("held-out samples that each candidate accounts for", "c")
    fits: Tensor = rows("log-likelihood, at each κ, of samples by weights found without them", "g")
    samples: Tensor = rows("held-out samples that this is of")


class StackDown(Down):
    """What all silos' sums give, beside what the members send."""

    scale: Tensor = shared("the candidates' temperatures T_c; of numbers their variances", "c")
    prior: Tensor = shared("the candidates' common weights, each silo's prior", "c")
    fitted: Tensor = shared("κ, the samples that the prior is worth, and the gate's level", "2")


class StackUp(Up):
    """Sums over a silo's held-out samples, beside what the members upload; zeros between the rounds of fitting."""

    curves: Tensor = rows(
        "summed log-loss of each candidate at each temperature; of numbers the summed squared error, and of how many",
        "c", "t", seen_by="server",
    )  # fmt: skip
    counts: Tensor = rows("held-out samples that each candidate accounts for", "c", seen_by="server")
    fits: Tensor = rows("log-likelihood, at each κ, of samples by weights found without them", "g", seen_by="server")


class StackPrivate(Private):
    """What the members keep."""


class StackState(State):
    """The members in training."""


@dataclass(frozen=True)
class Stack(Method):
    """Several methods side by side; each silo mixes their predictions by its held-out data."""

    paper = "Coterie's own"
    summary = "several methods at once, whose predictions each silo mixes by its validation data"
    lr_by_row = False
    one_model = False

    of: tuple[str | dict[str, Any], ...] = option(
        MEMBERS, "the methods: names, or tables that name one as `method` beside its options"
    )
    alpha: float = option(0.05, "α, the chance that the gate switches any silo wrongly", above=0, below=1)
    incumbent: bool = option(False, "whether the model that a silo has of its own is a candidate there")
    distil: bool = option(False, "whether a silo deploys one network that has learned what its mixture predicts")
    fit_every: int = option(5, "rounds between two fits of temperatures, prior and κ, after the first ones", low=1)

    def __post_init__(self) -> None:
        if not self.of:
            raise ValueError("'of' names no method; give at least one")
        if "stack" in (as_table(each).get("method") for each in self.of):
            raise ValueError("'of' has a stack inside; name its members instead")

    # Who trains, and who is mixed.

    @cached_property
    def members(self) -> dict[str, Method]:
        """The methods by label."""
        return members_of(self.of)

    def trained(self) -> list[tuple[Method, dict[str, Any]]]:
        """Each member, and what it trains with instead of the study's settings."""
        own = (dict(as_table(each).get("train", {})) for each in self.of)
        return list(zip(map(bare, self.members.values()), own, strict=True))

    def with_training(self, found: Sequence[Mapping[str, Any]]) -> "Stack":
        """The stack with these settings of its members, but for what they are given themselves."""
        own = [{**settings, **train} for settings, (_, train) in zip(found, self.trained(), strict=True)]
        tables = (
            {**as_table(each), "train": train} if train else each for each, train in zip(self.of, own, strict=True)
        )
        return replace(self, of=tuple(tables))

    @cached_property
    def trainings(self) -> dict[str, Method]:
        """What is trained, each once, by the name of its fields in records."""
        return trainings_of(self.members)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """All that is mixed."""
        found = candidates_of(self.members, self.trainings)
        own = Candidate(INCUMBENT, found[0].training, lambda task, down, private: Incumbent())
        return (*found, own) if self.incumbent else tuple(found)

    def about(self, incumbent: str) -> dict[str, Any]:
        """What a model's file holds of the mixture beside its weights."""
        if self.distil:
            return {}
        known = {INCUMBENT: incumbent} if incumbent and self.incumbent else {}
        return {"candidates": [each.name for each in self.candidates], **known}

    @property
    def today(self) -> list[int]:
        """The candidates that the gate holds the mixture against: training alone, and a silo's own model."""
        return [
            i
            for i, each in enumerate(self.candidates)
            if each.name == INCUMBENT or (each.name in self.members and is_alone(self.members[each.name]))
        ]

    # What crosses: the members' records side by side, and the sums.

    down = property(lambda self: self._holding(StackDown, "down"))
    up = property(lambda self: self._holding(StackUp, "up"))
    private = property(lambda self: self._holding(StackPrivate, "private"))

    def _holding(self, kind: Any, what: str) -> Any:
        return _holding(kind, tuple((name, getattr(each, what)) for name, each in self.trainings.items()))

    @property
    def from_own(self) -> bool:  # type: ignore[override]
        return any(each.from_own for each in self.trainings.values())

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        inside = {
            f"{name}.{axis}": size
            for name, each in self.trainings.items()
            for axis, size in each.axes(roster, model).items()
        }
        return super().axes(roster, model) | inside | {"c": len(self.candidates), "t": _points(model), "g": len(KAPPAS)}

    def _each(self, call: Callable[..., Any], *records: Any) -> dict[str, Any]:
        """What a call gives for every training, with its part of each of these records."""
        return {
            name: call(each, *(None if record is None else getattr(record, name) for record in records))
            for name, each in self.trainings.items()
        }

    # Server

    def open(self, roster: Roster, model: Model) -> Any:
        samples = torch.zeros(len(roster), dtype=torch.float64, device=model.device)
        empty = self._nothing(len(roster), model)
        return _together(Sums, self._each(lambda own: own.open(roster, model)), **empty, samples=samples)

    def send(self, server: Any, cohort: Cohort) -> Any:
        parts = self._each(lambda own, kept: own.send(kept, cohort), server)
        return _together(StackDown, parts, **self._fitted(server, cohort))

    def _fitted(self, server: Any, cohort: Cohort) -> dict[str, Tensor]:
        """What all silos' sums give."""
        total = server.samples.sum()
        if cohort.model.classes:
            scale = stacking.fitted_temperatures(server.curves.sum(0))
        else:
            scale = stacking.fitted_variances(*server.curves.sum(0).unbind(1))
        kappa = KAPPAS[int(server.fits.sum(0).argmax())] if total > 0 else FIRST_KAPPA
        fitted = scale.new_tensor([kappa, self.alpha / max(len(cohort.roster), len(server.samples))])
        return {"scale": scale, "prior": stacking.common_prior(server.counts), "fitted": fitted}

    def receive(self, server: Any, cohort: Cohort, up: Any) -> Any:
        parts = self._each(lambda own, kept, its: own.receive(kept, cohort, its), server, up)
        if not self._fits(cohort.round):
            return server.replace(**parts)
        held = cohort.roster.validation[cohort.ids].to(server.samples)
        sums = {name: getattr(server, name).index_copy(0, cohort.ids, getattr(up, name)) for name in UPLOADED}
        return server.replace(**parts, **sums, samples=server.samples.index_copy(0, cohort.ids, held))

    def unpacked(self, down: Any, up: Any) -> Any:
        parts = self._each(lambda own, *both: own.unpacked(*both), down, up)
        return _together(StackUp, parts, **{name: getattr(up, name) for name in UPLOADED})

    # Silo

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Any:
        return _together(StackPrivate, self._each(lambda own: own.enroll(roster, model, rows)))

    def begin(self, task: Task, down: Any, private: Any) -> Any:
        return _together(StackState, self._each(lambda own, *both: own.begin(task, *both), down, private))

    def step(self, task: Task, state: Any, batch: Batch) -> Any:
        return state.replace(**self._each(lambda own, its: own.step(task, its, batch), state))

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        ended = self._each(lambda own, *all_of: own.end(task, *all_of), state, down, private)
        kept = _together(StackPrivate, {name: each for name, (_, each) in ended.items()})
        # Of the models as the round began: what a silo keeps by now is one round ahead of what the server sent.
        sums = self._sums(task, down, private) if self._fits(task.round) else self._nothing(task.k, task.model)
        return _together(StackUp, {name: each for name, (each, _) in ended.items()}, **sums), kept

    def _fits(self, round: int) -> bool:
        """Whether silos send their sums: fitting trains what is fine-tuned once more, so not in every round."""
        return round in (1, 2, 4) or (round > 0 and round % self.fit_every == 0)

    def _sums(self, task: Task, down: Any, private: Any) -> dict[str, Tensor]:
        """What leaves of a silo's held-out samples."""
        held = self._held(task, down, self._deployed(task, down, private))
        every = held.prior.new_tensor(KAPPAS)
        others = stacking.others(held.likelihoods, held.mask, held.prior, every, held.units)
        fits = stacking.left_out(held.likelihoods, held.mask, others).sum(2)
        weights, _ = stacking.bounded(held.likelihoods, held.mask, held.prior, down.fitted[0])
        return {"curves": held.curves, "counts": stacking.counts(held.likelihoods, held.mask, weights), "fits": fits}

    def _nothing(self, k: int, model: Model) -> dict[str, Tensor]:
        """The sums of k silos of whose samples nothing is known."""
        c = len(self.candidates)
        sums = {"curves": (c, _points(model)), "counts": (c,), "fits": (len(KAPPAS),)}
        return {n: torch.zeros(k, *shape, dtype=torch.float64, device=model.device) for n, shape in sums.items()}

    def personal(self, task: Task, down: Any, private: Any) -> Deployable:
        candidates = self._deployed(task, down, private)
        held = self._held(task, down, candidates)
        found = stacking.weighed(held.likelihoods, held.mask, held.prior, down.fitted[0], held.units)
        weights, others = self._gated(held, found, float(down.fitted[1].clamp(1e-12, 0.5)))
        temperatures = down.scale if task.model.classes else torch.ones_like(down.scale)
        kind = task.model.dtype
        apart = weights[..., None].repeat(1, 1, task.most("validation"))  # alike in every process
        apart[..., : others.shape[2]] = torch.where(held.mask[:, None] > 0, others, weights[..., None])
        temperatures = temperatures.expand(task.k, -1).to(kind)
        mixture = Ensemble.of(candidates, temperatures, weights.to(kind), apart.to(kind))
        return distilled(self._alone(task), mixture) if self.distil else mixture

    def _alone(self, task: Task) -> Task:
        """The task with the settings of the member that trains on a silo's own data alone, if there is one."""
        alone = (each for each in self.members.values() if is_alone(each) and isinstance(each, WithTraining))
        return next((each.task(task) for each in alone), task)

    def _gated(self, held: "Held", found: stacking.Weighed, level: float) -> tuple[Tensor, Tensor]:
        """The weights, and those for each sample; or all of it for what a silo has today, where that is better."""
        shares = torch.cat([found.weights[..., None], found.others], 2)  # (k, c, 1 + n)
        best = torch.full_like(shares[:, 0], -torch.inf)
        for c in self.today:
            own = held.likelihoods[:, c]
            least = None if held.p is None else stacking.least_ahead(held.p, c, found.others)
            closed = stacking.gate(own - found.left_out, least, held.mask, level / len(self.today), held.units)
            worth = (own * held.mask).sum(1, keepdim=True)
            closed = closed & (held.prior[:, c : c + 1] > 0) & (worth > best)
            best = torch.where(closed, worth, best)
            only = torch.nn.functional.one_hot(torch.tensor(c), shares.shape[1]).to(shares)
            shares = torch.where(closed[:, None], only[:, None], shares)
        return shares[..., 0], shares[..., 1:]

    def _deployed(self, task: Task, down: Any, private: Any) -> list[Deployable]:
        made = []
        for each in self.candidates:
            given = each.give(task, getattr(down, each.training), getattr(private, each.training))
            assert given is not None  # a candidate is there or it is not, whatever the round
            made.append(given)
        return made

    def _held(self, task: Task, down: Any, candidates: Sequence[Deployable]) -> "Held":
        """What the candidates are worth on each silo's held-out samples."""
        counts = task.counts("validation")
        n = int(counts.max())
        mask = (torch.arange(n, device=counts.device) < counts[:, None]).double()
        likelihoods, curves, usable, every_p = [], [], [], []
        for c, candidate in enumerate(candidates):
            found = task.outcomes(candidate, "validation", raw=True) if n else {}
            loss = found.get("loss", mask)
            if task.model.classes:
                p = found.get("outputs", mask[..., None])
                temperature = down.scale[c : c + 1].clamp_min(1e-3)
                every = torch.cat([down.scale.new_tensor(TEMPERATURES), temperature])
                every_p.append(tempered(p.nan_to_num(0.0), temperature.to(p), 2))
                own = stacking.class_likelihoods(p, loss, every)  # (t + 1, k, n)
                curves.append((-own[:-1] * mask).sum(2).T)
                likelihoods.append(own[-1])
                usable.append(p.isfinite().flatten(1).all(1))
            else:
                sums = torch.stack([(loss.double() * mask).sum(1), mask.sum(1)], 1)
                curves.append(sums)
                likelihoods.append(stacking.number_likelihoods(loss, down.scale[c].clamp_min(1e-9)))
                usable.append(loss.isfinite().all(1))
        sound = torch.stack(usable, 1).double()  # what has diverged has no share
        prior = down.prior.clamp_min(1e-9) * torch.where(sound.any(1, keepdim=True), sound, 1.0)
        finite = torch.stack(likelihoods, 1).nan_to_num(nan=-1e9, neginf=-1e9).clamp_min(-1e9)
        totals = torch.stack(curves, 1)
        totals = torch.where(sound[..., None] > 0, totals, torch.zeros_like(totals)).clamp_max(1e9)
        units = task.store["validation"].units_of(task.silos, n)
        stacked = torch.stack(every_p, 1) if every_p else None
        return Held(finite, totals, mask, prior / prior.sum(1, keepdim=True), units, stacked)

    # A silo that arrives after training: it weighs its candidates by its own validation data and the members' prior.

    def host(self, server: Any, newcomers: Cohort, up: Any | None) -> Any:
        parts = self._each(lambda own, kept, its: own.host(kept, newcomers, its), server, up)
        return _together(StackDown, parts, **self._fitted(server, newcomers))

    def adapt(self, task: Task, down: Any, private: Any | None) -> tuple[Any | None, Any]:
        adapted = self._each(lambda own, *both: own.adapt(task, *both), down, private)
        kept = _together(StackPrivate, {name: each for name, (_, each) in adapted.items()})
        if all(up is None for up, _ in adapted.values()):
            return None, kept
        ups = {name: self._filled(task, name, up, down, kept) for name, (up, _) in adapted.items()}
        return _together(StackUp, ups, **self._nothing(task.k, task.model)), kept

    def _filled(self, task: Task, name: str, up: Any | None, down: Any, private: Any) -> Any:
        """A member's upload; of one that has settled, what it would send untrained, since others wait for an answer."""
        if up is not None:
            return up
        each, sent, kept = self.trainings[name], getattr(down, name), getattr(private, name)
        return each.end(task, each.begin(task, sent, kept), sent, kept)[0]

    # What a person wants to know.

    def fewest(self, samples: int, steps: tuple[int, ...]) -> int:
        return min(member.fewest(samples, steps) for member, _ in self.trained())

    def refusal(self, roster: Roster, model: Model) -> str | None:
        for label, member in self.members.items():
            for key, wrap in COVERS.items():
                if any(isinstance(each, wrap) for each in layers(member)):
                    return (
                        f"{label}: {key} covers its upload, not the sums by which candidates are weighed; leave it out"
                    )
            if member.learns_from_validation:
                return f"{label}: it learns from the validation data that candidates are weighed by; leave it out"
            if reason := member.refusal(roster, model):
                return f"{label}: {reason}"
        return None

    def trace(self, server: Any, everyone: Cohort, private: Any | None) -> Mapping[str, Tensor]:
        found: dict[str, Tensor] = {}
        for inside in self._each(lambda own, kept, its: own.trace(kept, everyone, its), server, private).values():
            found = {**inside, **found}
        return {**found, "shares": server.counts / server.counts.sum(1, keepdim=True).clamp_min(1)}


COVERS = {"privacy": WithPrivacy, "blind": WithBlind, "secagg": WithSecAgg}
UPLOADED = ("curves", "counts", "fits")


class Held(NamedTuple):
    """k silos' held-out samples by c candidates."""

    likelihoods: Tensor  # (k, c, n)
    curves: Tensor  # (k, c, t)
    mask: Tensor  # (k, n)
    prior: Tensor  # (k, c)
    units: Tensor | None  # (k, n) which samples belong together, where any do
    p: Tensor | None  # (k, c, n, C, ...) probabilities, tempered


def _points(model: Model) -> int:
    return len(TEMPERATURES) if model.classes else 2


def _together(kind: Any, parts: Mapping[str, Record], **own: Tensor) -> Any:
    """The members' records beside what a record has of its own."""
    return _holding(kind, tuple((name, type(part)) for name, part in parts.items()))(**parts, **own)


@cache
def _holding(kind: Any, parts: tuple[tuple[str, type[Record]], ...]) -> Any:
    """A type of records that hold one of each member."""
    inner = {"__annotations__": dict(parts), "__module__": __name__}
    return type(kind.__name__, (kind,), {"__doc__": kind.__doc__, **inner})
