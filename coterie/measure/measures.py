"""What a silo's model is worth, from its predictions: a registry of measures that people use.

Predictions of classes are probabilities (n, C), those of numbers are (n,) in the label's own unit. A measure that is
undefined on a silo's rows (AUROC of one class) is NaN there: such a silo is left out of its mean, and named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.errors import BadInput, nearest
from coterie.registry import Registry

Array = np.ndarray[Any, Any]
AUTO = "auto"  # the measure that the labels suggest
LEAST = 1e-15  # probability that a log-loss counts
BINS = 10  # of the calibration error
RARE = 0.2  # share of the smaller of two classes, below which accuracy says little
ENOUGH = 20  # rows of each class from which a threshold is chosen
MOST_CLASSES = 20  # beyond which the measures of one class against the rest are not taken


@dataclass(frozen=True)
class Measure:
    """One measure: `of(labels, predicted)` for the rows of a silo, or of all silos together."""

    title: str  # for people
    doc: str
    kind: Literal["classes", "numbers"]
    of: Callable[[Array, Array], float]
    higher: bool = True  # is better
    percent: bool = False  # shown times 100
    margin: float = 0.02  # a difference that does not matter
    relative: bool = False  # the margin is a share of the value
    row: float | None = 1.0  # the least by which a row that was not tested could count; None: by anything
    two: bool = False  # of two classes alone
    cut: bool = False  # of two classes taken at a threshold, so that only what is above it counts
    by_class: bool = False  # the rows of each class count by themselves, so the smallest decides what is known
    # How far each row moves the measure, (n,) with mean 0, so that its variance is their sum of squares over n².
    influence: Callable[[Array, Array], Array] | None = None

    def fits(self, classes: int) -> bool:
        """Whether it can be taken of labels of so many classes (0: numbers)."""
        return (self.kind == "classes") == bool(classes) and (not self.two or classes == 2)

    def seen(self, p: Array, threshold: float | Array) -> Array:
        """Predictions as it takes them: of two classes it may go by their threshold, put at 0.5."""
        return at_threshold(p, threshold) if self.cut and p.ndim == 2 and p.shape[1] == 2 else p

    def better(self, value: float, other: float) -> float:
        """By how much a value is better than another: positive for better."""
        return value - other if self.higher else other - value

    def shown(self, value: float | None) -> str:
        """A value for people."""
        if value is None or not np.isfinite(value):
            return "∞" if value is not None and np.isinf(value) else "–"
        return f"{100 * value:.1f}%" if self.percent else f"{value:.3f}" if self.row else rounded(value, 4)

    def amount(self, value: float) -> str:
        """A difference of two values for people, without its unit."""
        return f"{100 * value:.1f}" if self.percent else f"{value:.3f}" if self.row else rounded(value, 3)

    @property
    def unit(self) -> str:
        """What differences are counted in."""
        return " points" if self.percent else ""


def rounded(value: float, digits: int) -> str:
    """A number of so many digits, written out where it is large: 11,900 and not 1.19e+04."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if 1e3 <= abs(float(text)) < 1e15 else text


def accuracy(y: Array, p: Array) -> float:
    """The share of rows whose most probable class is the label."""
    return _mean(_hits(y, p))


def balanced_accuracy(y: Array, p: Array) -> float:
    """The mean over the classes present of the share of their rows that are right."""
    hits = _hits(y, p)
    return float(np.mean([hits[y == c].mean() for c in np.unique(y)])) if len(y) else np.nan


def auroc(y: Array, p: Array) -> float:
    """The chance that a row of a class has a higher score than another: the mean over the classes present."""
    found = [_auc(y == c, p[:, c]) for c in _against_rest(y, p)]
    return float(np.mean(found)) if found else np.nan


def auprc(y: Array, p: Array) -> float:
    """The mean precision over the recalls, of the second of two classes or the mean over those present."""
    classes = [1] if p.shape[1] == 2 else _against_rest(y, p)
    found = [_average_precision(y == c, p[:, c]) for c in classes if (y == c).any()]
    return float(np.mean(found)) if found and len(np.unique(y)) > 1 else np.nan


