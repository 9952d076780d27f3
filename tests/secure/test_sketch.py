"""Sketches: they depend on the models through their Gram matrix alone, and give distances and angles back."""

import numpy as np
import torch
from scipy.stats import kstest

from coterie.secure.masks import subkey
from coterie.secure.sketch import WIDTH, folded, normal, sketch

KEYS = [subkey(b"group", number) for number in range(400)]


def rotated(w: torch.Tensor) -> torch.Tensor:
    """Other models with the same Gram matrix."""
    draw = np.random.default_rng(3)
    turn, _ = np.linalg.qr(draw.normal(size=(w.shape[1], w.shape[1])))
    return w @ torch.from_numpy(turn)


def transcripts(w: torch.Tensor) -> np.ndarray:
    """What the server sees of models (m, d) under many keys: (keys, m·k)."""
    return np.stack([sketch(key, w, 8).flatten().numpy() for key in KEYS])


def whitened(seen: np.ndarray, w: torch.Tensor) -> np.ndarray:
    """What must be standard normal numbers if the sketches of w are N(0, G/k): all of them."""
    m = len(w)
    root = np.linalg.inv(np.linalg.cholesky((w @ w.T).numpy() / 8))
    whole: np.ndarray = (root @ seen.reshape(-1, m, 8)).ravel()
    return whole


def models() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(3, 40)) * [[1.0], [2.0], [0.5]])


def test_models_with_the_same_gram_matrix_give_the_same_distribution_and_others_do_not() -> None:
    w = models()
    same, other = rotated(w), w * torch.tensor([[1.0], [1.5], [1.0]], dtype=torch.float64)
    torch.testing.assert_close(same @ same.T, w @ w.T)
    assert (same - w).abs().max() > 0.5
    p = {name: kstest(whitened(transcripts(each), w), "norm").pvalue for name, each in
         {"itself": w, "same": same, "other": other}.items()}  # fmt: skip
    assert p["itself"] > 0.01
    assert p["same"] > 0.01
    assert p["other"] < 1e-4


def test_the_columns_of_sketches_are_independent_given_the_gram_matrix() -> None:
    """Second moments of one transcript: m·k numbers whose covariance is G/k between models, and 0 between columns."""
    w = models()
    seen = transcripts(w)
    expected = np.kron((w @ w.T).numpy() / 8, np.eye(8))
    spread = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()) * 2 / len(seen))
    assert (np.abs(np.cov(seen.T, bias=True) - expected) < 4.5 * spread).all()


def test_distances_and_cosines_come_back_to_about_the_root_of_two_over_k() -> None:
    draw = torch.Generator().manual_seed(1)
    w = torch.randn(4, 3 * WIDTH + 7, generator=draw)  # folded, the last block short
    w[1] = w[0] + 0.05 * w[1]
    s = sketch(KEYS[0], w, 512)
    true, found = torch.cdist(w.double(), w.double()).square(), torch.cdist(s, s).square()
    off = ~torch.eye(4, dtype=torch.bool)
    assert (found[off] / true[off] - 1).abs().max() < 4 * (2 / 512) ** 0.5


def test_models_that_are_folded_are_seen_by_their_gram_matrix_alone() -> None:
    """Models spread over all columns, and two columns, one in the first block and one in the last: the same G."""
    w = torch.from_numpy(np.random.default_rng(0).standard_t(3, size=(2, 5 * WIDTH // 2)))
    w[1] += w[0]
    same, other = torch.zeros_like(w), w * torch.tensor([[1.0], [1.5]], dtype=torch.float64)
    same[:, [0, -1]] = torch.linalg.cholesky(w @ w.T)
    torch.testing.assert_close(same @ same.T, w @ w.T)
    keys = KEYS[:60]
    seen = {name: np.stack([sketch(key, each, 16).numpy() for key in keys]) for name, each in
            {"itself": w, "same": same, "other": other}.items()}  # fmt: skip
    root = np.linalg.inv(np.linalg.cholesky((w @ w.T).numpy() / 16))
    p = {name: kstest((root @ each).ravel(), "norm").pvalue for name, each in seen.items()}
    assert p["itself"] > 0.01 and p["same"] > 0.01
    assert p["other"] < 1e-4


def test_folding_keeps_inner_products_in_the_mean_and_to_the_root_of_two_over_the_width() -> None:
    w = torch.from_numpy(np.random.default_rng(5).standard_t(3, size=(2, 3 * WIDTH)))
    w[1] += w[0]
    true = (w @ w.T).numpy()
    length = np.sqrt(np.outer(true.diagonal(), true.diagonal()))
    off = np.stack([((f := folded(key, w)) @ f.T).numpy() - true for key in KEYS[:60]]) / length
    assert np.abs(off.mean(0)).max() < 4 * (2 / WIDTH / 60) ** 0.5
    assert np.sqrt((off**2).mean()) < 1.3 * (2 / WIDTH) ** 0.5
    assert torch.equal(folded(KEYS[0], w[:, :WIDTH]), w[:, :WIDTH])


def test_sketches_are_linear_and_the_same_for_one_row_as_for_many() -> None:
    w = torch.randn(3, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    s = sketch(KEYS[0], w, 16)
    torch.testing.assert_close(sketch(KEYS[0], w[1:2], 16), s[1:2])
    torch.testing.assert_close(sketch(KEYS[0], w[:1] + 2 * w[1:2], 16), s[:1] + 2 * s[1:2])


def test_numbers_of_the_stream_are_normal() -> None:
    found = normal(KEYS[0], 1 << 16).double()
    assert kstest(found.numpy(), "norm").pvalue > 0.01
    assert abs(float(found.pow(4).mean()) - 3) < 0.15
