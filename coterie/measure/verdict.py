"""Is each silo better off in the federation than alone, and which method shall the consortium take?

Every method is judged at the round that validation data pick, and the method itself is chosen by validation data too;
test data only report. A silo's gain is over training alone, on the same test rows (`measure/paired.py`); of silos that
keep their rows to themselves it is the difference of two scores with their standard errors, which finds less.

The stated rules. A silo is *better* (or *worse*) where its gain differs from zero, with the share of wrong ones among
such silos held at 5% (Benjamini and Hochberg over the silos); *equivalent* where both one-sided tests at 5% place the
gain within the measure's margin; *undecided* otherwise. Over silos, gains are those of a normal hierarchical model
(Paule and Mandel's variance between silos): its shrunken gains are what a silo with few rows should expect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from pandas import DataFrame

from coterie.measure.choice import AS_GOOD, NOTHING, Judged, Scores, choose, log_loss_of
from coterie.measure.distributions import normal_quantile
from coterie.measure.measures import Array, Measure, measure_of
from coterie.measure.metrics import main_measure, picked
from coterie.measure.paired import LEVEL, Estimate, interval
from coterie.measure.pooling import between, from_errors, mean_of, of_silos, over, shrunken
from coterie.measure.predictions import Predictions
from coterie.measure.significance import ALPHA, benjamini_hochberg

GUESSES = ("majority", "median")  # baselines that have learned nothing
FEW = 3  # more peers than this are no answer to "from whom"
POWER = 0.8  # with which more test rows would decide


@dataclass(frozen=True)
class Standing:
    """One silo in the federation, beside itself alone. Gains are positive for better, whatever the measure."""

    silo: str
    score: float
    score_low: float
    score_high: float
    alone: float
    gain: float
    low: float
    high: float
    p: float
    p_adjusted: float
    n: int  # test rows
    outcome: str  # better, worse, equivalent, undecided; where a model diverged, gains are not numbers
    margin: float  # within which it would be equivalent
    needs: int | None  # about so many more test rows, where it is undecided
    shrunk: float | None  # the gain, with what the other silos show
    shrunk_low: float | None
    shrunk_high: float | None
    peers: list[str]  # who carry more than half of what it takes from others; empty: nobody or too many


def judge(
    results: DataFrame,
    predictions: Predictions,
    traces: Mapping[str, Mapping[str, Array]],
    alone: str | None,
    sizes: Mapping[int, Mapping[str, int]],
    by: str,
    costs: Mapping[str, float],
    baselines: Sequence[str] = (),
    flattered: Sequence[str] = (),
    mixtures: Sequence[str] = (),
) -> dict[str, Any]:
    """The verdict; `alone` is the label of the method without federation, where the study has one.

    `costs` are the bytes that a method sends: of methods that are as good the cheapest is taken. `baselines` are among
    the predictions, each silo on its own with what people use today. `flattered` methods learn from validation rows,
    `mixtures` are of the others.
    """
    name = main_measure(results, by)
    measure = measure_of(name)
    scores = Scores(predictions, measure)
    methods = {
        str(label): _judged(str(label), runs, name, by, scores)
        for label, runs in results.groupby("method", sort=False, observed=True)
    }
    choice = choose(methods, scores, costs, predictions, flattered, mixtures)
    guess = _today([name for name in baselines if name in GUESSES], scores)
    if guess and choice["chosen"] and not _learned(choice, methods, guess, scores, predictions):
        choice = NOTHING | {"guess": guess[0]}
    standings = {}
    if alone in methods:
        for label, method in methods.items():
            if label != alone:
                peers = _peers(traces.get(label, {}), method.rounds)
                standings[label] = _standings(label, str(alone), methods, scores, sizes, peers)
    shown = _shown(choice, list(standings))
    today = _today(baselines, scores)
    beside = {} if today is None or shown is None else _beside(shown, today[0], methods[shown], scores)
    plain = _ahead_of_all([name for name in baselines if name not in GUESSES], list(methods), scores)
    return {
        "measure": name,
        "title": measure.title,
        "margin": measure.margin * (100 if measure.percent else 1),
        "relative": measure.relative,
        "higher_better": measure.higher,
        "alone": alone if alone in methods else None,
        "paired": bool(predictions),
        "flattered": [label for label in flattered if label in methods],
        "mixtures": [label for label in mixtures if label in methods],
        **choice,
        "methods": {
            label: _written(_overall(each, standings.get(label, [])), measure) for label, each in methods.items()
        },
        "judged": shown,
        "undefined": _undefined(results, name, methods),
        "silos": [
            _written(asdict(each), measure) | ({"baseline": beside[each.silo]} if each.silo in beside else {})
            for each in (standings[shown] if shown is not None else ())
        ],
        "plain_ahead": plain,
        **({} if today is None else {"baseline": _compared(today, choice["chosen"], methods, scores)}),
    }


def _undefined(results: DataFrame, measure: str, methods: Mapping[str, Judged]) -> list[str]:
    """Silos whose test rows leave the measure undefined: of AUROC, those of one class."""
    rows = results[(results["split"] == "test") & results["measure"].isin([measure, "loss"])]  # each has a loss
    known = {silo for method in methods.values() for silo in method.test}
    return [str(silo) for silo in rows["silo"].unique() if str(silo) not in known]


def _today(baselines: Sequence[str], scores: Scores) -> tuple[str, float] | None:
    """The baseline that validation rows prefer, and its mean over silos there."""
    found = {}
    for name in baselines:
        values = [each.value for key, each in scores.items() if (key.method, key.split) == (name, "validation")]
        values = [value for value in values if np.isfinite(value)]
        if values:
            found[name] = float(np.mean(values))
    if not found:
        return None
    best = max(found, key=lambda name: found[name] if scores.measure.higher else -found[name])
    return best, found[best]


def _learned(
    choice: Mapping[str, Any],
    methods: Mapping[str, Judged],
    guess: tuple[str, float],
    scores: Scores,
    predictions: Predictions,
) -> bool:
    """Whether validation rows show the method taken to be ahead of a guess: of many that learned nothing one may be.

    Its lead is more than chance, or it has a lower log-loss too, which says more of few rows.
    """
    name, value = guess
    chosen, measure = choice["chosen"], scores.measure
    if measure.better(float(np.mean(list(methods[chosen].validation.values()))), value) <= 0:
        return False
    own, guessed = log_loss_of(chosen, predictions), log_loss_of(name, predictions)
    leads = scores.gains(methods[chosen].validation, "validation", chosen, name)
    return own is None or guessed is None or own < guessed or not leads or over(leads).low > 0


def _beside(label: str, today: str, method: Judged, scores: Scores) -> dict[str, dict[str, Any]]:
    """Each silo's gain over today's baseline."""
    measure, gains = scores.measure, {silo: scores.gain(silo, "test", label, today) for silo in method.test}
    known = {silo: gain for silo, gain in gains.items() if gain is not None}
    adjusted = benjamini_hochberg(np.array([gain.p for gain in known.values()]))
    found = {}
    for (silo, gain), p in zip(known.items(), adjusted, strict=True):
        score = float(np.mean([each.value for each in scores.of_seeds(today, silo, "test").values()]))
        margin = measure.margin * (abs(score) if measure.relative else 1)
        about = {"score": score, "gain": gain.value, "low": gain.low, "high": gain.high}
        outcome = _outcome(score, score, gain, float(p), margin)
        found[silo] = {"name": today, "outcome": outcome, **_written(about, measure)}
    return found


def _ahead_of_all(baselines: Sequence[str], methods: Sequence[str], scores: Scores) -> dict[str, str]:
    """By silo the plain model of its own that is ahead of every method there, beyond chance over all such pairs.

    A plain model's p is the largest against any method: it has to be ahead of them all.
    """
    silos = list(dict.fromkeys(key.silo for key in scores if key.method in baselines))
    found = dict[tuple[str, str], float]()
    for silo, name in product(silos, baselines):
        gains = [gain for each in methods for gain in scores.gains([silo], "test", name, each)]
        if gains:
            found[silo, name] = max(gain.p if gain.low + gain.high > 0 else 1.0 for gain in gains)
    adjusted = dict(zip(found, benjamini_hochberg(np.array([*found.values()], dtype=float)), strict=True))
    surest = {silo: min(baselines, key=lambda name: adjusted.get((silo, name), 1.0)) for silo in silos}
    return {silo: name for silo, name in surest.items() if adjusted.get((silo, name), 1.0) < ALPHA}


def _compared(
    today: tuple[str, float], chosen: str | None, methods: Mapping[str, Judged], scores: Scores
) -> dict[str, Any]:
    """Today's baseline beside the method taken: on validation rows, by which one is preferred, and on test rows."""
    (name, validation), measure = today, scores.measure
    test = [each.value for key, each in scores.items() if (key.method, key.split) == (name, "test")]
    found: dict[str, Any] = {"validation": validation, "test": float(np.nanmean(test)) if test else np.nan}
    beats = False
    if chosen is not None:
        method = methods[chosen]
        if gains := scores.gains(method.test, "test", chosen, name):
            gain = over(gains)
            found |= {"gain": gain.value, "low": gain.low, "high": gain.high}
        own = float(np.mean(list(method.validation.values())))
        margin = measure.margin * (abs(own) if measure.relative else 1)
        # whether its lead on the same validation rows is more than chance, as far as that shows
        leads = scores.gains(method.validation, "validation", name, chosen)
        beats = measure.better(validation, own) > AS_GOOD * margin and (not leads or over(leads).low > 0)
    return {"name": name, "beats": bool(beats), **_written(found, measure)}