def f1(y: Array, p: Array) -> float:
    """The harmonic mean of precision and recall, of the second of two classes or the mean over those present."""
    two = p.shape[1] == 2
    guess, classes = (p[:, 1] >= 0.5, [1]) if two else (p.argmax(1), np.unique(y))
    both = [((guess == c) & (y == c)).sum() for c in classes]
    all_of = [((guess == c).sum() + (y == c).sum()) for c in classes]
    found = [2 * hit / total for hit, total in zip(both, all_of, strict=True) if total]
    return float(np.mean(found)) if found else np.nan


def sensitivity(y: Array, p: Array) -> float:
    """The share of the second class's rows that are found, where its probability is 0.5 or more."""
    return _mean((p[:, 1] >= 0.5)[y == 1])


def specificity(y: Array, p: Array) -> float:
    """The share of the first class's rows that are left alone, where the second's probability is below 0.5."""
    return _mean((p[:, 1] < 0.5)[y == 0])


def brier(y: Array, p: Array) -> float:
    """The mean squared error of the probabilities: of the second of two classes, or summed over all."""
    return _mean(_squares(y, p))


def log_loss(y: Array, p: Array) -> float:
    """Minus the mean log of the label's probability."""
    return _mean(_logs(y, p))


def calibration_error(y: Array, p: Array) -> float:
    """The mean gap between confidence and accuracy over ten bins of confidence."""
    if not len(y):
        return np.nan
    found = reliability(p.max(1), _hits(y, p))
    return float(sum(n * abs(confidence - share) for confidence, share, n in found) / len(y))


def reliability(confidence: Array, hits: Array) -> list[tuple[float, float, int]]:
    """Of every bin of confidence that has rows: their mean confidence, the share that is right, and how many."""
    bins = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
    return [
        (float(confidence[mine].mean()), float(hits[mine].mean()), int(mine.sum()))
        for b in range(BINS)
        if (mine := bins == b).any()
    ]


def rmse(y: Array, p: Array) -> float:
    """The root of the mean squared error."""
    return float(np.sqrt(_mean((p - y) ** 2)))


def mae(y: Array, p: Array) -> float:
    """The mean absolute error."""
    return _mean(np.abs(p - y))


def median_error(y: Array, p: Array) -> float:
    """The median absolute error."""
    return float(np.median(np.abs(p - y))) if len(y) else np.nan


def r2(y: Array, p: Array) -> float:
    """The share of the labels' variance that is explained."""
    spread = ((y - y.mean()) ** 2).sum() if len(y) else 0.0
    return float(1 - ((p - y) ** 2).sum() / spread) if spread else np.nan


def spearman(y: Array, p: Array) -> float:
    """The correlation of the ranks."""
    if len(y) < 2 or np.ptp(y) == 0 or np.ptp(p) == 0:
        return np.nan
    return float(np.corrcoef(_ranks(y), _ranks(p))[0, 1])


# How far each row moves a measure. Of a mean it is the row's own part less the mean.


