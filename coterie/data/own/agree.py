"""From what every silo declares to one schema for all, and where they differ, column by column."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from coterie.data.own.label import Task, ordered
from coterie.data.own.remarks import Difference as Difference
from coterie.data.own.remarks import listed, remarks
from coterie.data.own.schema import Column, Schema
from coterie.data.own.statistics import LEVELS, Description, Statistics, description_of
from coterie.errors import BadInput

T = TypeVar("T", bound=Hashable)
FAR = 1e6  # deviations from the others, beyond which numbers are not of one kind
Moments = np.ndarray  # (3, ...) count, mean and sum of squares around it


class SchemaDiffers(BadInput):
    """Silos whose tables cannot be brought to one form."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        self.differences = list(differences)
        stops = "; ".join(f"{d.column!r} of {d.silo}: {d.what}" for d in self.differences if d.stops)
        super().__init__(f"silos differ: {stops}. Bring the files to one form, or leave columns out with --drop")


def agree(declared: Mapping[str, Statistics], label: str, task: Task) -> tuple[Schema, list[Difference]]:
    """The schema that all silos encode by, made of nothing but their statistics."""
    described = {silo: description_of(statistics) for silo, statistics in declared.items()}
    every = {silo: torch.cat([s.count, s.mean, s.scatter]).numpy() for silo, s in declared.items()}  # (3, columns)
    differences = _unusual("samples", {silo: own.shape for silo, own in described.items()}, _shaped) + _kinds(described)
    differences += _unusual(label or "label", {silo: own.label for silo, own in described.items()}, _say)
    differences += unsound(declared, label)
    targets = {silo: s.target[0].numpy() for silo, s in declared.items()}
    differences += remarks(described, every, label, targets)
    if any(difference.stops for difference in differences):
        raise SchemaDiffers(differences)
    classes, more = _classes(described, label, task)
    columns, rest = _columns(every, described)
    shape = (sum(column.width for column in columns),) if columns else next(iter(described.values())).shape
    if not columns and not shape:
        raise BadInput("no column is left to learn from; give tables with more than the label")
    centre, unit = (0.0, 1.0) if classes else _pooled([*targets.values()])
    if not classes and unit == 0:
        raise BadInput(f"label {label!r}: every silo has the same number, so there is nothing to learn; check it")
    return Schema(label, classes, centre, unit, columns, shape), differences + more + rest


def unsound(
    declared: Mapping[str, Statistics], label: str, rows: Mapping[str, tuple[int, int, int]] | None = None
) -> list[Difference]:
    """Statistics that no rows can have, or that lie absurdly far from the others'; `rows`: to train, validate, test."""
    found, columns = list[Difference](), dict[str, dict[str, Moments]]()
    for silo, statistics in declared.items():
        own = description_of(statistics)
        names = own.numbers
        if rows is not None:
            kinds = {name: (len(levels), rows[silo][0], "levels") for name, levels in (own.categories or {}).items()}
            kinds[label or "label"] = (len(own.classes or ()), sum(rows[silo]), "classes")
            wrong = {name: f"{n} {what}" for name, (n, most, what) in kinds.items() if n > most}
            found += [Difference(name, silo, f"{what} are of no rows it has", True) for name, what in wrong.items()]
        three = torch.cat([statistics.count, statistics.mean, statistics.scatter]).numpy()  # (3, columns)
        if three.shape[1] not in (0, len(names)):
            found.append(Difference("columns", silo, f"{three.shape[1]} statistics of {len(names)} columns", True))
            continue
        named = [*zip(names, three.T, strict=False), (label or "label", statistics.target[0].numpy())]
        count, _, scatter = every = np.array([each for _, each in named]).T  # (columns,) each
        most = np.inf if rows is None else rows[silo][0]
        sound = np.isfinite(every).all(0) & (count >= 0) & (count <= most) & (scatter >= 0)
        for (name, each), fine in zip(named, sound.tolist(), strict=True):
            if not fine:
                what = f"its count of {each[0]:g}, mean of {each[1]:g} and squares of {each[2]:g} are of no rows it has"
                found.append(Difference(name, silo, what, True))
            elif each[0]:
                columns.setdefault(name, {})[silo] = each
    for name, parts in columns.items():
        centre, scale = _pooled(list(parts.values()))
        for silo, (count, mean, scatter) in parts.items():
            spread = np.sqrt(scatter / count)
            if scale and max(abs(mean - centre), spread) > FAR * scale:
                what = (
                    f"mean {mean:.4g} and deviation {spread:.4g}, elsewhere {centre:.4g} and {scale:.4g}: another unit?"
                )
                found.append(Difference(name, silo, what, True))
    return found


