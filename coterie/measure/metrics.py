"""What a study reports of each method, from the long table of its results.

A row of it is one `value` of a method, seed, round, silo, split and measure.

A study without accuracy (regression) is scored by its test rmse, or by its loss where there is none, lower better: the
same keys with other names (`best_rmse`, `last_rmse`, `val_picked_rmse`, `weighted_rmse`, `bottom_decile_rmse`), not
scaled to percent.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame, Series

from coterie.errors import BadInput
from coterie.measure.measures import AUTO, measure_of

KEYS = ["method", "seed", "round", "silo", "split", "measure"]
COSTS = ["bytes_up", "bytes_down", "train_seconds", "missing"]
SCORES = ("accuracy", "rmse", "loss")  # a study is scored by the first of these that it measured
ERRORS = ("rmse", "loss")
SPREAD = ["bmta", "val_picked"]  # the scores whose standard deviation over seeds is reported
ROUNDING = 1e-5  # of scores in single precision


class Rank(NamedTuple):
    """What a round is picked by. A mean over the easy silos alone never wins."""

    tested: int  # silos
    validated: int  # silos
    score: float  # their mean on validation data, higher is better; without such data the number of the round
    minus_loss: float = 0.0  # of their mean validation loss
    silos: Mapping[str, float] = {}  # what the score is the mean of

    def level(self, top: "Rank") -> bool:
        """Whether this is within a standard error of the best, over the silos' paired differences."""
        if self[:2] != top[:2]:
            return False
        off = np.array([top.silos[silo] - score for silo, score in self.silos.items() if silo in top.silos])
        error = off.std(ddof=1) / np.sqrt(len(off)) if len(off) > 1 and np.isfinite(off).all() else 0.0
        # Where one silo alone differs the two are equal, and rounding must not decide.
        return self.score == top.score or bool(top.score - self.score <= error * (1 + ROUNDING))


class Pick(NamedTuple):
    """The round picked so far, and the highest score of all so far, which it is level with.

    Few rows are right as often after many rounds, so that a lead in accuracy is mostly chance. Of rounds that are level
    with the best the lowest validation loss is picked, as the verdict does with methods; each round is seen once, so
    that no more than one has to be kept.
    """

    round: int
    rank: Rank
    best: Rank

    def after(self, round: int, new: Rank) -> "Pick":
        """The pick once another round is measured."""
        best = max(self.best, new, key=lambda rank: rank[:3])  # the earlier of equals
        lower = new.level(best) and (new.minus_loss, new.score) > (self.rank.minus_loss, self.rank.score)
        return Pick(round, new, best) if lower or not self.rank.level(best) else self._replace(best=best)


def summarize(
    results: DataFrame,
    sizes: Mapping[int, Mapping[str, int]],
    extras: Mapping[str, Sequence[Mapping[str, Any]]],
    by: str = AUTO,
) -> dict[str, dict[str, Any]]:
    """The scores of every method, in the order of `results`: means over seeds, and each seed's own under `per_seed`.

    `sizes[seed][silo]` is how many test samples a silo has: another seed splits the data in another way. Silos that
    arrive after training (measures that end in `_unseen`) are reported under `unseen` and in no other score.
    """
    missing = {*KEYS, "value"} - set(results.columns)
    if missing:
        raise BadInput(f"results: missing columns {', '.join(sorted(missing))}")
    if results.duplicated(KEYS).any():
        row = results[results.duplicated(KEYS)].iloc[0]
        raise BadInput(f"results: two values for {', '.join(f'{k} {row[k]}' for k in KEYS)}")
    return {
        str(name): _summarize_method(str(name), runs, sizes, extras.get(str(name), []), by)
        for name, runs in results.groupby("method", sort=False, observed=True)
    }


def by_round(runs: DataFrame, measure: str, split: str) -> DataFrame:
    """Rounds × silos of one method and seed; a round that measured fewer silos than another is left out."""
    # A mean over the easy silos alone would otherwise win.
    grid = _grid(runs, measure, split)
    measured = grid.notna().sum(axis=1)
    return grid[(measured == measured.max()) & (measured > 0)]


def _grid(runs: DataFrame, measure: str, split: str) -> DataFrame:
    """Rounds × silos of one method and seed."""
    part = _measured(runs[runs["split"] == split], measure)
    return part.pivot(index="round", columns="silo", values="value").sort_index()[part["silo"].unique()]


def _measured(part: DataFrame, measure: str) -> DataFrame:
    """The values of one measure."""
    part = part[part["measure"] == measure]
    # A loss that is not a number is a model that diverged: the worst, never a silo to skip.
    return part.assign(value=part["value"].fillna(np.inf)) if lower_better(measure) else part