def _of_mean(part: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def influence(y: Array, p: Array) -> Array:
        found = part(y, p)
        return np.asarray(found - found.mean())

    return influence


def _of_balanced(y: Array, p: Array) -> Array:
    hits, moved, classes = _hits(y, p), np.zeros(len(y)), np.unique(y)
    for c in classes:
        mine = y == c
        moved[mine] = (hits[mine] - hits[mine].mean()) * len(y) / (mine.sum() * len(classes))
    return moved


def _of_auroc(y: Array, p: Array) -> Array:
    """DeLong's components: of a row, how often those of the other side score lower (or higher)."""
    classes, moved = _against_rest(y, p), np.zeros(len(y))
    for c in classes:
        mine, score = y == c, p[:, c]
        ranks = _ranks(score)
        above = (ranks[mine] - _ranks(score[mine])) / (~mine).sum()  # (positives,)
        below = 1 - (ranks[~mine] - _ranks(score[~mine])) / mine.sum()  # (negatives,)
        moved[mine] += (above - above.mean()) * len(y) / mine.sum()
        moved[~mine] += (below - below.mean()) * len(y) / (~mine).sum()
    return moved / max(len(classes), 1)


def _of_rmse(y: Array, p: Array) -> Array:
    """By leaving out each row, which few rows with some large errors are not too sure of."""
    squares, others = (p - y) ** 2, max(len(y) - 1, 1)
    left = np.sqrt(np.maximum(squares.sum() - squares, 0) / others)
    return np.asarray(others * (left.mean() - left))


def _hits(y: Array, p: Array) -> Array:
    return np.asarray(p.argmax(1) == y, dtype=float)


def _squares(y: Array, p: Array) -> Array:
    if p.shape[1] == 2:
        return np.asarray((p[:, 1] - y) ** 2)
    return np.asarray(((p - np.eye(p.shape[1])[y]) ** 2).sum(1))


def _logs(y: Array, p: Array) -> Array:
    return np.asarray(-np.log(np.clip(p[np.arange(len(y)), y].astype(float), LEAST, None)))


def _mean(values: Array) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def _against_rest(y: Array, p: Array) -> Sequence[int]:
    """The classes that some rows have and others lack; of two the second alone, since the first is its mirror."""
    present = np.unique(y)
    if len(present) < 2:
        return []
    return [1] if p.shape[1] == 2 else [int(c) for c in present]


def _auc(positive: Array, score: Array) -> float:
    ranks, count = _ranks(score), int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(score) - count)))


def _ranks(values: Array) -> Array:
    """From 1, equal values sharing theirs; SciPy's takes a second to import, at every message of a silo."""
    order = np.sort(values)
    return (np.searchsorted(order, values) + np.searchsorted(order, values, side="right") + 1) / 2


def _average_precision(positive: Array, score: Array) -> float:
    order = np.argsort(-score, kind="stable")
    hits, last = np.cumsum(positive[order]), np.append(np.diff(score[order]) != 0, True)  # equal scores: one threshold
    recall, precision = hits[last] / hits[-1], hits[last] / (np.flatnonzero(last) + 1)
    return float((np.diff(recall, prepend=0.0) * precision).sum())


PACKAGED = {
    "accuracy": Measure(
        "accuracy", "share of rows whose most probable class is right", "classes", accuracy, percent=True,
        influence=_of_mean(_hits),
    ),
    "balanced_accuracy": Measure(
        "balanced accuracy", "the same, a mean over classes", "classes", balanced_accuracy, by_class=True, percent=True,
        influence=_of_balanced,
    ),
    "auroc": Measure(
        "AUROC", "area under the ROC curve, one class against the rest, mean over those present", "classes", auroc,
        row=0.1, by_class=True, influence=_of_auroc,
    ),
    "auprc": Measure("AUPRC", "average precision", "classes", auprc, by_class=True),
    "f1": Measure("F1", "harmonic mean of precision and recall", "classes", f1, by_class=True, cut=True),
    "sensitivity": Measure(
        "sensitivity", "share of the positive rows found at the threshold", "classes", sensitivity, percent=True,
        two=True, by_class=True, cut=True,
    ),
    "specificity": Measure(
        "specificity", "share of the negative rows left alone at the threshold", "classes", specificity, percent=True,
        two=True, by_class=True, cut=True,
    ),
    "brier": Measure(
        "Brier score", "mean squared error of the probabilities", "classes", brier, higher=False, margin=0.01,
        row=0.1, influence=_of_mean(_squares),
    ),
    "log_loss": Measure(
        "log-loss", "minus the mean log of the label's probability", "classes", log_loss, higher=False, margin=0.05,
        relative=True, row=None, influence=_of_mean(_logs),
    ),
    "calibration_error": Measure(
        "calibration error", "mean gap between confidence and accuracy", "classes", calibration_error, higher=False,
    ),
    "rmse": Measure(
        "rmse", "root of the mean squared error", "numbers", rmse, higher=False, margin=0.05, relative=True,
        row=None, influence=_of_rmse,
    ),
    "mae": Measure(
        "mae", "mean absolute error", "numbers", mae, higher=False, margin=0.05, relative=True, row=None,
        influence=_of_mean(lambda y, p: np.abs(p - y)),
    ),
    "median_error": Measure(
        "median error", "median absolute error", "numbers", median_error, higher=False, margin=0.05, relative=True,
        row=None,
    ),
    "r2": Measure("r2", "share of the labels' variance explained", "numbers", r2, margin=0.05, row=None),
    "spearman": Measure("Spearman", "correlation of the ranks", "numbers", spearman, margin=0.05),
}  # fmt: skip

