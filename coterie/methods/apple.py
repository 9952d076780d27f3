"""APPLE: adaptive personalized cross-silo federated learning. Each silo learns how much of whose model it needs.

"Adapt to Adaptation: Learning to Personalize for Cross-Silo Federated Learning" (equations by its numbers).

A silo trains its core model c_i, the only model it uploads, and a private directed-relationship vector p_i; it deploys
Σ_j p_ij c_j as it stands when training ends (Algorithm 1, lines 7 and 13): with the core models that it trained with.
One gradient at that mixture gives both updates by the chain rule. The same mixture of the others' newest core models,
to which p is not fitted yet, is measured beside it, as the cloud model.

What the paper leaves open, and what differs: λ's exponential is ε^{r/L} (A.1 prints e^{r/L}, which grows); rounds count
from 1 (Algorithm 1), and `L` is a number of rounds where the paper gives a share of them. p's step size is never above
1/(λμ), beyond which a step on the penalty overshoots p_0: so μ → ∞ keeps p = p_0. The mixture need be neither positive
nor sum to one, so BatchNorm's statistics are not mixed: a silo uses its own. Under a budget the silo asks for the
models it wants next, because p must not leave it; the first it asks for are drawn by the server. Before that it is
given all core models as they start, as in the published code; with `first="budget"` it is not, and a p_ij whose model
was never seen takes no part and does not move: until all were seen the mixture is short of them.

`fidelity="official"` is the published code: no ½ in eq. 7, momentum 0.9 for p, and every core model starts from random
weights of its own.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.engine.across import all_silos
from coterie.engine.method import Batch, Cohort, Method, Model, Roster, Task
from coterie.keys import generator
from coterie.methods.parts.bank import mixture, products
from coterie.options import option
from coterie.wire import Down, Predictor, Private, Record, Server, State, Up, bank, rows, shared

EPSILON = 1e-3  # the floor of the exponential λ, A.1
MOMENTUM = 0.9  # of p in the published code; like every optimiser's here, it starts afresh each round


class Cores(Server):
    """The core models: every silo's newest and, under a budget, each older one that some silo still uses."""

    models: Tensor = shared("core models, each held once", "n", role="model")
    newest: Tensor = rows("which of them is the silo's newest")
    p0: Tensor = shared("n_j/n, where p starts and what it is pulled to", "N")
    seen: Tensor | None = rows("which of them the silo last saw of each other silo (-1: none)", "N", default=None)
    asked: Tensor | None = rows("whose core models the silo is given next", "M", default=None)


class CoresDown(Down):
    """The others' core models, as the silo may use them in this round."""

    cores: Tensor = bank("core models of other silos, new or as last seen", picks="picks")
    picks: Tensor = rows("which of them is whose (-1: never seen, or the silo's own)", "N", below="n")
    p0: Tensor | None = rows("n_j/n, the centre of the pull on p", "N", default=None)


class CoreUp(Up):
    """A silo's core model and, under a budget, its next wishes."""

    core: Tensor = rows("the silo's core model c_i", role="model", seen_by="server; the silos that download it")
    asked: Tensor | None = rows(
        "whose core models it wants next: likelier those it weighs highly",
        "M",
        role="silo",
        seen_by="server",
        default=None,
    )


class Relations(Private):
    """A silo's core model and its directed relationships."""

    core: Tensor = rows("its core model c_i", role="model")
    p: Tensor = rows("p_i, its weight on each silo's core model", "N")
    deployed: Tensor = rows("Σ_j p_ij c_j as it was trained", role="model")
    place: Tensor = rows("which of the N it is itself", fixed=True, below="N")
    order: Tensor | None = rows("the silos' places in alphabetical order", "N", fixed=True, below="N", default=None)


class Mixing(State):
    """A mixture in training: only the own core model and p move."""

    core: Tensor = rows("its core model c_i", role="model")
    p: Tensor = rows("p_i", "N")
    place: Tensor = rows("which of the N it is itself")
    opt: Record
    cores: Tensor = bank("the others' core models", picks="picks")
    picks: Tensor = rows("which of them is whose", "N")
    p0: Tensor | None = rows("the centre of the pull on p", "N", default=None)
    speed: Tensor | None = rows("running sum of p's slopes", "N", default=None)


