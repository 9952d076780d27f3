"""Would a stack do better if it mixed otherwise? What candidates gave in a run, mixed again by other rules.

python bench/mixing.py FOLDER [--rules now,free,…]: FOLDER is what `bench/stack.py --keep --out FOLDER` left. Nothing is
trained: every round is mixed as a stack would that had these candidates, and judged on test rows at the round that
validation rows pick. A line for each federation and one for all: log-loss and accuracy of the first rule in the mean
over silos and seeds, its bottom decile, how many silos are worse and better off than alone by a sign test at 5% (each
silo by itself), and by how much every other rule differs, ± half of a 95% interval over seeds.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from scipy.stats import binom
from stack import _rank, student_quantile
from torch import Tensor

from coterie.measure.measures import log_loss
from coterie.measure.metrics import pick_of
from coterie.methods.parts import stacking
from coterie.methods.stack import FIRST_KAPPA, Stack

Array = np.ndarray


def variational(likelihoods: Tensor, mask: Tensor, prior: Tensor, kappas: Tensor, iterations: int) -> Tensor:
    """In place of EM: the mean of the weights' posterior by variational Bayes, with κ π̄ as Dirichlet's parameters."""
    scaled = stacking._scaled(likelihoods, mask)
    kappas = kappas.reshape(-1, kappas.shape[-1], 1)
    held = (kappas * prior[:, None]).clamp_min(1e-6)
    shape = held + mask.sum(1)[:, None, None] * prior[:, None]
    for _ in range(iterations):
        shape = held + stacking._counts(scaled, mask, (shape.digamma() - shape.sum(2, keepdim=True).digamma()).exp())
    return shape / shape.sum(2, keepdim=True)


STACKING = "coterie.methods.parts.stacking."
RULES: dict[str, dict[str, Any]] = {
    "now": {},
    **{f"surer-{held:g}": {f"{STACKING}SURER": held} for held in (0.5, 5.0, 15.0)},
    "untempered": {f"{STACKING}SURER": 1e9, "coterie.measure.tempering.TOWARDS_ONE": 1e9},
    "small-kappa": {f"{STACKING}KAPPAS": (0.3, 1.0, *stacking.KAPPAS)},
    "variational": {f"{STACKING}weigh": variational},
    "uniform": {f"{STACKING}KAPPAS": (1e9,), f"{STACKING}UNIFORM": 1.0},
}


class Kept(NamedTuple):
    """One split of all silos, rows filled up: log-probabilities by round, silo and candidate, labels, and which are."""

    logs: Tensor  # (rounds, k, c, n, C)
    y: Tensor  # (k, n)
    mask: Tensor  # (k, n)


def kept(file: Path, split: str) -> tuple[list[str], list[int], Kept]:
    with np.load(file) as found:
        names, rounds = found["names"].tolist(), found["rounds"].tolist()
        own = [name != "stack" for name in names]
        every = [found[f"{split}-{i}"][:, own] for i in range(len(found.files)) if f"{split}-{i}" in found.files]
        labels = [found[f"{split}-{i}-y"] for i in range(len(every))]
    n = max(len(y) for y in labels)
    logs = torch.zeros(len(rounds), len(every), sum(own), n, every[0].shape[3], dtype=torch.float64)
    y, mask = torch.zeros(len(every), n, dtype=torch.int64), torch.zeros(len(every), n, dtype=torch.float64)
    for i, (p, label) in enumerate(zip(every, labels, strict=True)):
        logs[:, i, :, : len(label)] = torch.tensor(p.astype(np.float64))
        y[i, : len(label)], mask[i, : len(label)] = torch.tensor(label), 1
    return [name for name in names if name != "stack"], rounds, Kept(logs, y, mask)


def at(logs: Tensor, scale: Tensor) -> Tensor:
    """Probabilities (k, c, n, C) at the candidates' temperatures."""
    return (logs / scale[:, None, None]).softmax(3)


class Sent(NamedTuple):
    """What the server knows of all silos."""

    scale: Tensor  # (c,)
    prior: Tensor  # (c,)
    kappa: Tensor


