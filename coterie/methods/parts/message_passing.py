"""Message passing between silos: the server keeps every silo's last model and mixes a cloud model for each of them.

What FedAMP, HeurFedAMP and FedACS share; they differ in who attends to whom, and how strongly a silo is pulled.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from coterie.engine.method import Cohort, Method, Model, Roster, ServerT, StateT, Task
from coterie.methods.parts.proximal import Trained
from coterie.options import option
from coterie.wire import Down, Predictor, Private, Server, Up, rows, shared


class Models(Server):
    """The last model of every silo."""

    w: Tensor = rows("the silo's last model w_i", role="model")
    start: Tensor = shared("the random model that a newcomer starts from", role="model")


class CloudDown(Down):
    """A silo's personalized cloud model."""

    u: Tensor = rows("the silo's cloud model u_i, a mixture of silos' models", role="model")


class PersonalUp(Up):
    """A silo's personal model."""

    w: Tensor = rows("the silo's personal model w_i", role="model", seen_by="server; other silos only in a mixture")


class Personal(Private):
    """A silo's own model and, where the hyper-parameters ask for it, what else it must remember."""

    w: Tensor = rows("its personal model w_i", role="model")
    rounds: Tensor | None = rows("rounds it has taken part in, for the warm-up", default=None)
    beta: Tensor | None = rows("its own β_i", fixed=True, default=None)


@dataclass(frozen=True)
class CloudModels(Method[ServerT, CloudDown, PersonalUp, Personal, StateT]):
    """What silos do that are sent a cloud model of their own and send back the personal model they train from it."""

    by_columns = True

    def end(self, task: Task, state: StateT, down: CloudDown, private: Personal) -> tuple[PersonalUp, Personal]:
        w = cast(Any, state).w
        rounds = None if private.rounds is None else private.rounds + 1
        return PersonalUp(w=w), private.replace(w=w, rounds=rounds)

    def cloud(self, task: Task, down: CloudDown, private: Personal) -> Predictor:
        return Predictor(models=down.u)

    def host(self, server: ServerT, newcomers: Cohort, up: PersonalUp | None) -> CloudDown:
        if up is None:
            return CloudDown(u=cast(Any, server).start.expand(len(newcomers), -1))
        return CloudDown(u=torch.stack([self.mixture(server, newcomers, row, w) for row, w in enumerate(up.w)]))

    def mixture(self, server: ServerT, newcomers: Cohort, row: int, w: Tensor) -> Tensor:
        """The cloud model of the newcomer in this row, from its own model and the members', no other newcomer's."""
        raise NotImplementedError

    def adapt(self, task: Task, down: CloudDown, private: Personal | None) -> tuple[PersonalUp | None, Personal]:
        """A newcomer trains alone, is answered with its cloud model, and trains once more from there."""
        if private is None:
            w = task.fit(down.u, "arrive")
            return PersonalUp(w=w), Personal(w=w)
        state = task.run(self.step, self.begin(task, down, private), "settle")
        return None, Personal(w=cast(Any, state).w)


@dataclass(frozen=True)
class MessagePassing(CloudModels[Models, Trained]):
    """The parts of FedAMP that are not an equation."""

    by_columns = True
    compares = True

    common_init: bool = option(True, "all silos start from one random model")
    warmup_epochs: int = option(
        0, "above 0: a silo trains alone in its first round, for so many epochs or for those of a round if more", low=0
    )

    @property
    def by_gradients(self) -> bool:  # type: ignore[override]
        return not self.warmup_epochs  # whose epochs are not among a round's

    def attention(self, w: Tensor) -> Tensor:
        """ξ (m, m): the share of each silo's model in each cloud model, by the models' weights."""
        raise NotImplementedError

    def open(self, roster: Roster, model: Model) -> Models:
        return Models(w=model.starts(roster.seed, roster.names, self.common_init), start=model.start(roster.seed))

    def send(self, server: Models, cohort: Cohort) -> CloudDown:
        xi = self.attention(cohort.model.layout.weights(server.w)).to(server.w.dtype)
        return CloudDown(u=xi[cohort.ids] @ server.w)  # AMP eq. 5: u_i = Σ_j ξ_ij w_j

    def receive(self, server: Models, cohort: Cohort, up: PersonalUp) -> Models:
        return server.replace(w=server.w.index_copy(0, cohort.ids, up.w))  # a missing silo's last model stands in

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Personal:
        w = model.starts(roster.seed, roster.take(rows).names, self.common_init)
        return Personal(w=w, rounds=w.new_zeros(len(rows)) if self.warmup_epochs else None)

    def started(self, task: Task, u: Tensor, private: Personal) -> Tensor:
        """Where a silo's training starts: u_i, or in its warm-up its own model (after epochs beyond a round's)."""
        alone = _alone(private)
        if alone is None:
            return u
        more = self.warmup_epochs - task.epochs
        w = task.fit(private.w, "warmup", more) if more > 0 else private.w
        return torch.where(alone[:, None], w, u)

    def pull(self, private: Personal, strength: Tensor | float) -> Tensor | float:
        """How strongly a silo is pulled: not at all in its warm-up."""
        alone = _alone(private)
        if alone is None:
            return strength
        return torch.where(alone, 0, torch.as_tensor(strength, dtype=private.w.dtype, device=alone.device))

    def iteration(self, round: int) -> int:
        """k of the papers counted from 0: the round of the warm-up, which makes their w_i^0, is none."""
        return max(round - 1, 0) if self.warmup_epochs else round

    def trace(self, server: Models, everyone: Cohort, private: Personal | None) -> dict[str, Tensor]:
        return {"collaboration": self.attention(everyone.model.layout.weights(server.w))}

    def mixture(self, server: Models, newcomers: Cohort, row: int, w: Tensor) -> Tensor:
        """One attention step against the members' models."""
        everyone = torch.cat([server.w, w[None]])
        return self.attention(newcomers.model.layout.weights(everyone))[-1].to(everyone.dtype) @ everyone


def _alone(private: Personal) -> Tensor | None:
    """Which silos are in their warm-up (k,); None: none is."""
    if private.rounds is None or bool((private.rounds > 0).all()):
        return None
    return private.rounds == 0