def _judged(label: str, runs: DataFrame, measure: str, by: str, scores: Scores) -> Judged:
    """A method at its picked round; where its rows are at hand, by what it gives for them as deployed: tempered."""

    def by_rows(values: Any, split: str) -> dict[str, float]:
        found = {}
        for silo, value in values.items():
            given = [each.value for each in scores.of_seeds(label, str(silo), split).values()]
            found[str(silo)] = float(np.mean(given or value))
        return found

    found = {int(seed): (run, *picked(run, measure, by)) for seed, run in runs.groupby("seed", sort=False)}
    tests = DataFrame([test for _, _, test, _ in found.values()])
    validations = [value for *_, value in found.values() if value is not None]
    means = DataFrame(validations).mean() if len(validations) == len(found) else None
    errors = dict[str, float]()
    for run, round, *_ in found.values():
        part = run[(run["round"] == round) & (run["measure"] == f"{measure}_error") & (run["split"] == "test")]
        errors |= dict(zip(part["silo"], part["value"], strict=True))
    return Judged(
        by_rows(tests.mean(), "test"),
        {} if means is None else by_rows(means, "validation"),
        errors,
        {seed: round for seed, (_, round, _, _) in found.items()},
    )


def _standings(
    label: str,
    alone: str,
    methods: Mapping[str, Judged],
    scores: Scores,
    sizes: Mapping[int, Mapping[str, int]],
    peers: Mapping[str, list[str]],
) -> list[Standing]:
    """Every silo that both have."""
    method, base, measure = methods[label], methods[alone], scores.measure
    found = []
    for silo in method.test:
        if silo not in base.test:
            continue
        score, before = method.test[silo], base.test[silo]
        gain = scores.gain(silo, "test", label, alone)
        mine = scores.of_seeds(label, silo, "test")
        own = interval(measure, list(mine.values())) if mine else None
        if gain is None:
            errors = [each.errors.get(silo, np.inf) for each in (method, base)]
            gain = from_errors(measure.better(score, before), float(np.hypot(errors[0], errors[1])))
            own = from_errors(score, errors[0])
        if not np.isfinite([score, before]).all():
            gain = Estimate(np.nan, np.nan, np.nan, np.inf)
        count = min((by_silo[silo] for by_silo in sizes.values() if silo in by_silo), default=0)
        margin = measure.margin * (abs(before) if measure.relative else 1)
        found.append((silo, score, own or from_errors(score, np.inf), before, gain, count, margin))
    adjusted = benjamini_hochberg(np.array([gain.p for *_, gain, _, _ in found]))
    shrunk = shrunken([gain for *_, gain, _, _ in found])
    return [
        Standing(
            silo, score, own.low, own.high, before, gain.value, gain.low, gain.high, gain.p, float(p), count,
            _outcome(score, before, gain, float(p), margin), margin, _needs(gain, count, margin),
            each.value, each.low, each.high, peers.get(silo, []),
        )
        for (silo, score, own, before, gain, count, margin), p, each in zip(found, adjusted, shrunk, strict=True)
    ]  # fmt: skip