def far_values(declared: Mapping[str, Statistics], label: str) -> list[Difference]:
    """In which columns silos pulled in values, and how many: which ones stays with them."""
    found = list[Difference]()
    for silo, statistics in declared.items():
        own = description_of(statistics)
        counts = {**(own.far or {}), **({label: own.far_labels} if own.far_labels else {})}
        found += [Difference(name, silo, f"far from the others, so taken as nearer: {n}") for name, n in counts.items()]
    return found


def _kinds(described: Mapping[str, Description]) -> list[Difference]:
    """Columns that a silo lacks, or that are of another kind there; an empty one is of any kind."""
    kinds = {silo: kinds_of(own) for silo, own in described.items()}
    found = list[Difference]()
    for name in dict.fromkeys(name for mine in kinds.values() for name in mine):
        having = [silo for silo, mine in kinds.items() if name in mine]
        if 2 * len(having) < len(kinds):
            found += [Difference(name, silo, f"not in {len(kinds) - len(having)} other silos", True) for silo in having]
            continue
        usual = _majority([mine[name] for mine in kinds.values() if mine.get(name, "empty") != "empty"] or ["empty"])
        for silo, mine in kinds.items():
            if name not in mine:
                found.append(Difference(name, silo, "missing", True))
            elif mine[name] not in (usual, "empty"):
                found.append(Difference(name, silo, f"{_say(mine[name])}, elsewhere {_say(usual)}", True))
            elif mine[name] == "empty":
                found.append(Difference(name, silo, "no value in any row"))
    return found


def _classes(described: Mapping[str, Description], label: str, task: Task) -> tuple[tuple[str, ...], list[Difference]]:
    """The classes of all silos (none: regression) and who lacks which."""
    if any(own.classes is None for own in described.values()):
        if any(own.label == "category" for own in described.values()):
            raise BadInput(f"label {label!r}: is text, which regression cannot tell; take --task classification")
        return (), []
    names = ordered({name for own in described.values() for name in own.classes or ()})
    if len(names) < 2:
        raise BadInput(f"label {label!r}: every row of every silo is {names[0]!r}, so there is nothing to learn")
    if task == "auto" and described and next(iter(described.values())).label == "number" and len(names) > 20:
        return (), []  # few in each silo, many in all: a quantity after all
    lacking = {silo: [n for n in names if n not in (own.classes or ())] for silo, own in described.items()}
    return tuple(names), [
        Difference(label or "label", silo, f"lacks {_named('class', absent)}")
        for silo, absent in lacking.items()
        if absent
    ]


def _columns(
    every: Mapping[str, Moments], described: Mapping[str, Description]
) -> tuple[tuple[Column, ...], list[Difference]]:
    columns, found = list[Column](), list[Difference]()
    places = {silo: {name: i for i, name in enumerate(own.numbers)} for silo, own in described.items()}
    for name in kinds_of(next(iter(described.values()))):
        moments = [
            every[silo][:, place]
            for silo, mine in places.items()
            if (place := mine.get(name)) is not None and every[silo].shape[1]
        ]
        column, differences = _column(name, moments, described)
        found += differences
        if column is None:
            what = "too few values" if _told_of_none(moments) else "always the same or empty"
            found.append(Difference(name, "every silo", f"{what}: left out"))
        else:
            columns.append(column)
    return tuple(columns), found