MEASURES: Registry[Measure] = Registry(
    "measure", "coterie.measures", PACKAGED, lambda thing: isinstance(thing, Measure), "a coterie.Measure"
)


def measure_of(name: str) -> Measure:
    """A measure by its name in results, where it may end in _cloud or _unseen; the mean loss is lower better."""
    plain = name.removesuffix("_unseen").removesuffix("_cloud")
    if plain == "loss":
        return PACKAGED["log_loss"]
    if plain not in MEASURES:
        raise BadInput(f"[measure] by = '{name}': no such measure; {nearest(name, MEASURES)}")
    return MEASURES[plain]


def shown_score(name: str, value: float | None) -> str:
    """A score for people, by the name of its measure in results; nothing where there is none yet."""
    return "" if value is None else f"{measure_of(name).title} {measure_of(name).shown(value)}"


def fitting(classes: int) -> dict[str, Measure]:
    """The packaged measures of labels of so many classes (0: numbers)."""
    return {name: found for name, found in PACKAGED.items() if found.fits(classes)}


def usual(counts: Mapping[int, int] | Sequence[float] | None) -> str:
    """What people judge by where nothing else was asked for, from the rows of each class (None: numbers)."""
    if counts is None:
        return "rmse"
    sizes = list(counts.values()) if isinstance(counts, Mapping) else list(counts)
    rare = len(sizes) == 2 and sum(sizes) > 0 and min(sizes) / sum(sizes) < RARE
    return "auroc" if rare else "accuracy"


def oriented(y: Array, p: Array, positive: int | str) -> tuple[Array, Array]:
    """Labels and probabilities with the positive of two classes as the second."""
    return (1 - y, p[:, ::-1]) if positive == 0 and p.shape[1] == 2 else (y, p)


def taken(y: Array, p: Array, classes: int, threshold: float | Array = 0.5, by: str = "") -> dict[str, float]:
    """Every measure of a silo's rows, also that of a package which a study goes `by`; NaN where one is undefined.

    `threshold` is that of the second of two classes.
    """
    found = fitting(classes) | ({} if by in ("", AUTO) else {by: measure_of(by)})
    if classes > MOST_CLASSES:
        found = {name: each for name, each in found.items() if name not in ("auroc", "auprc")}
    return {name: each.of(y, each.seen(p, threshold)) if len(y) else np.nan for name, each in found.items()}


def at_threshold(p: Array, threshold: float | Array) -> Array:
    """The probabilities of two classes moved so that what was at the threshold is at 0.5."""
    first, second = p[:, 0] * threshold, p[:, 1] * (1 - threshold)
    return np.stack([first, second], 1) / np.maximum(first + second, LEAST)[:, None]


def best_threshold(y: Array, p: Array) -> float:
    """Where sensitivity plus specificity is largest (Youden); without rows enough of both classes their share.

    On so few rows the threshold that looks best is chance; the share of the positive rows is close to it.
    """
    positive = int((y == 1).sum())
    if min(positive, len(y) - positive) < ENOUGH:
        return float(np.clip((positive + 0.5) / (len(y) + 1), LEAST, 1 - LEAST))
    order = np.argsort(-p[:, 1], kind="stable")
    score, hit = p[order, 1].astype(float), y[order] == 1
    ends = np.flatnonzero(np.append(np.diff(score) != 0, True))  # equal scores are on one side
    gain = np.cumsum(hit)[ends] / positive - np.cumsum(~hit)[ends] / (len(y) - positive)
    best = int(ends[gain.argmax()])
    below = score[best + 1] if best + 1 < len(score) else 0.0
    return float(np.clip((score[best] + below) / 2, LEAST, 1 - LEAST))
