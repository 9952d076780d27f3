"""Is each silo better off in the federation than alone, and which method shall the consortium take?

Every method is judged at the round that validation data pick, and the method itself is chosen by validation data too;
test data only report. Sample by sample where the silos tell, from their accuracies and counts where they do not.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from coterie.measure.metrics import judged_by, lower_better, picked
from coterie.measure.paired import DRAWS, Array, Estimate, bootstrap, from_counts, p_value
from coterie.measure.significance import ALPHA, holm, signed_rank

MARGIN = 2.0  # points of accuracy that matter
MARGIN_OF_LOSS = 0.05  # the share of a loss that matters
FEW = 3  # more peers than this are no answer to "from whom"


@dataclass(frozen=True)
class Standing:
    """One silo in the federation, beside itself alone. Gains are positive for better, whatever the measure."""

    silo: str
    score: float
    low: float
    high: float
    alone: float
    gain: float
    gain_low: float
    gain_high: float
    p: float
    p_holm: float
    samples: int  # test samples
    outcome: str  # better, worse, same, unclear; where a model diverged, gains are not numbers
    peers: list[str]  # who carry more than half of what it takes from others; empty: nobody or too many


@dataclass(frozen=True)
class Judged:
    """One method at its picked round: means over seeds by silo, and the test samples by silo and seed."""

    test: Series
    validation: Series | None
    rounds: dict[int, int]  # by seed
    samples: dict[str, dict[int, Array]]


def judge(
    results: DataFrame,
    predictions: DataFrame,
    traces: Mapping[str, Mapping[str, Array]],
    alone: str | None,
    sizes: Mapping[int, Mapping[str, int]],
) -> dict[str, Any]:
    """The verdict; `alone` is the label of the method without federation, where the study has one."""
    measure = judged_by(results.loc[results["split"] == "test", "measure"])
    sign, scale = (-1, 1.0) if lower_better(measure) else (1, 100.0)
    samples = _by_method(predictions, scale)
    methods = {
        str(name): _judged(runs, measure, scale, samples.get(str(name), {}))
        for name, runs in results.groupby("method", sort=False, observed=True)
    }
    rng = np.random.default_rng(0)
    choice = _choice({name: each.validation for name, each in methods.items()}, sign, rng)
    standings = {}
    if alone in methods:
        for name, method in methods.items():
            if name != alone:
                peers = _peers(traces.get(name, {}), method.rounds)
                standings[name] = _standings(method, methods[alone], sign, scale, sizes, peers, rng)
    shown = _shown(choice, list(standings))
    return {
        "measure": measure,
        "alone": alone if alone in methods else None,
        "paired": bool(samples),
        **choice,
        "methods": {name: _overall(each, standings.get(name, []), rng) for name, each in methods.items()},
        "judged": shown,
        "silos": [_written(each) for each in standings[shown]] if shown is not None else [],
    }


def _judged(runs: DataFrame, measure: str, scale: float, samples: dict[str, dict[int, Array]]) -> Judged:
    found = {int(seed): picked(run, measure) for seed, run in runs.groupby("seed", sort=False)}
    validation = [value for _, _, value in found.values() if value is not None]
    return Judged(
        DataFrame([test for _, test, _ in found.values()]).mean() * scale,
        DataFrame(validation).mean() * scale if len(validation) == len(found) else None,
        {seed: round for seed, (round, _, _) in found.items()},
        samples,
    )


def _choice(validation: Mapping[str, Series | None], sign: int, rng: np.random.Generator) -> dict[str, Any]:
    """The best method on validation data, how often it stays the best when silos are drawn anew, and its equals."""
    known = {name: sign * v for name, v in validation.items() if v is not None and np.isfinite(v).all()}
    nothing: dict[str, Any] = {"chosen": None, "sure": None, "equals": [], "ranked": []}
    if not known or any(v is None for v in validation.values()):
        return nothing
    grid = DataFrame(known).dropna()  # silos × methods
    if grid.empty:
        return nothing
    ranked = list(grid.mean().sort_values(ascending=False, kind="stable").index)
    best, others = ranked[0], ranked[1:]
    drawn = rng.multinomial(len(grid), np.full(len(grid), 1 / len(grid)), size=DRAWS) @ grid.to_numpy()
    p = holm(np.array([signed_rank((grid[best] - grid[name]).to_numpy()) for name in others]))
    return {
        "chosen": best,
        "sure": float((drawn.argmax(1) == grid.columns.get_loc(best)).mean()) if others else None,
        "equals": [name for name, chance in zip(others, p, strict=True) if chance >= ALPHA],
        "ranked": ranked,
    }


def _standings(
    method: Judged,
    alone: Judged,
    sign: int,
    scale: float,
    sizes: Mapping[int, Mapping[str, int]],
    peers: Mapping[str, list[str]],
    rng: np.random.Generator,
) -> list[Standing]:
    """Every silo that both have; Holm's correction is over these silos."""
    found = list[tuple[str, Estimate, float, Estimate, float, int]]()
    for silo in method.test.index.intersection(alone.test.index, sort=False):
        own, other = method.samples.get(silo, {}), alone.samples.get(silo, {})
        seeds = [seed for seed in own if seed in other and len(own[seed]) == len(other[seed])]
        count = min(by_silo[silo] for by_silo in sizes.values() if silo in by_silo)
        score, base = float(method.test[silo]), float(alone.test[silo])
        if not np.isfinite([score, base]).all():
            of_score, gain, p = _exactly(score), _exactly(np.nan), 0.0 if score != base else 1.0
        elif seeds:
            differences = [sign * (own[seed].astype(float) - other[seed]) for seed in seeds]
            of_score = bootstrap([own[seed] for seed in seeds], rng)
            gain, p = bootstrap(differences, rng), p_value([each / scale for each in differences])
        elif sign > 0:
            of_score, gain, p = from_counts(score / scale, base / scale, count, rng)
            of_score, gain = _times(of_score, scale), _times(gain, scale)
        else:  # of a mean loss alone nothing is known of its spread
            of_score, gain, p = _exactly(score), _exactly(sign * (score - base)), 1.0
        found.append((str(silo), of_score, base, gain, p, count))
    corrected = holm(np.array([p for *_, p, _ in found]))
    margins = [MARGIN if sign > 0 else MARGIN_OF_LOSS * abs(base) for _, _, base, *_ in found]
    return [
        Standing(
            silo, score.value, score.low, score.high, base, gain.value, gain.low, gain.high, p, float(p_holm), count,
            _outcome(gain.value if np.isfinite(gain.value) else base - score.value, gain, float(p_holm), margin),
            peers.get(silo, []),
        )
        for (silo, score, base, gain, p, count), p_holm, margin in zip(found, corrected, margins, strict=True)
    ]  # fmt: skip


