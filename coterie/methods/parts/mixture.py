"""A mixture of components: the E-step, a silo's own weights, and training weighted by it. What FedEM and D-FedEM share.

Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021 (equations by its
numbers). The loss of a sample stands for −log p_m(y|x) up to a constant (eq. 3): cross-entropy for classes; for
regression the squared error, which is a Gaussian of variance ½ around the component's value (several targets of one
sample count as their mean, as in every loss here).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.engine.method import DownT, Method, Model, Predictor, Roster, ServerT, UpT
from coterie.engine.task import Batch, Task
from coterie.options import option
from coterie.wire import Private, Record, State, rows


class MixtureWeights(Private):
    """A silo's own mixture."""

    pi: Tensor = rows("its mixture weights π_t, of its last E-step", "c")


class Mixture(State):
    """The components of each silo in training."""

    theta: Tensor = rows("the components", "c", role="model")
    q: Tensor = rows("the probability that a training sample is of a component", "c", "n")
    pi: Tensor = rows("the mixture weights", "c")
    opt: Record


@dataclass(frozen=True)
class OfComponents(Method[ServerT, DownT, UpT, MixtureWeights, Mixture]):
    """What silos do with components, wherever these come from."""

    by_columns = True
    lr_by_row = True
    one_model = False

    components: int = option(3, "M, how many components", low=1)
    adapt_iterations: int = option(1, "E-steps of a silo that arrives after training", low=1)

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        return super().axes(roster, model) | {"c": self.components}

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> MixtureWeights:
        return uniform(len(rows), self.components, model)

    def received(self, task: Task, down: DownT) -> Tensor:
        """The components (k, c, d) that silos are sent."""
        raise NotImplementedError

    def begin(self, task: Task, down: DownT, private: MixtureWeights) -> Mixture:
        return begin(task, self.received(task, down), private)  # lines 5 and 6 of Algorithm 1: eq. 8 and 9

    def step(self, task: Task, state: Mixture, batch: Batch) -> Mixture:
        return step(task, state, batch)  # line 7: eq. 10

    def personal(self, task: Task, down: DownT, private: MixtureWeights) -> Predictor:
        return mixture(self.received(task, down), private)

    def adapt(self, task: Task, down: DownT, private: MixtureWeights | None) -> tuple[None, MixtureWeights]:
        """A newcomer takes the components as they are and finds its weights (end of Section 3.2)."""
        return None, weigh(task, self.received(task, down), self.adapt_iterations)


def first_components(seed: int, model: Model, components: int) -> Tensor:
    """Different random starts (c, d); the first is the one that a single model would have."""
    return torch.stack([model.start(seed), *(model.start(seed, "component", m) for m in range(1, components))])


def uniform(k: int, components: int, model: Model) -> MixtureWeights:
    """The weights of silos that know nothing yet."""
    pi = torch.full((k, components), 1 / components, dtype=model.dtype, device=model.device)
    return MixtureWeights(pi=pi)


def responsibilities(losses: Tensor, pi: Tensor) -> Tensor:
    """eq. 8: q(z = m) ∝ π_m exp(−loss_m), for losses (k, c, n) and π (k, c)."""
    return (pi.log()[..., None] - losses).softmax(1)


def mixture_weights(q: Tensor, counts: Tensor) -> Tensor:
    """eq. 9: π_m is the mean of q(z = m) over a silo's samples: the first `counts` of q (k, c, n), the rest is none."""
    real = torch.arange(q.shape[-1], device=q.device) < counts[:, None]
    return (q * real[:, None]).sum(-1) / counts[:, None]


def begin(task: Task, theta: Tensor, private: MixtureWeights) -> Mixture:
    """The E-step and the weights' part of the M-step, on all training samples of each silo; theta (k, c, d)."""
    q = responsibilities(task.losses(theta), private.pi)
    return Mixture(theta=theta, q=q, pi=mixture_weights(q, task.counts()), opt=task.optimizer.init(theta))


def step(task: Task, state: Mixture, batch: Batch) -> Mixture:
    """eq. 10, one mini-batch of it: each component descends on the losses weighted by q."""
    gradient = task.grad(state.theta, batch, weight=batch.of(state.q))
    theta, opt = task.optimizer.step(state.theta, gradient, state.opt, batch.lr)
    return state.replace(theta=theta, opt=opt)


def weigh(task: Task, theta: Tensor, iterations: int) -> MixtureWeights:
    """The weights of a silo that comes to finished components: eq. 8 and 9 in turn, from uniform weights."""
    losses, pi = task.losses(theta), uniform(task.k, theta.shape[1], task.model).pi
    for _ in range(iterations):
        pi = mixture_weights(responsibilities(losses, pi), task.counts())
    return MixtureWeights(pi=pi)


def mixture(theta: Tensor, private: MixtureWeights) -> Predictor:
    """eq. 5: h_t = Σ_m π_tm h_m, a mixture of the components' predictions and not of their weights or logits."""
    return Predictor(models=theta, weights=private.pi)