def _column(
    name: str, moments: Sequence[Moments], described: Mapping[str, Description]
) -> tuple[Column | None, list[Difference]]:
    """A column of all silos, or None where it tells nothing."""
    gaps = any(name in own.missing for own in described.values())
    if _told_of_none(moments):
        return None, []
    if any(name in own.numbers for own in described.values()):
        mean, scale = _pooled(moments) if moments else (0.0, 1.0)
        if scale == 0 and not gaps:
            return None, []
        date = any(name in own.dates for own in described.values())
        return Column(name, "date" if date else "number", mean, scale or 1.0, gaps), []
    if any(name in own.texts for own in described.values()):
        return Column(name, "text"), []
    by_silo = {silo: (own.categories or {}).get(name, ()) for silo, own in described.items()}
    levels = sorted({level for mine in by_silo.values() for level in mine})
    if len(levels) > LEVELS:
        most = max(by_silo, key=lambda silo: len(by_silo[silo]))
        raise BadInput(
            f"column {name!r}: {len(levels)} different texts over all silos, {len(by_silo[most])} of them in {most}, "
            f"where {LEVELS} may be; leave it out with --drop {name}"
        )
    lacking = {silo: [level for level in levels if level not in mine] for silo, mine in by_silo.items()}
    found = [Difference(name, silo, f"lacks {_named('level', absent)}") for silo, absent in lacking.items() if absent]
    telling = len(levels) > 1 or (bool(levels) and gaps)
    return (Column(name, "category", levels=tuple(levels)), found) if telling else (None, [])


def _told_of_none(moments: Sequence[Moments]) -> bool:
    """Whether all silos share statistics, and none has enough values of a column of numbers to tell of them."""
    return bool(moments) and not any(count for count, _, _ in moments)


def _pooled(parts: Sequence[Moments]) -> tuple[float, float]:
    """A centre and a scale for all: those of the middle silo, which no single one moves far, whatever it declares."""
    there = np.array([part for part in parts if part[0] > 0]).reshape(-1, 3)
    if not len(there):
        return 0.0, 0.0
    count, mean, scatter = there.T  # (silos,) each
    centre = float(np.median(mean))
    scales = np.sqrt(scatter / count + (mean - centre) ** 2)
    # What is left of a constant by rounding is no spread.
    spread = scales[scales > 1e-9 * max(1.0, abs(centre))]
    return centre, float(np.median(spread)) if len(spread) else 0.0


def kinds_of(own: Description) -> dict[str, str]:
    """What each column of a silo is: number, date, category, text or empty."""
    kinds = dict.fromkeys(own.numbers, "number") | dict.fromkeys(own.dates, "date")
    kinds |= dict.fromkeys(own.categories or {}, "category") | dict.fromkeys(own.texts, "text")
    return kinds | dict.fromkeys(own.empty, "empty")


def _majority(values: Iterable[T]) -> T:
    return Counter(values).most_common(1)[0][0]


def _unusual(column: str, every: Mapping[str, T], say: Callable[[T], str]) -> list[Difference]:
    """The silos whose value is not that of most."""
    usual = _majority(every.values())
    odd = {silo: own for silo, own in every.items() if own != usual}
    return [Difference(column, silo, f"{say(own)}, elsewhere {say(usual)}", True) for silo, own in odd.items()]


def _shaped(shape: tuple[int, ...]) -> str:
    return f"arrays {'×'.join(map(str, shape))}" if shape else "a table"


def _say(kind: str) -> str:
    return {"number": "numbers", "category": "text", "date": "dates", "text": "free text"}.get(kind, kind)


def _named(what: str, names: Sequence[str]) -> str:
    many = what + ("es" if what.endswith("s") else "s")
    return f"{what if len(names) == 1 else many} {listed(names)}"
