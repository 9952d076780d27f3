"""FedFomo: first-order model optimization. Each silo mixes the models that do well on its own validation data.

Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021.

A round of silo i: it is handed other silos' models θ_j of the last round, weighs each by how much it improves on
θ_i^{l−1}, the model that its own last training started from, per unit of distance, moves there, and trains. The model
that this training made is one of the candidates too, always, and needs no download. If nothing improves, the silo
keeps θ_i^{l−1}.

What differs: the weights are uploaded normalised and clipped at 0, and the server adds them to its affinity P, which
starts at 0 with ties at random; a model is handed out once its silo has replied; distances are Euclidean over the
trained parameters (the published code's default is L1); a candidate at distance 0 weighs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.engine.method import Cohort, Method, Model, Roster, Task
from coterie.engine.task import Weights
from coterie.errors import BadInput
from coterie.methods.parts.bank import mixture
from coterie.options import option
from coterie.wire import Down, Private, Server, Up, bank, rows


class Affinities(Server):
    """The last model of every silo, and who gained from whom."""

    models: Tensor = rows("the silo's last model θ_i", role="model")
    heard: Tensor = rows("whether it ever replied")
    affinity: Tensor = rows("P_i, the sum of its weights on every silo so far", "N")
    weights: Tensor = rows("its last weights", "N")


class CandidatesDown(Down):
    """Other silos' models to choose from."""

    models: Tensor = bank("models of other silos after their last training", picks="picks")
    picks: Tensor = rows("which of them is whose (-1: not handed out)", "N", below="n")


class WeighedUp(Up):
    """A silo's model, and what the others' were worth to it."""

    w: Tensor = rows(
        "the silo's model after local training θ_i", role="model", seen_by="server; the silos it is handed to"
    )
    weights: Tensor = rows("its weight on every silo's model", "N", seen_by="server")


class Before(Private):
    """A silo's model after its last training and before it."""

    w: Tensor = rows("its model after local training θ_i^l", role="model")
    before: Tensor = rows("the model that training started from θ_i^{l−1}", role="model")
    place: Tensor = rows("which of the N it is itself", fixed=True, below="N")


class FromMixture(Weights):
    """Plain local training from a mixture."""

    start: Tensor = rows("the mixture", role="model")
    weights: Tensor = rows("its weight on every silo's model", "N")