@dataclass(frozen=True)
class APPLE(Method[Cores, CoresDown, CoreUp, Relations, Mixing]):
    """Each silo deploys a mixture of core models whose weights it learns and keeps to itself."""

    by_columns = True
    paper = "Adapt to Adaptation (APPLE), 2021"
    summary = "a mixture of the silos' core models, with weights that each silo learns and keeps private"
    lr_by_row = True

    mu: float = option(0.1, "μ, the pull of p towards p_0; 0: none", low=0, below=math.inf)
    scheduler: Literal["cos", "exp"] = option("cos", "how λ(r), the pull's share in round r, falls from 1 to 0")
    L: int = option(32, "the round after which λ is 0 (the paper: 10, 20 or 30% of its 160 rounds)", low=1)
    dr_lr: float = option(1e-3, "η_2, the learning rate of p", above=0)
    dr_momentum: float | None = option(
        None, "momentum of p; none: 0.9 with fidelity = official, 0 with paper", low=0, below=1
    )
    budget: int | None = option(None, "M, core models a silo downloads in a round; none: all the others'", low=1)
    first: Literal["all", "budget"] = option("all", "core models a silo is given before round 1: all, or M of them")
    fidelity: Literal["paper", "official"] = option("paper", "its equations, or what its published code does")

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        asked = {} if self.budget is None else {"M": min(self.budget, len(roster) - 1)}
        return super().axes(roster, model) | asked

    # Server

    def open(self, roster: Roster, model: Model) -> Cores:
        models = model.starts(roster.seed, roster.names, common=self.fidelity == "paper")
        m = len(roster)
        cores = Cores(models=models, newest=torch.arange(m, device=models.device), p0=_p0(roster, model))
        if self.budget is None:
            return cores
        order = _alphabetical(roster)
        first = [  # §3.4: none was seen yet, ties are broken at random
            generator(roster.seed, "apple first", name).permutation(order[order != i])[: self.budget]
            for i, name in enumerate(roster.names)
        ]
        asked = torch.from_numpy(np.stack(first)).to(models.device)
        given = cores.newest if self.first == "all" else torch.full_like(cores.newest, -1)
        return cores.replace(seen=given.repeat(m, 1).fill_diagonal_(-1), asked=asked)

    def send(self, server: Cores, cohort: Cohort) -> CoresDown:
        p0 = server.p0.expand(len(cohort.ids), -1) if self.pull(cohort.round) else None
        return CoresDown(cores=server.models, picks=self._picks(server)[cohort.ids], p0=p0)

    def receive(self, server: Cores, cohort: Cohort, up: CoreUp) -> Cores:
        newest, seen, asked = server.newest.index_fill(0, cohort.ids, -1), server.seen, server.asked
        if seen is not None and asked is not None and up.asked is not None:
            seen = seen.index_copy(0, cohort.ids, self._picks(server)[cohort.ids])
            asked = asked.index_copy(0, cohort.ids, up.asked)
        # Models that nobody uses any more go; a missing silo's last one stays.
        used = torch.cat([newest, newest if seen is None else seen.flatten()])
        used = torch.unique(used[used >= 0])
        moved = newest.new_full((len(server.models) + 1,), -1)  # its last entry is where -1 points
        moved[used] = torch.arange(len(used), device=used.device)
        newest = moved[newest].index_copy(0, cohort.ids, len(used) + torch.arange(len(up.core), device=used.device))
        models = torch.cat([server.models[used], up.core])
        return server.replace(models=models, newest=newest, seen=None if seen is None else moved[seen], asked=asked)

    def _picks(self, server: Cores) -> Tensor:
        """What each silo uses this round of each other silo: (m, N)."""
        if server.seen is None or server.asked is None:
            return server.newest.repeat(len(server.newest), 1).fill_diagonal_(-1)
        return server.seen.scatter(1, server.asked, server.newest[server.asked])

    # Silo

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Relations:
        order = torch.from_numpy(_alphabetical(roster)).to(model.device)
        core = model.starts(roster.seed, roster.take(rows).names, common=self.fidelity == "paper")
        return Relations(
            core=core,
            deployed=core.clone(),  # with one start for all this is the mixture
            p=_p0(roster, model).repeat(len(rows), 1),  # §3.3: p_0 = [n_1/n, …, n_N/n]
            place=rows,
            order=None if self.budget is None else order.repeat(len(rows), 1),
        )

    def begin(self, task: Task, down: CoresDown, private: Relations) -> Mixing:
        core, p, place, opt = private.core, private.p, private.place, task.optimizer.init(private.core)
        speed = torch.zeros_like(p) if self._momentum else None
        return Mixing(core=core, p=p, place=place, opt=opt, cores=down.cores, picks=down.picks, p0=down.p0, speed=speed)

    def step(self, task: Task, state: Mixing, batch: Batch) -> Mixing:
        place = state.place[:, None]
        own = state.p.gather(1, place)
        mix = _mixed(task, state.cores, state.picks, state.core, state.p, state.place)  # eq. 4
        gradient = task.grad(mix, batch)
        slope = products(gradient.grads, state.cores, state.picks)  # ∂F_i/∂p_ij = ⟨c_j, g⟩
        slope = slope.scatter(1, place, (gradient.grads * state.core).sum(1, keepdim=True))
        pull, lr = self.pull(batch.round), self.dr_lr
        if pull and state.p0 is not None:
            slope = slope + pull * (state.p - state.p0)  # eq. 7: λ(r) μ (p_i − p_0)
            lr = min(lr, 1 / pull)
        speed = None if state.speed is None else self._momentum * state.speed + slope
        # eq. 6; of a model never seen the slope is 0, and so is the pull, for p_ij is at p_0
        p = state.p - lr * (slope if speed is None else speed)
        # eq. 5: ∂F_i/∂c_i = p_ii g
        core, opt = task.optimizer.step(state.core, gradient * own, state.opt, batch.lr)
        return state.replace(core=core, p=p, opt=opt, speed=speed)

    def end(self, task: Task, state: Mixing, down: CoresDown, private: Relations) -> tuple[CoreUp, Relations]:
        asked = None if private.order is None else self._wishes(task, state.p, down.picks, private)
        return CoreUp(core=state.core, asked=asked), _kept(task, state, private)

    def personal(self, task: Task, down: CoresDown, private: Relations) -> Predictor:
        return Predictor(models=private.deployed)

    def cloud(self, task: Task, down: CoresDown, private: Relations) -> Predictor:
        return Predictor(models=_mixed(task, down.cores, down.picks, private.core, private.p, private.place))

    def pull(self, round: int) -> float:
        """λ(r) μ in a round counted from 0."""
        r = round + 1
        if r > self.L:
            return 0.0
        share = (math.cos(math.pi * r / self.L) + 1) / 2 if self.scheduler == "cos" else EPSILON ** (r / self.L)  # A.1
        return share * self.mu * (1 if self.fidelity == "paper" else 2)

    @property
    def _momentum(self) -> float:
        if self.dr_momentum is not None:
            return self.dr_momentum
        return MOMENTUM if self.fidelity == "official" else 0.0

    def _wishes(self, task: Task, p: Tensor, picks: Tensor, private: Relations) -> Tensor:
        """Whose core models each silo asks for, to train with in the next round: (k, M)."""
        assert self.budget is not None and private.order is not None
        n = p.shape[1]
        draws = np.stack([task.rng("apple wishes", row).gumbel(size=n) for row in range(task.k)])
        chance = torch.empty_like(p).scatter(1, private.order, torch.from_numpy(draws).to(p))
        base = max(1.5, (task.round + 2) * self.budget / n)  # eq. 8, for the next round
        return wishes(p, base, picks < 0, private.place, chance)[:, : min(self.budget, n - 1)]

    # A silo that arrives after training

    def host(self, server: Cores, newcomers: Cohort, up: CoreUp | None) -> CoresDown:
        g = len(newcomers)
        return CoresDown(
            cores=server.models,
            picks=torch.cat([server.newest, server.newest.new_tensor([-1])]).repeat(g, 1),
            p0=torch.cat([server.p0, server.p0.new_zeros(1)]).repeat(g, 1),
        )

    def adapt(self, task: Task, down: CoresDown, private: Relations | None) -> tuple[None, Relations]:
        """A newcomer learns a p over the stored core models; its own is zero and weighs nothing, so both stay so."""
        assert down.p0 is not None
        core = mixture(down.cores, down.picks, down.p0)
        core[:, : task.model.layout.trained] = 0
        place = torch.full((task.k,), down.p0.shape[1] - 1, device=core.device)
        newcomer = Relations(core=core, p=down.p0, deployed=core, place=place)
        state = task.run(self.step, self.begin(task, down, newcomer), "arrive")
        return None, _kept(task, state, newcomer)

    def trace(self, server: Cores, everyone: Cohort, private: Relations | None) -> dict[str, Tensor]:
        return {} if private is None else {"collaboration": all_silos(private.p)}


