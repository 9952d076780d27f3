"""Is the verdict right? Made federations whose truth is known, judged on fresh rows that no run has seen.

python bench/verdict.py [--kinds rare,clusters,…] [--seeds 3] [--first 0] [--jobs 1] [--minutes 9] [--out
verdict.jsonl]: for each federation the method that the verdict takes, what it is worth on fresh rows, what the best in
hindsight would have been, and how many outcomes of silos were right. Each federation is a line of the file once it is
done, and is not run again; --seeds 0 runs none and sums up what the file has.

The same models are judged a second time as between organisations, where silos report scores and their standard errors
and show no rows (`deployed` in a line): of the first seed, without plain models beside.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import product
from multiprocessing import TimeoutError, get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import coterie as co
from coterie.measure.measures import measure_of, oriented
from coterie.measure.paired import interval, scored
from coterie.measure.predictions import PROBABILITY
from coterie.measure.verdict import judge

FRESH = 40_000  # rows that judge the verdict, of all silos together; of each at least 1,000 and at most 4,000
SURE = 30  # times the test rows, where intervals are judged: what fresh rows say has an error too
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
    if kind in ("clusters", "clinics"):  # 40 or 200 clinics in 4 clusters with different rules
        rules, many = [rng.normal(size=8) for _ in range(4)], 40 if kind == "clusters" else 200
        return _named([silo(rules[i % 4], 0.0, np.zeros(8)) for i in range(many)]), [60] * many
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
    if kind == "tested":  # the same for four silos of six, with rows enough to see it
        rules = [rule := 0.4 * rng.normal(size=60), rule, rule, rule, *(0.4 * rng.normal(size=(2, 60)))]
        return _named([silo(each, 0.0, np.zeros(60)) for each in rules]), [1800] * 6
    if kind in ANSWERED:
        return _answered(kind, rng)
    raise SystemExit(f"no kind {kind}; known: {', '.join(KINDS)}")


def _answered(kind: str, rng: np.random.Generator) -> tuple[dict[str, Draw], list[int]]:
    """16 silos, some of which must gain and some of which hardly can, by reasoning; sizes are of rows to learn from."""
    rule, none = 0.4 * rng.normal(size=20), np.zeros(20)
    if kind == "few":  # one rule and too few rows to learn it alone: every silo should gain
        return _named([silo(rule, 0.0, none) for _ in range(16)]), [60] * 16
    if kind == "uneven":  # one rule; the silo with the most rows has learned most of it by itself
        return _named([silo(rule, 0.0, none) for _ in range(16)]), [int(n) for n in np.geomspace(40, 1200, 16)]
    if kind == "half":  # eight silos of one rule, and eight with one each, which can gain nothing from anybody
        rules = [rule] * 8 + [0.4 * rng.normal(size=20) for _ in range(8)]
        return _named([silo(each, 0.0, none) for each in rules]), [150] * 16
    if kind == "seldom":  # as "half" with 6% to 8% positive rows, so by AUROC
        rules = [rule] * 8 + [0.4 * rng.normal(size=20) for _ in range(8)]
        return _named([silo(each, -4.0, none) for each in rules]), [300] * 16
    rules = [rule] * 8 + [0.4 * rng.normal(size=20) for _ in range(8)]  # "sums": as "half", of numbers
    return _named([silo(each, 0.0, none, numbers=True, noise=1.5) for each in rules]), [60] * 16


ANSWERED = {"few": 1000, "uneven": 1500, "half": 1000, "seldom": 2000, "sums": 600}  # test rows of each silo
KINDS = ("rare", "clusters", "banks", "alike", "apart", "numbers", "wide", "clinics", "tested", *ANSWERED)
NUMBERS = ("numbers", "sums")
TEST = {"tested": 0.7}  # the share of rows that test, where it is not the default


def _named(makers: list[Draw]) -> dict[str, Draw]:
    return {f"silo-{i:02}": maker for i, maker in enumerate(makers)}


def judged(federation_of: tuple[int, str]) -> dict[str, object]:
    """One federation: what the verdict took, and the truth."""
    seed, kind = federation_of
    began = time.process_time()
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    makers, sizes = federation(kind, rng)
    frames = {name: make(size, rng) for (name, make), size in zip(makers.items(), sizes, strict=True)}
    rows = SURE * ANSWERED[kind] if kind in ANSWERED else min(max(FRESH // len(makers), 1000), 4000)
    fresh = {name: make(rows, rng) for name, make in makers.items()}
    if kind in ANSWERED:  # one seed, so that what is judged is one model, the one that fresh rows judge
        tests = {name: make(ANSWERED[kind], rng).assign(split="test") for name, make in makers.items()}
        joined = {name: pd.concat([frames[name].assign(split="train"), tests[name]]) for name in frames}
        asked = co.Federation(co.silos(joined, label="y", split_column="split"), seeds=[0])
    else:
        asked = co.Federation(co.silos(frames, label="y", test_share=TEST.get(kind, 0.2)))
    comparison = asked.compare(quiet=True)
    verdict = comparison.run.verdict
    name = verdict["measure"]
    measures = dict.fromkeys([name] if kind in NUMBERS else [name, "auroc"])
    truth = _truth(comparison, fresh, list(measures))
    means = {each: _means(by_method) for each, by_method in truth.items()}
    return {
        "kind": kind, "seed": seed, "measure": name, "best": _best(means[name], name),
        **_right(verdict, truth), "deployed": _right(reported(comparison), truth),
        "baselines": bool(find_spec("sklearn")), "truth": means,
        "ranked": verdict["ranked"], "seeds": len(comparison.run.study["seeds"]), "cpu_s": time.process_time() - began,
        "validation": {m: s["validation"] for m, s in verdict["methods"].items()},
        "log_loss": {m: s["measures"].get("log_loss", {}).get("validation") for m, s in comparison.summary.items()},
    }  # fmt: skip


def reported(comparison: co.Comparison) -> dict[str, Any]:
    """The verdict on the first seed's models by what real silos report of them."""
    run = comparison.run
    name, seed = run.verdict["measure"], int(run.results["seed"].iloc[0])
    measure, positive = measure_of(name), run.study["measure"]["positive"]
    errors, sizes = list[dict[str, Any]](), dict[str, int]()
    for (method, silo), rows in run.predictions(comparison.methods).groupby(["method", "silo"], sort=False):
        chances = [column for column in rows if column.startswith(PROBABILITY)]
        if chances:
            names = {column.removeprefix(PROBABILITY): place for place, column in enumerate(chances)}
            y, p = oriented(rows["label"].map(names).to_numpy(), rows[chances].to_numpy(), positive)
        else:
            y, p = rows["label"].to_numpy(float), rows["prediction"].to_numpy()
        error = interval(measure, [scored(measure, y, measure.seen(p, 0.5))]).error
        about = {"seed": seed, "round": rows["round"].iloc[0], "split": "test", "measure": f"{name}_error"}
        errors.append({"method": method, "silo": silo, **about, "value": error})
        sizes[silo] = len(rows)
    results = pd.concat([run.results[run.results["seed"] == seed], pd.DataFrame(errors)], ignore_index=True)
    costs = {label: float(each["bytes_up"] + each["bytes_down"]) for label, each in run.methods.items()}
    return judge(results, {}, {}, "separate", {seed: sizes}, name, costs, mixtures=["stack"])