@dataclass(frozen=True)
class FedFomo(Method[Affinities, CandidatesDown, WeighedUp, Before, FromMixture]):
    """Each silo moves towards the models that lower its validation loss, then trains."""

    paper = "Zhang et al., ICLR 2021"
    summary = "each silo mixes the models that do better than its own on its validation data, then trains"
    from_own = True  # where no other silo's model does better
    learns_from_validation = True  # the weights

    budget: int | None = option(None, "M, models a silo is handed in a round; none: all the others'", low=1)
    epsilon: float = option(0.3, "ε, the chance that one of the M is drawn at random, not by affinity", low=0, high=1)
    epsilon_decay: float = option(0.05, "what ε falls by in each round, down to 0", low=0)

    # Server

    def open(self, roster: Roster, model: Model) -> Affinities:
        models = model.starts(roster.seed, roster.names, common=True)
        nothing = models.new_zeros(len(roster), len(roster))
        heard = torch.zeros(len(roster), dtype=torch.bool, device=models.device)
        return Affinities(models=models, heard=heard, affinity=nothing, weights=nothing)

    def send(self, server: Affinities, cohort: Cohort) -> CandidatesDown:
        m, k = len(cohort.roster), len(cohort.ids)
        picks = torch.where(server.heard, torch.arange(m, device=cohort.ids.device), -1).repeat(k, 1)
        picks = picks.scatter(1, cohort.ids[:, None], -1)
        if self.budget is not None:
            known, affinity = picks.cpu().numpy(), server.affinity.cpu().numpy()
            order = np.argsort(np.array(cohort.roster.names))
            handed = np.full_like(known, -1)
            for row, silo in enumerate(cohort.ids.tolist()):
                others = [j for j in order if known[row, j] >= 0]
                chosen = self._greedy(others, affinity[silo], cohort.rng("fedfomo", silo), cohort.round)
                handed[row, chosen] = chosen
            picks = torch.from_numpy(handed).to(picks.device)
        return CandidatesDown(models=server.models, picks=picks)

    def _greedy(self, others: Sequence[int], affinity: np.ndarray, draw: np.random.Generator, round: int) -> list[int]:
        """M of the others: each the next by affinity or, with probability ε, the next at random."""
        at_random = draw.permutation(np.array(others, dtype=np.int64))
        by_affinity = at_random[np.argsort(-affinity[at_random], kind="stable")]
        explore = draw.random(len(others)) < self.epsilon - round * self.epsilon_decay
        chosen = list[int]()
        for exploring in explore[: self.budget]:
            queue = at_random if exploring else by_affinity
            chosen.append(int(next(j for j in queue if j not in chosen)))
        return chosen

    def receive(self, server: Affinities, cohort: Cohort, up: WeighedUp) -> Affinities:
        return Affinities(
            models=server.models.index_copy(0, cohort.ids, up.w),  # a missing silo's last model stands in
            heard=server.heard.index_fill(0, cohort.ids, True),
            affinity=server.affinity.index_add(0, cohort.ids, up.weights),  # p_i ← p_i + w_i
            weights=server.weights.index_copy(0, cohort.ids, up.weights),
        )

    # Silo

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Before:
        w = model.starts(roster.seed, roster.take(rows).names, common=True)
        return Before(w=w, before=w, place=rows)

    def begin(self, task: Task, down: CandidatesDown, private: Before) -> FromMixture:
        gains = self._gains(task, down, private)
        total = gains.sum(1, keepdim=True)
        weights = torch.where(total > 0, gains / total, 0.0)
        own = weights.gather(1, private.place[:, None])
        # θ_i ← θ_i^{l−1} + Σ_j w_ij (θ_j − θ_i^{l−1}), where the w_ij sum to one, or are all zero
        mixed = mixture(down.models, down.picks, weights) + own * private.w
        w = torch.where(total > 0, mixed, private.before)
        return FromMixture(w=w, opt=task.optimizer.init(w), start=w, weights=weights)

    def end(self, task: Task, state: FromMixture, down: CandidatesDown, private: Before) -> tuple[WeighedUp, Before]:
        return WeighedUp(w=state.w, weights=state.weights), private.replace(w=state.w, before=state.start)

    def _gains(self, task: Task, down: CandidatesDown, private: Before) -> Tensor:
        """max(0, L_i(θ_i^{l−1}) − L_i(θ_j)) / ‖θ_j − θ_i^{l−1}‖ for every candidate: (k, N)."""
        before = private.before
        base = _validation_loss(task, before)

        def gain(some: Tensor | slice, models: Tensor) -> Tensor:
            better = (base[some] - _validation_loss(task.take(some), models)).clamp_min(0)
            apart = (models - before[some])[:, : task.model.layout.trained].norm(dim=1)
            return torch.where(apart > 0, better / apart, 0.0)

        gains = before.new_zeros(down.picks.shape)
        # One candidate after another, each for all silos that have it: never k × M models at once.
        for j in range(down.picks.shape[1]):
            some = (down.picks[:, j] >= 0).nonzero()[:, 0]
            if len(some):
                gains[some, j] = gain(some, down.models[down.picks[some, j]])
        return gains.scatter(1, private.place[:, None], gain(slice(None), private.w)[:, None])

    # A silo that arrives after training

    def host(self, server: Affinities, newcomers: Cohort, up: WeighedUp | None) -> CandidatesDown:
        m = len(server.models)
        picks = torch.where(server.heard, torch.arange(m, device=server.heard.device), -1)
        return CandidatesDown(
            models=server.models, picks=torch.cat([picks, picks.new_tensor([-1])]).repeat(len(newcomers), 1)
        )

    def adapt(self, task: Task, down: CandidatesDown, private: Before | None) -> tuple[None, Before]:
        """A newcomer weighs all stored models by its validation data against a random start, then trains once."""
        without = [name for name, n in zip(task.names, task.counts("validation").tolist(), strict=True) if n == 0]
        if without:
            raise BadInput(f"fedfomo: {_needs(without)}")
        w = task.start()
        place = torch.full((task.k,), down.picks.shape[1] - 1, device=w.device)
        newcomer = Before(w=w, before=w, place=place)
        state = task.run(self.step, self.begin(task, down, newcomer), "arrive")
        return None, newcomer.replace(w=state.w)

    # What a person wants to know

    def refusal(self, roster: Roster, model: Model) -> str | None:
        without = [name for name, n in zip(roster.names, roster.validation.tolist(), strict=True) if n == 0]
        return _needs(without) if without else None

    def trace(self, server: Affinities, everyone: Cohort, private: Before | None) -> dict[str, Tensor]:
        return {"collaboration": server.weights}


def _validation_loss(task: Task, models: Tensor) -> Tensor:
    """L_i (k,)."""
    return task.losses(models, "validation").sum(1) / task.counts("validation")


def _needs(without: Sequence[str]) -> str:
    names = ", ".join(f"'{name}'" for name in without[:3]) + (", …" if len(without) > 3 else "")
    return f"it weighs models by each silo's validation data, and {names} has none; set some of its data aside"