def wishes(p: Tensor, base: float, never: Tensor, place: Tensor, chance: Tensor) -> Tensor:
    """The other silos in the order in which each silo would download them, and itself last: (k, N).

    Never seen first, ties at random (§3.4); then without replacement with probability ∝ base^|p_ij| (eq. 9), which is
    sorting log-probabilities plus independent Gumbel draws, `chance` (k, N).
    """
    score = torch.where(never, chance, p.abs() * math.log(base) + chance)
    order = score.argsort(1, descending=True)
    known = (~never).long().scatter(1, place[:, None], 2)
    return order.gather(1, known.gather(1, order).argsort(stable=True, dim=1))


def _alphabetical(roster: Roster) -> np.ndarray:
    """The silos' places by their names: an order for draws that does not depend on how the roster lists them."""
    return np.argsort(np.array(roster.names))


def _p0(roster: Roster, model: Model) -> Tensor:
    sizes = roster.sizes.to(model.dtype)
    return sizes / sizes.sum()


def _kept(task: Task, state: Mixing, private: Relations) -> Relations:
    """What a silo keeps of its training."""
    deployed = _mixed(task, state.cores, state.picks, state.core, state.p, state.place)
    return private.replace(core=state.core, p=state.p, deployed=deployed)


def _mixed(task: Task, cores: Tensor, picks: Tensor, core: Tensor, p: Tensor, place: Tensor) -> Tensor:
    """Σ_j p_ij c_j over the models a silo has; the columns of buffers are its own."""
    mix = mixture(cores, picks, p) + p.gather(1, place[:, None]) * core
    trained = task.model.layout.trained
    return mix if trained == mix.shape[1] else torch.cat([mix[:, :trained], core[:, trained:]], 1)
