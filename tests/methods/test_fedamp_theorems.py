"""FedAMP's Theorems 1 and 2 (AAAI 2021; proofs in the preprint), with the method's own attention as the server's step.

G(W) = Σ_i F_i(w_i) + λ Σ_{i<j} A(‖w_i − w_j‖²) with quadratic F_i, so that eq. 6 has a closed form. What is assumed:
- Eq. 3 steps along ∇𝒜, whose part for a pair is 2 A'(‖w_i − w_j‖²) (w_i − w_j); eq. 5 writes A' without the 2, as if
  α were halved. The theorems are about eq. 3, so `alpha` here is 2α: FedAMP's weights then make exactly that step
  (the first test).
- α_k = λ/√K and β_k = α_k/λ. B bounds the gradients at every W^k that occurred.
- Theorem 1 wants a convex 𝒜: the tamed root of a squared distance is Huber's function of the distance. Theorem 2 takes
  the negative exponential, and L bounds the Lipschitz constants of ∇F and λ∇𝒜, as its proof uses it; its O(1/K) is
  left out, which only makes the test harder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from coterie.methods.fedamp import FedAMP

Array = np.ndarray


@dataclass
class Problem:
    """m silos with quadratics of curvature about `curvature` around their own optima."""

    seed: int
    lam: float
    function: Literal["tamed-root", "negative-exponential"]
    sigma: float
    curvature: float
    m: int = 5
    d: int = 3

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        root = 0.3 * draw.normal(size=(self.m, self.d, self.d))
        self.h = self.curvature * (np.eye(self.d) + root @ root.transpose(0, 2, 1))
        self.optima = 1.5 * draw.normal(size=(self.m, self.d))
        self.start = 1.5 * draw.normal(size=(self.m, self.d))

    def f(self, w: Array) -> float:
        return float(np.einsum("mi,mij,mj->", w - self.optima, self.h, w - self.optima) / 2)

    def df(self, w: Array) -> Array:
        return np.einsum("mij,mj->mi", self.h, w - self.optima)

    def _t(self, w: Array) -> Array:
        return np.sum((w[:, None] - w[None]) ** 2, -1)

    def a(self, w: Array) -> float:
        t, s = self._t(w)[np.triu_indices(self.m, 1)], self.sigma
        if self.function == "negative-exponential":
            return float(np.sum(1 - np.exp(-t / s)))
        return float(np.sum(np.where(t <= s**2, t / (2 * s), np.sqrt(t) - s / 2)))

    def da(self, w: Array) -> Array:
        t, s = self._t(w), self.sigma
        exponential = self.function == "negative-exponential"
        slope = np.exp(-t / s) / s if exponential else 0.5 / np.sqrt(np.maximum(t, s**2))
        return 2 * (slope.sum(1)[:, None] * w - slope @ w)

    def value(self, w: Array) -> float:
        return self.f(w) + self.lam * self.a(w)

    def gradient(self, w: Array) -> Array:
        return self.df(w) + self.lam * self.da(w)

    @cached_property
    def lowest(self) -> tuple[float, Array]:
        """G* and W*: exact in the convex case, else the best of two searches (a larger G* makes the bound smaller)."""
        shape = self.start.shape
        found = [
            minimize(
                lambda v: self.value(v.reshape(shape)),
                start.ravel(),
                jac=lambda v: self.gradient(v.reshape(shape)).ravel(),
                method="L-BFGS-B",
                options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 20_000},
            )
            for start in (self.start, self.optima)
        ]
        best = min(found, key=lambda result: result.fun)
        return best.fun, best.x.reshape(shape)

    def sent(self, w: Array, alpha: float) -> Array:
        """U: what FedAMP's server sends, a step α along ∇𝒜."""
        method = FedAMP(weights="step", function=self.function, sigma=self.sigma, alpha=2 * alpha)
        return method.attention(torch.from_numpy(w)).numpy() @ w

    def run(self, steps: int, alpha: Callable[[int], float], together: bool = True) -> tuple[float, float, float]:
        """The least G(W^k), the least ‖∇G(W^k)‖² and B, of K steps of eq. 3 and 4."""
        w, value, slope, largest = self.start, np.inf, np.inf, 0.0
        target = np.einsum("mij,mj->mi", self.h, self.optima)
        for k in range(1, steps + 2):
            value, slope = min(value, self.value(w)), min(slope, np.sum(self.gradient(w) ** 2))
            largest = max(largest, np.linalg.norm(self.df(w)), self.lam * np.linalg.norm(self.da(w)))
            u = self.sent(w, alpha(k)) if together else w
            beta = alpha(k) / self.lam
            w = np.linalg.solve(self.h + np.eye(self.d) / beta, (target + u / beta)[..., None])[..., 0]  # eq. 6
        return value, slope, largest

    def constant(self, steps: int) -> Callable[[int], float]:
        """α_k = λ/√K."""
        return lambda k: self.lam / np.sqrt(steps)