def _right(verdict: dict[str, Any], truth: Truth) -> dict[str, Any]:
    """What a verdict took and called, and how right that is."""
    name, chosen = verdict["measure"], verdict["chosen"]
    measure, own = measure_of(name), truth[name]
    scale = 100 if measure.percent else 1  # of a verdict's figures
    silos = [
        {"outcome": each["outcome"], "margin": each["margin"] / scale,
         "truth": measure.better(own[verdict["judged"]][each["silo"]], own["separate"][each["silo"]]),
         "low": -np.inf if each["low"] is None else each["low"] / scale,
         "high": np.inf if each["high"] is None else each["high"] / scale, "n": each["n"]}
        for each in verdict["silos"]
    ]  # fmt: skip
    called = {name: [each for each in silos if each["outcome"] == name] for name in ("better", "worse", "equivalent")}
    auroc = _regret(_means(truth["auroc"]), chosen, "auroc") if "auroc" in truth else None
    return {
        "chosen": chosen, "regret": _regret(_means(own), chosen, name), "auroc_regret": auroc,
        **{name: len(each) for name, each in called.items()},
        "wrong_better": sum(each["truth"] <= 0 for each in called["better"]),
        "wrong_worse": sum(each["truth"] >= 0 for each in called["worse"]),
        "wrong_equivalent": sum(abs(each["truth"]) > each["margin"] for each in called["equivalent"]),
        "covered": sum(each["low"] <= each["truth"] <= each["high"] for each in silos),
        "silos": len(silos), "outcomes": silos,
    }  # fmt: skip


