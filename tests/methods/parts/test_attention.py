"""Attention: Definition 1 of FedAMP for each function A, and distances and weights that survive float32 and large d."""

import math

import numpy as np
import pytest
import torch

from coterie.methods.fedamp import FedAMP
from coterie.methods.parts.attention import INDUCING, attend, cosines, gram, median_distance, squared_distances

SIGMAS = (0.5, 2.0)


def scad(t: torch.Tensor, sigma: float, a: float = 3.7) -> torch.Tensor:
    middle = (2 * a * sigma * t - t * t - sigma * sigma) / (2 * (a - 1))
    end = torch.full_like(t, sigma * sigma * (a + 1) / 2)
    return torch.where(t <= sigma, sigma * t, torch.where(t <= a * sigma, middle, end))


def mcp(t: torch.Tensor, sigma: float, a: float = 3.0) -> torch.Tensor:
    return torch.where(t <= a * sigma, sigma * t - t * t / (2 * a), torch.full_like(t, a * sigma * sigma / 2))


def root(t: torch.Tensor, sigma: float) -> torch.Tensor:
    return torch.where(t <= sigma * sigma, t / (2 * sigma), t.clamp_min(sigma * sigma).sqrt() - sigma / 2)


# A(t), of which the package needs the slope alone
VALUES = {"negative-exponential": lambda t, s: -torch.expm1(-t / s), "tamed-root": root, "scad": scad, "mcp": mcp}
each = pytest.mark.parametrize("name", INDUCING)
scaled = pytest.mark.parametrize("sigma", SIGMAS)


def grid(sigma: float) -> torch.Tensor:
    """Squared distances from 0 to well past every bend (σ, σ², aσ)."""
    return torch.linspace(0, 8 * max(sigma, sigma**2), 4001, dtype=torch.float64)


@each
@scaled
def test_a_is_increasing_and_concave_from_zero(name: str, sigma: float) -> None:
    t = grid(sigma)
    a = VALUES[name](t, sigma)
    assert a[0] == 0
    steps = a.diff()
    assert (steps >= -1e-14).all()
    assert steps[0] > 0
    assert (steps.diff() <= 1e-12).all()  # concave
    assert (steps.diff() < -1e-12).any()  # and not linear


@each
@scaled
def test_a_has_a_finite_slope_at_zero_and_no_kink(name: str, sigma: float) -> None:
    t = grid(sigma)
    slope = INDUCING[name].slope(t, sigma)
    near = INDUCING[name].slope(torch.tensor([0.0, 1e-12], dtype=torch.float64), sigma)
    assert torch.isfinite(near).all()
    assert (near > 0).all()
    torch.testing.assert_close(near[1], near[0], rtol=1e-9, atol=0)
    assert (slope >= 0).all()
    assert (slope.diff() <= 1e-14).all()  # A' does not increase: a similarity
    # continuous: on ten times finer a grid the largest jump of the slope is a tenth
    fine = INDUCING[name].slope(torch.linspace(0, float(t[-1]), 40_001, dtype=torch.float64), sigma)
    assert fine.diff().abs().max() < 0.11 * slope.diff().abs().max()


@each
@scaled
def test_the_slope_is_the_derivative_of_the_value(name: str, sigma: float) -> None:
    t = grid(sigma)[1:]
    h = 1e-6
    a = VALUES[name]
    numerical = (a(t + h, sigma) - a(t - h, sigma)) / (2 * h)
    torch.testing.assert_close(INDUCING[name].slope(t, sigma), numerical, rtol=1e-5, atol=1e-6)


@each
@scaled
def test_log_slope_is_the_logarithm_of_the_slope(name: str, sigma: float) -> None:
    t = grid(sigma)
    slope, log = INDUCING[name].slope(t, sigma), INDUCING[name].log_slope(t, sigma)
    seen = slope > 0
    assert (log[~seen] == -torch.inf).all()
    torch.testing.assert_close(log[seen], slope[seen].log(), rtol=1e-9, atol=1e-9)