def bound_1(problem: Problem, steps: int, largest: float) -> float:
    """Theorem 1's bound on min G − G*."""
    away = np.sum((problem.start - problem.lowest[1]) ** 2)
    return (away + 5 * largest**2) / np.sqrt(steps)


def bound_2(problem: Problem, steps: int, largest: float) -> float:
    """Theorem 2's bound on min ‖∇G‖²; the Hessian of A at a pair is at most 2/σ, of all pairs at most 2m/σ."""
    lipschitz = max(np.linalg.norm(problem.h, 2, axis=(1, 2)).max(), problem.lam * 2 * problem.m / problem.sigma)
    gap = problem.value(problem.start) - problem.lowest[0]
    return 18 * (gap + 20 * lipschitz * largest**2) / np.sqrt(steps)


@pytest.mark.parametrize("function", ["tamed-root", "negative-exponential"])
def test_the_attention_weights_make_the_gradient_step_of_eq_3(function: Literal["tamed-root"]) -> None:
    problem, alpha = Problem(3, 0.3, function, sigma=1.5, curvature=0.3), 0.05
    w = problem.start
    slopes = np.empty_like(w)
    for place in np.ndindex(w.shape):
        nudge = np.zeros_like(w)
        nudge[place] = 1e-6
        slopes[place] = (problem.a(w + nudge) - problem.a(w - nudge)) / 2e-6
    np.testing.assert_allclose(problem.sent(w, alpha), w - alpha * slopes, atol=1e-9)
    np.testing.assert_allclose(problem.da(w), slopes, atol=1e-7)


@pytest.mark.parametrize("lam", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_theorem_1_holds_for_every_k(seed: int, lam: float) -> None:
    problem = Problem(seed, lam, "tamed-root", sigma=1.0, curvature=0.3)
    for steps in (10, 40, 160):
        value, _, largest = problem.run(steps, problem.constant(steps))
        assert value <= problem.lowest[0] + bound_1(problem, steps, largest)


def test_theorem_1_says_something_at_large_k_and_needs_the_servers_step() -> None:
    problem, steps = Problem(0, 0.3, "tamed-root", sigma=1.0, curvature=0.3), 1600
    value, _, largest = problem.run(steps, problem.constant(steps))
    highest = problem.lowest[0] + bound_1(problem, steps, largest)
    assert value <= highest < problem.value(problem.start)
    assert problem.run(steps, problem.constant(steps), together=False)[0] > highest


def test_diminishing_steps_bring_the_convex_problem_to_its_optimum() -> None:
    problem = Problem(1, 0.3, "tamed-root", sigma=1.0, curvature=0.3)
    lowest = problem.lowest[0]
    # Σ α_k = ∞ and Σ α_k² < ∞; the first few steps stay small enough for weights that are not negative
    gaps = [problem.run(steps, lambda k: problem.lam / (k + 8) ** 0.6)[0] - lowest for steps in (10, 100, 1000)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-4 * (problem.value(problem.start) - lowest)


@pytest.mark.parametrize(("lam", "sigma"), [(0.05, 4.0), (0.2, 10.0), (1.0, 40.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_theorem_2_holds_for_every_k(seed: int, lam: float, sigma: float) -> None:
    problem = Problem(seed, lam, "negative-exponential", sigma, curvature=0.1)
    for steps in (10, 40, 160, 640):
        _, slope, largest = problem.run(steps, problem.constant(steps))
        assert slope <= bound_2(problem, steps, largest)


def test_theorem_2_says_something_at_large_k_and_needs_the_servers_step() -> None:
    problem, steps = Problem(0, 4.0, "negative-exponential", sigma=160.0, curvature=0.1, m=2, d=1), 9000
    problem.start = problem.optima  # the preprint's start: models that were trained locally, where ∇F is zero
    _, slope, largest = problem.run(steps, problem.constant(steps))
    bound = bound_2(problem, steps, largest)
    assert slope <= bound < np.sum(problem.gradient(problem.start) ** 2)
    assert problem.run(10, problem.constant(steps), together=False)[1] > bound


def test_diminishing_steps_bring_the_gradient_to_zero() -> None:
    problem = Problem(1, 0.2, "negative-exponential", sigma=10.0, curvature=0.1)
    first = np.sum(problem.gradient(problem.start) ** 2)
    least = [problem.run(steps, lambda k: problem.lam / k**0.6)[1] for steps in (10, 100, 1000)]
    assert first > least[0] > least[1] > least[2]
    assert least[2] < 1e-3 * first