def _truth(comparison: co.Comparison, fresh: dict[str, pd.DataFrame], names: list[str]) -> Truth:
    """By measure, method and silo: what the saved model is worth on fresh rows."""
    found: Truth = {name: {method: {} for method in comparison.methods} for name in names}
    results = {method: comparison[method] for method in comparison.methods}
    for silo, frame in fresh.items():
        models = {method: result[silo] for method, result in results.items()}
        first, y = next(iter(models.values())), frame["y"].to_numpy()
        x = torch.as_tensor(first.encode(frame.drop(columns="y")))  # as every method's model of this silo takes them
        y = (y == first.classes[1]).astype(int) if first.classes else y
        for method, model in models.items():
            with torch.no_grad():
                out = model.module(x).numpy()
            for name in names:
                found[name][method][silo] = float(measure_of(name).of(y, out if first.classes else out[:, 0]))
    return found


def _means(by_method: dict[str, dict[str, float]]) -> dict[str, float]:
    return {method: float(np.mean(list(each.values()))) for method, each in by_method.items()}


def _best(means: dict[str, float], name: str) -> str:
    return max(means, key=lambda method: means[method] if measure_of(name).higher else -means[method])


def _regret(means: dict[str, float], chosen: str | None, name: str) -> float:
    """By how much the best in hindsight is ahead of the method taken; of errors as a share of them."""
    if chosen is None:
        return np.inf
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
        calls = ", ".join(
            f"{part[name].sum()} {name} ({part[f'wrong_{name}'].sum()} wrongly)"
            for name in ("better", "worse", "equivalent")
        )
        covered = 100 * part["covered"].sum() / part["silos"].sum()
        lines.append(
            f"{kind}: {len(part)} federations, taken within 0.01 or 1% of the best in {near:.0f}%{ranks}; of "
            f"{part['silos'].sum()} silos {calls}; the intervals of {covered:.0f}% hold the truth"
        )
    if not found["baselines"].all():
        lines.append("Without scikit-learn, so without its baselines in the comparison.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(kind for kind in KINDS if kind != "clinics"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="after which no more are waited for")
    parser.add_argument("--out", type=Path, default=Path("verdict.jsonl"))
    given = parser.parse_args()
    lines = given.out.read_text("utf-8").splitlines() if given.out.exists() else []
    found = [json.loads(line) for line in lines]
    done = {(each["seed"], each["kind"]) for each in found}
    wanted = list(product(range(given.first, given.first + given.seeds), given.kinds.split(",")))
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # of processes that start after this
    until = time.monotonic() + 60 * given.minutes
    with get_context("spawn").Pool(given.jobs) as pool, given.out.open("a", encoding="utf-8") as file:
        coming = pool.imap_unordered(judged, [one for one in wanted if one not in done])
        with suppress(StopIteration, TimeoutError):
            while True:
                found.append(coming.next(max(0.0, until - time.monotonic())))
                print(json.dumps(found[-1]), file=file, flush=True)
    found = [each for each in found if not wanted or (each["seed"], each["kind"]) in wanted]
    print(summed(pd.DataFrame(found)))
    if deployed := [each | each["deployed"] for each in found if "deployed" in each]:
        print(f"By what real silos report of the same models:\n{summed(pd.DataFrame(deployed))}")


if __name__ == "__main__":
    main()
