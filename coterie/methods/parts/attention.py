"""Who is like whom: distances, similarities and the attention weights made of them, over all rows at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.engine.across import total

BLOCK = 1 << 18  # columns at a time, so that a float64 copy of all rows never exists
ROUNDING = 16  # by so many times the rounding of their numbers models differ that were trained alike
RESOLVED = 1e-14  # a share of the largest squared distance, below which others cancel in float64


def gram(rows: Tensor, centre: bool = False) -> Tensor:
    """Inner products (m, m) of rows (m, d), accumulated in float64."""
    found = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for first in range(0, rows.shape[1], BLOCK):
        block = rows[:, first : first + BLOCK].double()
        if centre:
            block = block - block.mean(0)
        found += block @ block.T
    return total(found)


def squared_distances(rows: Tensor) -> Tensor:
    """‖w_i − w_j‖² (m, m) in float64, 0 where it is but rounding; rows that start alike cancel if not centred first."""
    inner = gram(rows, centre=True)
    norms = inner.diagonal()
    distances = norms[:, None] + norms[None, :] - 2 * inner
    rounding = ROUNDING * torch.finfo(rows.dtype).eps * total(lengths(rows).square()).sqrt()
    least = torch.maximum(rounding[:, None], rounding[None, :]).square().clamp_min(RESOLVED * distances.max())
    return torch.where(distances > least, distances, 0).fill_diagonal_(0)


def lengths(rows: Tensor) -> Tensor:
    """Euclidean norms along the last axis; in float64, since the squares of float32's numbers overflow there."""
    found: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    return found


def cosines(rows: Tensor) -> Tensor:
    """cos(w_i, w_j) (m, m) in float64; a zero row is like nobody."""
    inner = gram(rows)
    norms = inner.diagonal().sqrt()
    return (inner / (norms[:, None] * norms[None, :]).clamp_min(1e-300)).clamp(-1, 1)


@dataclass(frozen=True)
class Inducing:
    """An attention-inducing function A of the squared distance t (AMP Definition 1), by its derivative."""

    slope: Callable[[Tensor, float], Tensor]  # A'(t)
    log_slope: Callable[[Tensor, float], Tensor]  # log A'(t), exact where A' underflows
    rooted: bool = False  # whether σ is compared with √t, and not with t

    def scale(self, distances: Tensor) -> float:
        """A σ that needs no search: the median of the squared distances, or of the distances where σ is one."""
        median = median_distance(distances)
        return math.sqrt(median) if self.rooted else median


def _scad_slope(t: Tensor, sigma: float, a: float = 3.7) -> Tensor:
    return torch.where(t <= sigma, torch.full_like(t, sigma), (a * sigma - t).clamp_min(0) / (a - 1))


def _mcp_slope(t: Tensor, sigma: float, a: float = 3.0) -> Tensor:
    return (sigma - t / a).clamp_min(0)


def _root_slope(t: Tensor, sigma: float) -> Tensor:
    return 0.5 / t.clamp_min(sigma * sigma).sqrt()


INDUCING = {
    "negative-exponential": Inducing(lambda t, s: torch.exp(-t / s) / s, lambda t, s: -t / s - math.log(s)),
    "tamed-root": Inducing(_root_slope, lambda t, s: _root_slope(t, s).log(), rooted=True),
    "scad": Inducing(_scad_slope, lambda t, s: _scad_slope(t, s).log()),
    "mcp": Inducing(_mcp_slope, lambda t, s: _mcp_slope(t, s).log()),
}


def median_distance(distances: Tensor) -> float:
    """The median squared distance of rows that are apart: those that coincide say nothing of a scale."""
    apart = distances[distances > 0]
    return float(apart.median()) if len(apart) else 1.0  # rows that are all equal have no scale; any will do


def attend(scores: Tensor, tau: Tensor | float) -> Tensor:
    """ξ (m, m): 1 − τ on oneself and τ over the others by a softmax of their scores.

    A stable softmax: at d = 10⁶ plain exponentials underflow and everyone would be alone in silence. Whoever has no
    one to attend to (all scores −∞, or a federation of one) keeps itself whole.
    """
    others = scores.clone().fill_diagonal_(-torch.inf)
    weights = torch.nan_to_num(others.softmax(1))
    share = torch.as_tensor(tau, dtype=scores.dtype, device=scores.device).expand(len(scores))
    weights = share[:, None] * weights
    return weights + torch.diag(1 - weights.sum(1))