def _outcome(score: float, before: float, gain: Estimate, p: float, margin: float) -> str:
    if np.isnan(gain.value):  # a model that diverged is the worse one, whatever the rows
        if np.isfinite(score) == np.isfinite(before):
            return "undecided"
        return "better" if np.isfinite(score) else "worse"
    if p < ALPHA:
        return "better" if gain.low + gain.high > 0 else "worse"
    return "equivalent" if gain.within(margin, ALPHA) else "undecided"


def _needs(gain: Estimate, count: int, margin: float) -> int | None:
    """About how many more test rows would tell the gain from zero, or place it within the margin."""
    if not np.isfinite(gain.error) or gain.error == 0 or count == 0 or gain.low > 0 or gain.high < 0:
        return None
    effect = max(abs(gain.value), margin - abs(gain.value))
    wanted = effect / (normal_quantile((1 + LEVEL) / 2) + normal_quantile(POWER))
    more = count * ((gain.error / wanted) ** 2 - 1)
    return int(np.ceil(more)) if 0 < more < 1e7 else None


def _overall(method: Judged, standings: Sequence[Standing]) -> dict[str, Any]:
    scores, validation = list(method.test.values()), list(method.validation.values())
    overall: dict[str, Any] = {
        "test": float(np.mean(scores)) if scores else None,
        "validation": float(np.mean(validation)) if validation else None,
        "rounds": {str(seed): round for seed, round in method.rounds.items()},
    }
    if not standings:
        return overall
    reach = normal_quantile((1 + LEVEL) / 2)
    gains = [
        Estimate(s.gain, s.low, s.high, (s.high - s.low) / 2 / reach) for s in standings if np.isfinite(s.high - s.low)
    ]
    values = np.array([s.gain for s in standings if np.isfinite(s.gain)])
    if len(values) == 0:
        gain = from_errors(0.0, np.inf)
    else:
        rows = [s.n for s in standings if np.isfinite(s.high - s.low)]
        gain = mean_of(gains, rows) if len(gains) == len(values) else of_silos(values)
    overall |= {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high, "p": gain.p}
    if len(gains) > 1:
        centres, errors = np.array([(g.low + g.high) / 2 for g in gains]), np.array([g.error for g in gains])
        overall["between"] = float(np.sqrt(between(centres, errors)))  # the silos' true gains differ by about this
    for outcome in ("better", "worse", "equivalent", "undecided"):
        overall[outcome] = sum(each.outcome == outcome for each in standings)
    return overall


def _shown(choice: Mapping[str, Any], federated: list[str]) -> str | None:
    """The method whose silos are shown: the one taken, or preferred, or the best that federates, or the only one."""
    for each in (choice["chosen"], choice["preferred"]):
        if each in federated:
            return str(each)
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


def _written(found: Mapping[str, Any], measure: Measure) -> dict[str, Any]:
    """As JSON can hold it: shares in percent where people count so, and what is not a number is null.

    An interval ends where the measure does: by Student's of two rows a share might gain 300 points.
    """
    made, most = {}, np.inf if measure.row is None else 2.0 if measure.kind == "numbers" else 1.0
    for key, value in found.items():
        if isinstance(value, float):
            value = (
                float(np.clip(value, -most, most)) if key.endswith(("low", "high")) and np.isfinite(value) else value
            )
            value = value * 100 if measure.percent and key not in ("p", "p_adjusted") else value
            value = value if np.isfinite(value) else None
        made[key] = value
    return made