def mixed(file: Path) -> Iterator[tuple[int, dict[str, list[tuple[Array, Array]]]]]:
    """Round by round what the mixture gives: by split each silo's labels and probabilities."""
    names, rounds, held = kept(file, "validation")
    *_, test = kept(file, "test")
    alone, level = names.index("separate"), Stack.alpha / len(held.y)
    c, every = len(names), torch.tensor(stacking.KAPPAS).double()
    sent = Sent(torch.ones(c).double(), torch.full((c,), 1 / c).double(), torch.tensor(FIRST_KAPPA).double())
    temperatures = torch.tensor(stacking.TEMPERATURES).double()

    def likely(p: Tensor) -> Tensor:
        return p.gather(3, held.y[:, None, :, None].expand(-1, c, -1, 1))[..., 0].clamp_min(1e-30).log()

    for place, after in enumerate(rounds):
        p = at(held.logs[place], sent.scale)
        likelihoods = torch.where(held.mask[:, None] > 0, likely(p), 0.0)
        prior = sent.prior.expand(len(held.y), -1)
        found = stacking.weighed(likelihoods, held.mask, prior, sent.kappa)
        off, least = likelihoods[:, alone] - found.left_out, stacking.least_ahead(p, alone, found.others)
        closed = stacking.gate(off * held.mask, least, held.mask, level)
        only = torch.nn.functional.one_hot(torch.tensor(alone), c).double()
        weights = torch.where(closed[:, :1], only, found.weights)
        others = torch.where(closed[:, None, 1:], only[:, None], found.others)
        given = {
            "validation": (held, torch.einsum("kcn,kcnC->knC", others, p)),
            "test": (test, torch.einsum("kc,kcnC->knC", weights, at(test.logs[place], sent.scale))),
        }
        yield (
            after,
            {
                split: [(y[m > 0].numpy(), out[m > 0].numpy()) for y, m, out in zip(of.y, of.mask, q, strict=True)]
                for split, (of, q) in given.items()
            },
        )
        if after in (1, 2, 4) or after % Stack.fit_every == 0:
            curves = torch.stack([
                -(torch.where(held.mask[:, None] > 0, likely(at(held.logs[place], t.expand(c))), 0.0)).sum((0, 2))
                for t in temperatures
            ], 1)  # fmt: skip
            fits = stacking.left_out(likelihoods, held.mask, stacking.others(likelihoods, held.mask, prior, every))
            sent = Sent(
                stacking.fitted_temperatures(curves),
                stacking.common_prior(stacking.counts(likelihoods, held.mask, found.weights)),
                every[int(fits.sum((0, 2)).argmax())],
            )


def judged(file: Path) -> dict[str, Any]:
    """What the mixture of the round that validation rows pick is worth on test rows."""
    rounds = dict(mixed(file))

    def right(given: list[tuple[Array, Array]]) -> list[Array]:
        return [out.argmax(1) == y for y, out in given]

    def rank(given: list[tuple[Array, Array]]) -> Any:
        shares = ["".join(map(str, each.astype(int))) for each in right(given)]
        return _rank({"right": shares, "log_loss": [log_loss(y, out) for y, out in given]})

    best = pick_of({after: rank(given["validation"]) for after, given in rounds.items()}).round
    test = rounds[best]["test"]
    accuracy = np.array([100 * each.mean() for each in right(test)])
    name, _, seed = file.stem.rpartition("-")
    lines = map(json.loads, (file.parent / f"{name}.jsonl").read_text("utf-8").splitlines())
    (alone,) = (each for each in lines if each["method"] == "separate" and each.get("seed") == int(seed))
    worse = better = 0
    for mine, theirs in zip(right(test), alone["test"]["right"], strict=True):
        other = np.array([*theirs]) == "1"
        won, lost = int((mine & ~other).sum()), int((other & ~mine).sum())
        sure = binom.sf(max(won, lost) - 1, won + lost, 0.5) < 0.05
        worse, better = worse + int(sure and lost > won), better + int(sure and won > lost)
    return {
        "log-loss": np.mean([log_loss(y, out) for y, out in test]),
        "accuracy": accuracy.mean(),
        "decile": np.quantile(accuracy, 0.1),
        "worse": worse,
        "better": better,
    }


@contextmanager
def ruled(rule: dict[str, Any]) -> Iterator[None]:
    """The parts of the mixing that a rule changes, changed."""
    patches = [patch(name, value) for name, value in rule.items()]
    try:
        for each in patches:
            each.start()
        yield
    finally:
        for each in patches:
            each.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rules", default=",".join(RULES))
    given = parser.parse_args()
    rules = given.rules.split(",")
    files: dict[str, list[Path]] = {}
    for file in sorted(given.folder.glob("*.npz")):
        files.setdefault(file.stem.rpartition("-")[0], []).append(file)
    for name, seeds in files.items():
        found = {}
        for rule in rules:
            with ruled(RULES[rule]):
                found[rule] = [judged(file) for file in seeds]
        for rule, every in found.items():
            cells = []
            for key, digits in (("log-loss", 4), ("accuracy", 2), ("decile", 1), ("worse", 1), ("better", 1)):
                values = np.array([each[key] for each in every])
                if rule == rules[0]:
                    cells.append(f"{key} {values.mean():.{digits}f}")
                    continue
                off = values - np.array([each[key] for each in found[rules[0]]])
                n = len(off)
                wide = student_quantile(0.975, n - 1) * off.std(ddof=1) / np.sqrt(n) if n > 1 else float("nan")
                cells.append(f"{key} {off.mean():+.{digits}f} ± {wide:.{digits}f}")
            print(f"{name} ({len(seeds)} seeds), {rule}: {'; '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