def test_the_functions_are_the_papers() -> None:
    t = torch.tensor([0.0, 1.0, 4.0, 9.0], dtype=torch.float64)
    torch.testing.assert_close(VALUES["negative-exponential"](t, 2.0), 1 - torch.exp(-t / 2))
    # tamed square root: t/(2σ) up to σ², then √t − σ/2
    roots = torch.tensor([0.0, 0.25, 1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(VALUES["tamed-root"](t, 2.0), roots)


def test_the_log_slope_lasts_where_the_slope_underflows() -> None:
    t = torch.tensor([1e6], dtype=torch.float64)
    assert INDUCING["negative-exponential"].slope(t, 1.0) == 0
    assert INDUCING["negative-exponential"].log_slope(t, 1.0) == -1e6


def test_distances_of_close_models_in_float32() -> None:
    draw = np.random.default_rng(0)
    d = 10**5
    common = draw.normal(size=d)
    apart = draw.normal(size=(5, d))
    apart *= 1e-4 * np.linalg.norm(common) / np.linalg.norm(apart, axis=1, keepdims=True) / np.sqrt(2)
    rows = torch.from_numpy((common + apart).astype(np.float32))
    exact = rows.double()
    reference = torch.stack([(exact - row).square().sum(1) for row in exact])
    close = float(reference[0, 1]) ** 0.5 / float(exact[0].norm())
    assert 0.9e-4 < close < 1.1e-4
    ours = squared_distances(rows)
    off = ~torch.eye(5, dtype=torch.bool)
    assert ((ours - reference).abs()[off] / reference[off]).max() <= 1e-5
    assert (ours.diagonal() == 0).all()
    assert (cosines(rows) <= 1).all()


def test_gram_of_blocks_is_gram(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 50)))
    centred = rows - rows.mean(0)
    monkeypatch.setattr("coterie.methods.parts.attention.BLOCK", 7)
    torch.testing.assert_close(gram(rows), rows @ rows.T)
    torch.testing.assert_close(gram(rows, centre=True), centred @ centred.T)


def test_attention_of_large_models_is_neither_nan_nor_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 1_700_000, generator=draw) * 0.1  # squared distances about 34000: e^(−t/σ) is 0 in any float
    xi = FedAMP(sigma=10.0, tau=0.9).attention(rows)
    assert torch.isfinite(xi).all()
    torch.testing.assert_close(xi.sum(1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(xi.diagonal(), torch.full((4,), 0.1, dtype=torch.float64))


def test_attention_without_anyone_to_attend_to_is_oneself() -> None:
    scores = torch.full((3, 3), -torch.inf, dtype=torch.float64)
    scores[0, 1] = 0.0
    xi = attend(scores, 0.6)
    torch.testing.assert_close(xi, torch.tensor([[0.4, 0.6, 0], [0, 1, 0], [0, 0, 1]], dtype=torch.float64))
    torch.testing.assert_close(attend(torch.zeros(1, 1, dtype=torch.float64), 0.6), torch.ones(1, 1).double())


def test_cosines_and_a_zero_model() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-4.0, 3.0], [6.0, 8.0]])
    expected = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(cosines(rows), expected)


@pytest.mark.parametrize("factor", [1.0, 0.3])
@each
def test_auto_sigma_is_free_of_scale(name: str, factor: float) -> None:
    """Models c times as long attend to each other as before."""
    draws = torch.randn(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = draws * torch.arange(1, 7)[:, None]
    method = FedAMP(function=name, sigma_factor=factor)  # type: ignore[arg-type]
    xi = method.attention(w)
    assert xi.std() > 0.01
    for c in (1e-3, 0.1, 30, 1e3):
        torch.testing.assert_close(method.attention(c * w), xi)


@each
def test_auto_sigma_has_the_unit_of_its_function(name: str) -> None:
    sigma = 3.0 if name == "tamed-root" else 9.0
    w = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)  # squared distances 1, 9, 10
    auto, given = (FedAMP(function=name, sigma=each).attention(w) for each in ("auto", sigma))  # type: ignore[arg-type]
    torch.testing.assert_close(auto, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_auto_sigma_is_of_pairs_that_are_apart(dtype: torch.dtype) -> None:
    """Eight silos at the common start and two that have left it: of 45 pairs 28 coincide, and have no say in σ."""
    start = torch.randn(500, dtype=dtype, generator=torch.Generator().manual_seed(0))
    w = start.repeat(10, 1)
    w[8, :250] += 1e-2
    w[9, 250:] += 1e-2
    xi, e = FedAMP().attention(w), math.exp(-1)  # squared distances of those that are apart: 16 times 0.025, once 0.05
    expected = 0.5 / (7 + 2 * e) * torch.tensor([1, e, e]).double()
    torch.testing.assert_close(xi[0, [1, 8, 9]], expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_models_that_differ_by_rounding_are_alike(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(1000, dtype=torch.float64, generator=draw)
    noise = torch.randn(5, 1000, dtype=torch.float64, generator=draw)
    w = (start * (1 + 2 * torch.finfo(dtype).eps * noise)).to(dtype)
    assert not torch.equal(w[0], w[1])
    expected = torch.full((5, 5), 0.125).double().fill_diagonal_(0.5)
    for function in INDUCING:
        torch.testing.assert_close(FedAMP(function=function).attention(w), expected)  # type: ignore[arg-type]


def test_the_median_distance_has_a_value_for_equal_rows_and_for_one() -> None:
    assert median_distance(torch.zeros(3, 3)) == 1.0
    assert median_distance(torch.zeros(1, 1)) == 1.0
