"""FedACS Theorem 2.1: the bound on ‖∇F_λ(W)‖² on small smooth problems, with the theorem's steps.

What is assumed, where the paper leaves room or slips:
- R(W) has a gradient only if the scores s are fixed, symmetric and sum to 1 over each row, so they are FedACS's own
  attention weights of fixed models, placed on a circle: there everyone has as many neighbours above the threshold.
- The gradient that the paper writes, w_i − Σ_j s_ij w_j, is that of ¼ Σ_ij s_ij ‖w_i − w_j‖², not of eq. 2, which
  has no ¼; the test takes R with it.
- "β = 1√K" is 1/√K. B bounds the gradients at every W^k that occurred. L bounds the Lipschitz constants of ∇F and
  λ ∇R, as the proof uses it.
- The stated bound is tested without its O(1/K), which only makes the test harder. (The proof's eq. 14 divides a sum of
  K terms αB²/2λ by K twice; what its second half does prove is the bound with 18 in place of 6, as FedAMP's.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from coterie.methods.fedacs import FedACS

M, D = 6, 3
Array = np.ndarray


@dataclass
class Problem:
    """F_λ = F + λ R for M silos; F is a sum of quadratics, or of log(1 + r²/2) of linear residuals r: not convex."""

    seed: int
    lam: float
    convex: bool

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        self.a = 0.7 * np.eye(D) + 0.1 * draw.normal(size=(M, D, D))
        self.b = 4 * draw.normal(size=(M, D))
        self.start = draw.normal(size=(M, D))
        self.scale = 0.05
        angle = 2 * np.pi * np.arange(M) / M
        self.circle = torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], 1))
        self.s = FedACS(quantile=0.4).attention(self.circle).numpy()
        # The Hessian of r²/2 is 1 and that of log(1 + r²/2) at most 1, in r; that of R is I − s.
        of_f = self.scale * max(np.linalg.norm(a, 2) ** 2 for a in self.a)
        self.lipschitz = max(of_f, self.lam * np.linalg.norm(np.eye(M) - self.s, 2))

    def f(self, w: Array) -> float:
        r = np.einsum("mij,mj->mi", self.a, w) - self.b
        return float(self.scale * np.sum(r**2 / 2 if self.convex else np.log1p(r**2 / 2)))

    def df(self, w: Array) -> Array:
        r = np.einsum("mij,mj->mi", self.a, w) - self.b
        return self.scale * np.einsum("mij,mi->mj", self.a, r if self.convex else r / (1 + r**2 / 2))

    def r(self, w: Array) -> float:
        return 0.25 * sum(self.s[i, j] * np.sum((w[i] - w[j]) ** 2) for i in range(M) for j in range(M))

    def dr(self, w: Array) -> Array:
        return w - self.s @ w

    def value(self, w: Array) -> float:
        return self.f(w) + self.lam * self.r(w)

    def gradient(self, w: Array) -> Array:
        return self.df(w) + self.lam * self.dr(w)

    @cached_property
    def lowest(self) -> float:
        """F_λ*, or of several local minima the least that was found (a larger one makes the bound smaller)."""
        found = [
            minimize(
                lambda v: self.value(v.reshape(M, D)),
                start.ravel(),
                jac=lambda v: self.gradient(v.reshape(M, D)).ravel(),
                method="BFGS",
                options={"gtol": 1e-9, "maxiter": 5000},
            ).fun
            for start in (self.start, 0 * self.start)
        ]
        return min(found)

    def run(self, xi: Array, steps: int, alpha: Callable[[int], float]) -> tuple[float, float]:
        """The least ‖∇F_λ(W^k)‖² of so many steps, and B."""
        w, least, largest = self.start, np.inf, 0.0
        for k in range(1, steps + 2):
            least = min(least, np.sum(self.gradient(w) ** 2))
            largest = max(largest, np.linalg.norm(self.df(w)), self.lam * np.linalg.norm(self.dr(w)))
            u = w - alpha(k) * (w - xi @ w)  # eq. 3; with α = 1 it is eq. 4, what the server sends
            w = u - alpha(k) / self.lam * self.df(u)  # eq. 5 with β_k = α_k / λ
        return least, largest

    def bound(self, steps: int, largest: float) -> float:
        """Eq. 6 without its O(1/K)."""
        gap = self.value(self.start) - self.lowest
        return 6 * (gap + 16 * self.lipschitz * largest**2) / np.sqrt(steps)


def test_the_problem_is_the_theorems() -> None:
    problem = Problem(0, 0.2, convex=False)
    np.testing.assert_allclose(problem.s, problem.s.T, atol=1e-12)
    np.testing.assert_allclose(problem.s.sum(1), 1, atol=1e-12)
    assert 0 < problem.s[0, 1] < problem.s[0, 0]
    assert problem.s[0, 3] == 0
    for i in range(M):
        nudge = np.zeros((M, D))
        nudge[i, 1] = 1e-6
        slope = (problem.value(problem.start + nudge) - problem.value(problem.start - nudge)) / 2e-6
        np.testing.assert_allclose(slope, problem.gradient(problem.start)[i, 1], rtol=1e-6)


@pytest.mark.parametrize("convex", [True, False])
@pytest.mark.parametrize("lam", [0.1, 0.4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_bound_holds_for_every_k(seed: int, lam: float, convex: bool) -> None:
    problem = Problem(seed, lam, convex)
    for steps in (10, 100, 1000):
        least, largest = problem.run(problem.s, steps, lambda k, steps=steps: lam / np.sqrt(steps))
        assert least <= problem.bound(steps, largest)


def test_the_bound_says_something_at_large_k_and_needs_the_servers_step() -> None:
    problem, steps = Problem(0, 0.4, convex=True), 10_000
    least, largest = problem.run(problem.s, steps, lambda k: problem.lam / np.sqrt(steps))
    bound = problem.bound(steps, largest)
    assert least <= bound < np.sum(problem.gradient(problem.start) ** 2)
    nobody = FedACS(quantile=1.0).attention(problem.circle).numpy()
    assert problem.run(nobody, steps, lambda k: problem.lam / np.sqrt(steps))[0] > bound


@pytest.mark.parametrize("convex", [True, False])
def test_diminishing_steps_bring_the_gradient_to_zero(convex: bool) -> None:
    problem = Problem(1, 0.4, convex)
    first = np.sum(problem.gradient(problem.start) ** 2)
    # Σ α_k = ∞ and Σ α_k² < ∞
    least = [problem.run(problem.s, steps, lambda k: problem.lam / k**0.6)[0] for steps in (10, 100, 1000, 10_000)]
    assert first > least[0] > least[1] > least[2] > least[3]
    assert least[3] < 0.01 * first
