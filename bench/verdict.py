"""Is the verdict right? Made federations whose truth is known, judged on fresh rows that no run has seen.

python bench/verdict.py [--kinds rare,clusters,…] [--seeds 3] [--out verdict.jsonl]: for each federation the method that
the verdict takes, what it is worth on fresh rows, what the best in hindsight would have been, and how many outcomes of
silos were right. Federations that are in the file already are not run again.
"""

import argparse
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

import coterie as co
from coterie.measure.measures import measure_of

FRESH = 4000  # rows of each silo that judge the verdict
Draw = Callable[[int, np.random.Generator], pd.DataFrame]
Truth = dict[str, dict[str, dict[str, float]]]


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
    if kind == "wide":  # 6 silos of one distribution with more columns than their rows can teach: federating helps
        rule = 0.4 * rng.normal(size=60)
        return _named([silo(rule, 0.0, np.zeros(60)) for _ in range(6)]), [700] * 6
    raise SystemExit(f"no kind {kind}; known: {', '.join(KINDS)}")


KINDS = ("rare", "clusters", "banks", "alike", "apart", "numbers", "wide")


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
    name, chosen = verdict["measure"], verdict["chosen"]
    measures = dict.fromkeys([name] if kind == "numbers" else [name, "auroc"])
    truth = _truth(comparison, fresh, list(measures))
    measure, own = measure_of(name), truth[name]
    gains = {silo: measure.better(own[verdict["judged"]][silo], own["separate"][silo]) for silo in frames}
    outcomes = [(each["outcome"], gains[each["silo"]]) for each in verdict["silos"]]
    means = {each: _means(by_method) for each, by_method in truth.items()}
    return {
        "kind": kind, "seed": seed, "measure": name, "chosen": chosen, "best": _best(means[name], name),
        "regret": _regret(means[name], chosen, name),
        "auroc_regret": _regret(means["auroc"], chosen, "auroc") if "auroc" in means else None,
        "better": sum(outcome == "better" for outcome, _ in outcomes),
        "wrong_better": sum(outcome == "better" and gain <= 0 for outcome, gain in outcomes),
        "worse": sum(outcome == "worse" for outcome, _ in outcomes),
        "wrong_worse": sum(outcome == "worse" and gain >= 0 for outcome, gain in outcomes),
        "silos": len(outcomes), "truth": means, "ranked": verdict["ranked"],
        "validation": {m: s["validation"] for m, s in verdict["methods"].items()},
        "log_loss": {m: s["measures"].get("log_loss", {}).get("validation") for m, s in comparison.summary.items()},
    }  # fmt: skip


def _truth(comparison: co.Comparison, fresh: dict[str, pd.DataFrame], names: list[str]) -> Truth:
    """By measure, method and silo: what the saved model is worth on fresh rows."""
    found: Truth = {name: {method: {} for method in comparison.methods} for name in names}
    for method in comparison.methods:
        for silo, frame in fresh.items():
            model, x, y = comparison[method][silo], frame.drop(columns="y"), frame["y"].to_numpy()
            if model.classes:
                y, predicted = (y == model.classes[1]).astype(int), model.predict_proba(x)
            else:
                predicted = model.predict(x)["prediction"].to_numpy()
            for name in names:
                found[name][method][silo] = float(measure_of(name).of(y, predicted))
    return found


def _means(by_method: dict[str, dict[str, float]]) -> dict[str, float]:
    return {method: float(np.mean(list(each.values()))) for method, each in by_method.items()}


def _best(means: dict[str, float], name: str) -> str:
    return max(means, key=lambda method: means[method] if measure_of(name).higher else -means[method])


def _regret(means: dict[str, float], chosen: str, name: str) -> float:
    """By how much the best in hindsight is ahead of the method taken; of errors as a share of them."""
    measure, best = measure_of(name), means[_best(means, name)]
    regret = measure.better(best, means[chosen])
    return regret / abs(best) if measure.relative else regret


def summed(found: pd.DataFrame) -> str:
    """A line for each kind and one for all."""
    lines = []
    for kind, part in [*found.groupby("kind", sort=False), ("all", found)]:
        near = 100 * (part["regret"] <= 0.01).mean()
        auroc = part["auroc_regret"].dropna().astype(float)
        ranks = f" (by AUROC {100 * (auroc <= 0.01).mean():.0f}%)" if len(auroc) else ""
        lines.append(
            f"{kind}: {len(part)} federations, taken within 0.01 or 1% of the best in {near:.0f}%{ranks}; of "
            f"{part['silos'].sum()} silos {part['better'].sum()} are better, {part['wrong_better'].sum()} wrongly, "
            f"and {part['worse'].sum()} worse, {part['wrong_worse'].sum()} wrongly"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("verdict.jsonl"))
    given = parser.parse_args()
    lines = given.out.read_text("utf-8").splitlines() if given.out.exists() else []
    found = {(each["kind"], each["seed"]): each for each in map(json.loads, lines)}
    wanted = list(product(range(given.seeds), given.kinds.split(",")))
    for seed, kind in wanted:
        if (kind, seed) not in found:
            found[kind, seed] = judged(kind, seed)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found[kind, seed]) + "\n")
    print(summed(pd.DataFrame([found[kind, seed] for seed, kind in wanted])))


if __name__ == "__main__":
    main()
