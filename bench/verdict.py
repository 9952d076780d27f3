"""Is the verdict right? Made federations whose truth is known, judged on fresh rows that no run has seen.

python bench/verdict.py [--kinds rare,clusters,…] [--seeds 3]: for each federation the method that the verdict takes,
what it is worth on fresh rows, what the best in hindsight would have been, and how many outcomes of silos were right.
"""

import argparse
import json
import sys
from collections.abc import Callable

import numpy as np
import pandas as pd

import coterie as co
from coterie.measure.measures import measure_of

FRESH = 4000  # rows of each silo that judge the verdict
Draw = Callable[[int, np.random.Generator], pd.DataFrame]


def silo(weights: np.ndarray, offset: float, shift: np.ndarray, numbers: bool = False, noise: float = 0.5) -> Draw:
    """A silo's rows: numbers and one category, and a label that depends on them by `weights`."""

    def draw(rows: int, rng: np.random.Generator) -> pd.DataFrame:
        x = rng.normal(size=(rows, len(weights))) + shift
        ward = rng.integers(3, size=rows)
        signal = x @ weights + 0.5 * (ward == 1) + offset + 0.3 * weights[0] * x[:, 1] * x[:, 2]
        frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(len(weights))])
        frame["ward"] = np.array(["a", "b", "c"])[ward]
        if numbers:
            frame["y"] = 10 * signal + 10 * noise * rng.normal(size=rows)
        else:
            frame["y"] = np.where(rng.random(rows) < 1 / (1 + np.exp(-signal)), "yes", "no")
        return frame

    return draw


def federation(kind: str, rng: np.random.Generator) -> tuple[dict[str, Draw], list[int]]:
    """By silo how its rows are drawn, and how many it has."""
    base = rng.normal(size=8) * 0.8
    if kind == "rare":  # 7 hospitals, 4% of rows positive
        makers = [silo(1.3 * base, -4.6, 0.3 * rng.normal(size=8)) for _ in range(7)]
        return _named(makers), [int(n) for n in rng.integers(250, 900, size=7)]
    if kind == "clusters":  # 40 clinics in 4 clusters with different rules
        rules = [rng.normal(size=8) for _ in range(4)]
        return _named([silo(rules[i % 4], 0.0, np.zeros(8)) for i in range(40)]), [60] * 40
    if kind == "banks":  # 5 banks, each a mixture of two kinds of customers
        makers = [
            silo(base * rng.choice([1, -1], p=[0.8, 0.2]), 0.3 * rng.normal(), 0.5 * rng.normal(size=8))
            for _ in range(5)
        ]
        return _named(makers), [int(n) for n in rng.integers(150, 600, size=5)]
    if kind == "alike":  # 6 silos of one distribution, few rows
        return _named([silo(base, 0.0, np.zeros(8)) for _ in range(6)]), [80] * 6
    if kind == "apart":  # 5 silos with nothing in common, many rows
        return _named([silo(rng.normal(size=8), 0.0, np.zeros(8)) for _ in range(5)]), [600] * 5
    if kind == "numbers":  # regression, silos with offsets of their own
        makers = [silo(base, 0.4 * rng.normal(), 0.3 * rng.normal(size=8), numbers=True) for _ in range(6)]
        return _named(makers), [int(n) for n in rng.integers(80, 300, size=6)]
    raise SystemExit(f"no kind {kind}; known: {', '.join(KINDS)}")


KINDS = ("rare", "clusters", "banks", "alike", "apart", "numbers")


def _named(makers: list[Draw]) -> dict[str, Draw]:
    return {f"silo-{i:02}": maker for i, maker in enumerate(makers)}


def judged(kind: str, seed: int) -> dict[str, object]:
    """One federation: what the verdict took, and the truth."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    makers, sizes = federation(kind, rng)
    frames = {name: make(size, rng) for (name, make), size in zip(makers.items(), sizes, strict=True)}
    fresh = {name: make(FRESH, rng) for name, make in makers.items()}
    comparison = co.Federation(co.silos(frames, label="y")).compare(quiet=True)
    verdict = comparison.run.verdict
    name = verdict["measure"]
    measure = measure_of(name)
    truth = {
        method: {each: _worth(comparison[method][each], fresh[each], name) for each in frames}
        for method in comparison.methods
    }
    means = {method: float(np.mean(list(each.values()))) for method, each in truth.items()}
    best = max(means, key=lambda method: means[method] if measure.higher else -means[method])
    chosen = verdict["chosen"]
    outcomes = []
    for each in verdict["silos"]:
        gain = measure.better(truth[verdict["judged"]][each["silo"]], truth["separate"][each["silo"]])
        outcomes.append((each["outcome"], gain))
    regret = measure.better(means[best], means[chosen])
    return {
        "kind": kind, "seed": seed, "measure": name, "chosen": chosen, "score": means[chosen], "best": best,
        "best_score": means[best], "alone": means["separate"],
        "regret": regret / abs(means[best]) if measure.relative else regret,
        "better": sum(outcome == "better" for outcome, _ in outcomes),
        "wrong_better": sum(outcome == "better" and gain <= 0 for outcome, gain in outcomes),
        "worse": sum(outcome == "worse" for outcome, _ in outcomes),
        "wrong_worse": sum(outcome == "worse" and gain >= 0 for outcome, gain in outcomes),
        "truth": means, "validation": {m: s["validation"] for m, s in verdict["methods"].items()},
        "log_loss": {m: s["measures"].get("log_loss", {}).get("validation") for m, s in comparison.summary.items()},
    }  # fmt: skip


def _worth(model: co.PersonalModel, frame: pd.DataFrame, name: str) -> float:
    x, y = frame.drop(columns="y"), frame["y"]
    if measure_of(name).kind == "numbers":
        return float(measure_of(name).of(y.to_numpy(), model.predict(x)["prediction"].to_numpy()))
    places = {each: i for i, each in enumerate(model.classes)}
    return float(measure_of(name).of(y.map(places).to_numpy(), model.predict_proba(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    found = []
    for kind in given.kinds.split(","):
        for seed in range(given.first, given.first + given.seeds):
            each = judged(kind, seed)
            found.append(each)
            print(json.dumps(each), flush=True)
    table = pd.DataFrame(found)
    within = (table["regret"] <= 0.01).mean()
    better, wrong = table["better"].sum(), table["wrong_better"].sum()
    print(f"{len(table)} federations: the method taken is within 0.01 (or 1%) of the best in {100 * within:.0f}%; "
          f"{better} silos called better, {wrong} of them wrongly", file=sys.stderr)  # fmt: skip


if __name__ == "__main__":
    main()