def main_measure(runs: DataFrame, by: str = AUTO) -> str:
    """What a study is scored by: what it goes `by`, or else accuracy where there is any, or else an error."""
    found = set(runs.loc[(runs["split"] == "test") & runs["value"].notna(), "measure"])
    return next((measure for measure in (by, *SCORES) if measure in found), "loss")


def plain_measure(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """What a summary's own scores are of: accuracy, or the error of regression."""
    return next((e for e in ERRORS if any(f"best_{e}" in scores for scores in methods.values())), "accuracy")


def silo_scores(methods: Mapping[str, Mapping[str, Any]], by: str | None) -> tuple[str, dict[str, dict[str, float]]]:
    """A measure, and by method every silo's test score by it at the picked round, in percent where people count so.

    It is the one asked for, or the plain one where that is unknown of some method.
    """
    plain = plain_measure(methods)
    if by not in (None, plain):
        scale = 100 if measure_of(str(by)).percent else 1
        found = {
            method: {silo: scale * value for silo, value in scores["measures"][by]["silos"].items()}
            for method, scores in methods.items()
            if by in scores.get("measures", {})
        }
        if len(found) == len(methods):
            return str(by), found
    return plain, {method: scores["per_silo_picked"] for method, scores in methods.items()}


def ranks(run: DataFrame, by: str = AUTO) -> dict[int, Rank]:
    """What each round of one method and seed is picked by."""
    measure = main_measure(run, by)
    tested = _judged(run, "test", measure).count(axis=1)
    validated, losses = (_judged(run, "validation", each) for each in (measure, "loss"))
    found = {}
    for round in map(int, sorted(run["round"].unique())):
        silos = validated.loc[round].dropna() if round in validated.index else Series(dtype=float)
        loss = losses.loc[round].mean() if round in losses.index else 0.0
        score = np.round(silos.mean(), 12) if len(silos) else float(round)  # equal means can differ in the last bit
        found[round] = Rank(
            int(tested.get(round, 0)), len(silos), float(score), float(np.round(loss, 12)), silos.to_dict()
        )
    return found


def _judged(run: DataFrame, split: str, measure: str) -> DataFrame:
    """Rounds × silos of a measure, higher better."""
    grid = _grid(run, measure, split)
    return -grid if lower_better(measure) else grid


def pick_of(ranks: Mapping[int, Rank]) -> Pick:
    """The round that is picked of these, as if each were measured in turn."""
    (first, rank), *others = sorted(ranks.items())
    pick = Pick(first, rank, rank)
    for round, new in others:
        pick = pick.after(round, new)
    return pick


def picked(run: DataFrame, measure: str, by: str = AUTO) -> tuple[int, Series, Series | None]:
    """The round of one method and seed that validation data pick: its number, every silo's test and validation score.

    Without validation data it is the last one, and there is no validation score.
    """
    test, validation = (_grid(run, measure, split) for split in ("test", "validation"))
    every = ranks(run, by)
    best = pick_of({round: every[round] for round in _after_training(test).index}).round
    validated = validation.loc[best].dropna() if best in validation.index else Series(dtype=float)
    return int(best), test.loc[best].dropna(), validated if len(validated) else None


def lower_better(measure: str) -> bool:
    """Whether less of a measure is more."""
    return not measure_of(measure).higher


def _summarize_method(
    name: str, runs: DataFrame, sizes: Mapping[int, Mapping[str, int]], extras: Sequence[Mapping[str, Any]], by: str
) -> dict[str, Any]:
    seeds = [int(seed) for seed in runs["seed"].unique()]
    if extras and len(extras) != len(seeds):
        raise BadInput(f"{name}: {len(extras)} records of bytes and seconds for {len(seeds)} seeds")
    measured = set(runs.loc[(runs["split"] == "test") & runs["value"].notna(), "measure"])
    measure = main_measure(runs)
    cloud, unseen = f"{measure}_cloud" in measured, f"{measure}_unseen" in measured
    costs = {extra.get("seed", seed): extra for seed, extra in zip(seeds, extras, strict=False)}

    per_seed, silos, judged, cloud_silos, newcomers = [], [], [], [], []
    for seed in seeds:
        run, tested = runs[runs["seed"] == seed], sizes.get(seed, {})
        scores, at_best = _score(run, measure, tested, f"{name}, seed {seed}")
        silos.append(at_best)
        round, at_picked, validation = picked(run, measure, by)
        at_picked = at_picked * _scale(measure)
        judged.append(at_picked)
        mean = None if validation is None else float(at_picked.mean())
        scores = {_key("val_picked", measure): mean, "picked_round": round, **scores}
        if cloud:
            of_cloud, at_cloud_best = _score(run, f"{measure}_cloud", tested, f"{name} (cloud), seed {seed}")
            for key in (_key("bmta", measure), _key("last", measure)):
                scores[f"{key}_cloud"] = of_cloud[key]
            cloud_silos.append(at_cloud_best)
        if unseen:
            of_newcomers = _test(run, f"{measure}_unseen").tail(1).mean().dropna()
            scores[_key("unseen", measure)] = float(of_newcomers.mean())
            newcomers.append(of_newcomers)
        per_seed.append({"seed": seed, **scores, **{key: costs.get(seed, {}).get(key) for key in COSTS}})

    summary: dict[str, Any] = {key: _mean([seed[key] for seed in per_seed]) for key in per_seed[0] if key != "seed"}
    if len(seeds) > 1:
        for key in (_key(key, measure) for key in SPREAD):
            if summary[key] is not None:
                summary[f"{key}_std"] = float(np.std([seed[key] for seed in per_seed], ddof=1))
    for key in ("picked_round", "best_round"):
        if float(summary[key]).is_integer():
            summary[key] = int(summary[key])
    summary["per_silo"] = _mean_per_silo(silos)
    summary["per_silo_picked"] = _mean_per_silo(judged)
    if cloud:
        summary["per_silo_cloud"] = _mean_per_silo(cloud_silos)
    if unseen:
        summary["per_silo_unseen"] = _mean_per_silo(newcomers)
    summary["per_seed"] = per_seed
    other = [
        {"seed": seed, "silo": silo, "round": round}
        for seed in seeds
        for silo, round in costs.get(seed, {}).get("kept", {}).items()
    ]
    if other:
        summary["kept"] = other
    if any("rejected" in extra for extra in extras):
        summary["rejected"] = [{"seed": seed, **each} for seed in seeds for each in costs[seed].get("rejected", ())]
    return summary


def _score(run: DataFrame, measure: str, sizes: Mapping[str, int], where: str) -> tuple[dict[str, Any], Series]:
    """The scalars of one seed, and every silo's score at the best round."""
    test = _test(run, measure)
    if test.empty:
        raise BadInput(f"{where}: no test {measure} in the results")
    means = test.mean(axis=1)
    rounded = means.round(12)  # equal means can differ in the last bit; of the best rounds the earliest
    best = int(rounded.idxmin() if lower_better(measure) else rounded.idxmax())
    at_best = test.loc[best].dropna()
    unknown = [silo for silo in at_best.index if silo not in sizes]
    if unknown:
        raise BadInput(f"{where}: no test size for silo '{unknown[0]}'")
    weights = np.array([sizes[silo] for silo in at_best.index], dtype=float)
    if weights.sum() <= 0:
        raise BadInput(f"{where}: the test sizes sum to {weights.sum():g}")
    scores = {
        "last": float(means.iloc[-1]),
        "bmta": float(means[best]),
        "best_round": best,
        "weighted": float(np.average(at_best.to_numpy(dtype=float), weights=weights)),
        "bottom_decile": _bottom_decile(at_best.to_numpy(dtype=float), lower_better(measure)),
    }
    return {_key(key, measure): value for key, value in scores.items()}, at_best


def _test(run: DataFrame, measure: str) -> DataFrame:
    """Rounds × silos on test data, accuracies in percent."""
    return _after_training(by_round(run, measure, "test")) * _scale(measure)


def _scale(measure: str) -> int:
    return 1 if lower_better(measure) else 100


def _bottom_decile(scores: "np.ndarray[Any, Any]", lower: bool) -> float:
    """The 10th percentile over silos of how well they do (of a loss, the 90th)."""
    if not np.isfinite(scores).all():  # interpolating between infinities is not a number
        return float(np.quantile(scores, 0.9, method="higher"))
    return float(np.quantile(scores, 0.9 if lower else 0.1))


def _after_training(grid: DataFrame) -> DataFrame:
    """Without round 0, the untrained model, unless there is nothing else."""
    trained = grid[grid.index > 0]
    return grid if trained.empty else trained


def _key(key: str, measure: str) -> str:
    """A score's key in the summary; of an error it ends in its name."""
    error = measure.partition("_")[0]
    if key == "best_round" or not lower_better(measure):
        return key
    return f"best_{error}" if key == "bmta" else f"{key}_{error}"


def _mean(values: list[Any]) -> float | None:
    """A mean over all seeds, or nothing: a mean over some of them compares with no other method's."""
    return None if any(value is None for value in values) else float(np.mean(values))


def _mean_per_silo(seeds: list[Series]) -> dict[str, float]:
    table = DataFrame(seeds)
    return {str(silo): float(value) for silo, value in table.mean().items()}
