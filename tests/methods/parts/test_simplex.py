"""The projection onto the simplex against what defines it."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from coterie.methods.parts.simplex import nearest_in_simplex


def by_bisection(v: np.ndarray) -> np.ndarray:
    """max(0, v − θ), with the θ for which it sums to one."""
    theta = brentq(lambda t: np.maximum(0, v - t).sum() - 1, v.min() - 1, v.max(), xtol=1e-15, rtol=1e-14)
    return np.maximum(0, v - theta)


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 30.0, 1e6])
def test_it_is_the_point_of_least_distance(scale: float) -> None:
    v = scale * np.random.default_rng(0).normal(size=(40, 7))
    found = nearest_in_simplex(torch.from_numpy(v)).numpy()
    np.testing.assert_allclose(found, np.stack([by_bisection(row) for row in v]), rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-9)
    assert (found >= 0).all()


def test_a_point_of_the_simplex_stays_and_what_may_not_count_does_not() -> None:
    inside = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(nearest_in_simplex(inside), inside, rtol=0, atol=1e-15)
    without = nearest_in_simplex(torch.tensor([[0.9, -torch.inf, 0.5]], dtype=torch.float64))
    torch.testing.assert_close(without, torch.tensor([[0.7, 0.0, 0.3]], dtype=torch.float64))