def _outcome(lead: float, gain: Estimate, p: float, margin: float) -> str:
    if p < ALPHA:
        return "better" if lead > 0 else "worse"
    within = gain.low < gain.high and -margin <= gain.low and gain.high <= margin
    return "same" if within or (gain.low == gain.high == 0 and p == 1) else "unclear"


def _overall(method: Judged, standings: list[Standing], rng: np.random.Generator) -> dict[str, Any]:
    overall: dict[str, Any] = {
        "test": float(method.test.mean()),
        "validation": None if method.validation is None else float(method.validation.mean()),
        "rounds": {str(seed): round for seed, round in method.rounds.items()},
    }
    if standings:
        silos = np.array([each.gain for each in standings if np.isfinite(each.gain)])
        gain = bootstrap([silos], rng) if len(silos) else _exactly(0.0)
        overall |= {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high, "p": signed_rank(silos)}
        for outcome in ("better", "worse", "same", "unclear"):
            overall[outcome] = sum(each.outcome == outcome for each in standings)
    return overall


def _shown(choice: Mapping[str, Any], federated: list[str]) -> str | None:
    """The method whose silos are told of: the best that federates, or the only one."""
    ranked = [name for name in choice["ranked"] if name in federated]
    return ranked[0] if ranked else federated[0] if len(federated) == 1 else None


def _peers(trace: Mapping[str, Array], rounds: Mapping[int, int]) -> dict[str, list[str]]:
    """Of each silo the fewest others that carry more than half of what it takes from others, at the picked round."""
    if "collaboration" not in trace or "rounds" not in trace:
        return {}
    names = [str(name) for name in trace["silos"]]
    picked = next(iter(rounds.values()))
    weights = np.array(trace["collaboration"][int(np.abs(np.asarray(trace["rounds"]) - picked).argmin())], dtype=float)
    np.fill_diagonal(weights, 0)
    weights = np.nan_to_num(weights).clip(min=0)
    peers = {}
    for name, row in zip(names, weights, strict=True):
        order = np.argsort(-row, kind="stable")
        needed = int(np.searchsorted(np.cumsum(row[order]), row.sum() / 2, side="right")) + 1
        peers[name] = [names[i] for i in order[:needed]] if row.sum() > 0 and needed <= FEW else []
    return peers


def _by_method(predictions: DataFrame, scale: float) -> dict[str, dict[str, dict[int, Array]]]:
    found: dict[str, dict[str, dict[int, Array]]] = {}
    for (method, silo, seed), part in predictions.groupby(["method", "silo", "seed"], sort=False, observed=True):
        by_seed = found.setdefault(str(method), {}).setdefault(str(silo), {})
        by_seed[int(seed)] = part.sort_values("sample")["value"].to_numpy(dtype=float) * scale
    return found


def _written(standing: Standing) -> dict[str, Any]:
    """As JSON can hold it: what is not a number is null."""
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(standing).items()}


def _times(estimate: Estimate, scale: float) -> Estimate:
    return Estimate(estimate.value * scale, estimate.low * scale, estimate.high * scale)


def _exactly(value: float) -> Estimate:
    return Estimate(value, value, value)
