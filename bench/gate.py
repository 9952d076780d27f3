"""How often does a stack's gate close where training alone is no better than the mixture? Made silos, each a draw.

python bench/gate.py [--silos 1000] [--level 0.05]: alone has an error of its own that is just so small that its mean
log-likelihood is the mixture's, which is made of it and of two others; what is printed is the share of silos whose gate
closes, by how many held-out rows they have and how errors are distributed.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from coterie.methods.parts import stacking

Array = np.ndarray
ROWS = (8, 12, 30, 100)
OTHERS = 0.9  # the error of the other candidates, where alone has one from 0 to 1.5
KAPPA = 30.0
STEPS, TUNED_ON = 8, 500  # of halving where alone's error lies, by how many silos
Made = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]  # off and least (silos, rows), and the mask


def classes(rng: np.random.Generator, silos: int, rows: int, own: float) -> Made:
    """Two classes, whose log-odds each candidate knows but for its error."""
    z = rng.normal(0, 1.5, (silos, rows))
    odds = torch.tensor(np.stack([z + rng.normal(0, sd, z.shape) for sd in (own, OTHERS, OTHERS)], 1))
    p = torch.stack([(-odds).sigmoid(), odds.sigmoid()], 3)
    y = torch.tensor(rng.random(z.shape) < 1 / (1 + np.exp(-z))).long()
    likelihoods = p.log().gather(3, y[:, None, :, None].expand(-1, 3, -1, 1))[..., 0]
    weights, off, mask = mixed(likelihoods)
    return off, stacking.least_ahead(p, 0, weights), mask


def numbers(draw: Callable[..., Array], rng: np.random.Generator, silos: int, rows: int, own: float) -> Made:
    """Numbers that each candidate knows but for its error; each has the variance of that."""
    sizes = (own, OTHERS, OTHERS)
    squares = torch.tensor(np.stack([(sd * draw(rng, size=(silos, rows))) ** 2 for sd in sizes], 1))
    spread = float(np.mean(draw(np.random.default_rng(1), size=10**6) ** 2))
    every = [stacking.number_likelihoods(squares[:, c], torch.tensor(spread * sd**2)) for c, sd in enumerate(sizes)]
    _, off, mask = mixed(torch.stack(every, 1))
    return off, None, mask


def mixed(likelihoods: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The weights for each row, by how much the first candidate is ahead of the mixture there, and the mask."""
    mask, prior = torch.ones_like(likelihoods[:, 0]), torch.full_like(likelihoods[..., 0], 1 / 3)
    others = stacking.others(likelihoods, mask, prior, torch.tensor([KAPPA]).double())
    return others[:, 0], likelihoods[:, 0] - stacking.left_out(likelihoods, mask, others)[:, 0], mask


def closed(make: Callable[..., Made], rows: int, silos: int, level: float) -> float:
    """The share of silos whose gate closes, where alone's error makes it as good as the mixture."""
    low, high = 0.05, 1.5
    for _ in range(STEPS):
        middle = (low + high) / 2
        ahead = float(make(np.random.default_rng(2), TUNED_ON, rows, middle)[0].mean())
        low, high = (middle, high) if ahead > 0 else (low, middle)
    return float(stacking.gate(*make(np.random.default_rng(3), silos, rows, high), level)[:, 0].double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=1000)
    parser.add_argument("--level", type=float, default=0.05)
    given = parser.parse_args()
    rng = np.random.Generator
    kinds = {
        "classes": classes,
        "numbers, normal errors": partial(numbers, rng.standard_normal),
        "numbers, Laplace errors": partial(numbers, rng.laplace),
    }
    print("rows", *ROWS)
    for kind, make in kinds.items():
        print(f"{kind}:", *(f"{closed(make, rows, given.silos, given.level):.3f}" for rows in ROWS), flush=True)


if __name__ == "__main__":
    main()
