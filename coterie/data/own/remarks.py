"""What looks wrong in the silos' tables, from nothing but their statistics."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.data.own.statistics import Description
from coterie.data.silo import Array

SHOWN = 4  # names in a remark
FEWEST = 10  # values whose mean and deviation say something
APART = 2.0  # deviations between means, or a factor of 5 between deviations, beyond which a unit is looked for
FAR = 4.0  # deviations of both between means, beyond which no unit need be found
ZERO = 32.0  # degrees Fahrenheit at 0 degrees Celsius: within a larger deviation nothing shows it
ALIKE = 1.3  # factor between deviations that are the same
FACTORS = (2.54, 2.2046, 7, 10, 12, 18.016, 24, 38.67, 60, 88.42, 100, 365.25, 1000, 1e6)
EVERY = "every silo"


@dataclass(frozen=True)
class Difference:
    """How a silo's column differs from that of the others, or what is odd about it."""

    column: str
    silo: str
    what: str
    stops: bool = False  # whether no federation can be made of it
    flatters: bool = False  # whether scores look better by it than they are in use


def remarks(
    described: Mapping[str, Description], moments: Mapping[str, Array], label: str, targets: Mapping[str, Array]
) -> list[Difference]:
    """All that looks wrong; `moments` (3, columns) of each silo's numbers are count, mean and sum of squares.

    `targets` (3,) are those of a label that is a number.
    """
    labels = {silo: replace(own, numbers=(label or "label",), dates=()) for silo, own in described.items()}
    quantity = all(own.classes is None for own in described.values())
    return [
        *_units(described, moments),
        *(_units(labels, {silo: each[:, None] for silo, each in targets.items()}) if quantity else []),
        *_spellings(described),
        *_class_spellings(described, label),
        *_columns(described),
    ]


def _columns(described: Mapping[str, Description]) -> list[Difference]:
    """Columns that a silo finds odd by itself."""
    found = list[Difference]()
    first = next(iter(described.values()))
    for name in first.identifiers:
        if all(name in own.identifiers for own in described.values() if name in own.numbers):
            what = f"looks like an identifier, another whole number in each row; leave it out with --drop {name}"
            found.append(Difference(name, EVERY, what))
    for name, source in (first.copies or {}).items():
        if all((own.copies or {}).get(name) == source for own in described.values()):
            what = f"the same in every row as in {source!r}; leave one of them out with --drop {name}"
            found.append(Difference(name, EVERY, what))
    for name in dict.fromkeys(name for own in described.values() for name in own.telling):
        silos = [silo for silo, own in described.items() if name in own.telling]
        what = f"tells the label by itself; if it is not known when you predict, leave it out with --drop {name}"
        where = EVERY if len(silos) == len(described) else listed(silos)
        found.append(Difference(name, where, what, flatters=True))
    return found


def _units(described: Mapping[str, Description], moments: Mapping[str, Array]) -> list[Difference]:
    """Columns of numbers whose mean and deviation in a silo are those of the others in another unit."""
    silos = [silo for silo, own in described.items() if 0 < len(own.numbers) == moments[silo].shape[1]]
    names = list(dict.fromkeys(name for silo in silos for name in described[silo].numbers))
    place = {name: i for i, name in enumerate(names)}
    table = np.full((len(silos), 2, len(names)), np.nan)  # mean and deviation
    for row, silo in enumerate(silos):
        count, mean, scatter = moments[silo]
        dates = np.isin(described[silo].numbers, described[silo].dates)
        known = (count >= FEWEST) & (scatter > 0) & np.isfinite(moments[silo]).all(0) & ~dates
        at = np.array([place[name] for name in described[silo].numbers])[known]
        table[row][:, at] = mean[known], np.sqrt(scatter[known] / count[known])
    kept = np.flatnonzero((~np.isnan(table[:, 0])).sum(0) >= 2)
    found = list[Difference]()
    for row, silo in enumerate(silos[1:] if len(silos) == 2 else silos, len(silos) == 2):
        others = np.delete(table[:, :, kept], row, 0)
        centre, scale = np.nanmedian(others, 0)  # (kept,) each
        # Where the others differ among themselves, a silo that differs too is no sign of another unit.
        near = (np.abs(others[:, 0] - centre) <= scale).sum(0) >= (~np.isnan(others[:, 0])).sum(0) / 2
        mean, spread = table[row][:, kept]
        with np.errstate(invalid="ignore"):
            off = np.abs(mean - centre) > APART * np.maximum(spread, scale)
            off |= np.abs(np.log(spread / scale)) > np.log(5)
        for i in np.flatnonzero(near & off):
            unit = _unit(mean[i], spread[i], centre[i], scale[i])
            if unit is not None:
                what = (
                    f"mean {mean[i]:.4g} and deviation {spread[i]:.4g}, elsewhere {centre[i]:.4g} and {scale[i]:.4g}: "
                    f"another unit{unit}? Convert it in the file"
                )
                found.append(Difference(names[kept[i]], silo, what))
    return found


def _unit(mean: float, spread: float, centre: float, scale: float) -> str | None:
    """Which unit would explain a silo's mean and deviation beside those of the others; None: no other unit."""

    def fits(mean: float, spread: float) -> bool:
        return bool(abs(mean - centre) <= scale and 1 / ALIKE < spread / scale < ALIKE)

    if spread < ZERO and fits((mean - ZERO) / 1.8, spread / 1.8):
        return ", degrees Fahrenheit for Celsius"
    if scale < ZERO and fits(mean * 1.8 + ZERO, spread * 1.8):
        return ", degrees Celsius for Fahrenheit"
    for factor in FACTORS:
        if fits(mean / factor, spread / factor):
            return f", {factor:g} times"
        if fits(mean * factor, spread * factor):
            return f", 1/{factor:g}"
    return "" if abs(mean - centre) > FAR * (spread + scale) else None


def _spellings(described: Mapping[str, Description]) -> list[Difference]:
    """Levels of a category that are likely one."""
    found = list[Difference]()
    for name in dict.fromkeys(name for own in described.values() for name in own.categories or {}):
        by_silo = {silo: (own.categories or {}).get(name, ()) for silo, own in described.items()}
        for spellings in _groups(by_silo):
            found += [Difference(name, silos, what) for silos, what in _rewritten("level", spellings)]
    return found


def _class_spellings(described: Mapping[str, Description], label: str) -> list[Difference]:
    """Classes that are likely one; they stop a run unless every silo has all, or each is one character.

    Y and yes are one where no silo has both: none of their rows could teach another silo anything.
    """
    if any(own.label != "category" for own in described.values()):
        return []
    by_silo = {silo: own.classes or () for silo, own in described.items()}
    found = list[Difference]()
    for spellings in _groups(by_silo):
        plain = [_plain(name) for name in spellings]
        alike = any(len(name) > 1 and plain.count(name) > 1 for name in plain)
        apart = len(set(plain)) > 1 and all(len(set(spellings) & set(levels)) < 2 for levels in by_silo.values())
        stops = (alike or apart) and any(len(silos) < len(described) for silos in spellings.values())
        found += [Difference(label or "label", silos, what, stops) for silos, what in _rewritten("class", spellings)]
    return found


def _groups(by_silo: Mapping[str, Sequence[str]]) -> list[dict[str, list[str]]]:
    """Of levels that are likely one, which silos spell them how."""
    having: dict[str, list[str]] = {}
    for silo, levels in by_silo.items():
        for level in levels:
            having.setdefault(level, []).append(silo)
    groups: dict[str, list[str]] = {}
    for level in sorted(having):
        groups.setdefault(_plain(level), []).append(level)
    if len(groups) > 2 and all(len({_plain(level) for level in levels}) <= 2 for levels in by_silo.values()):
        groups = _abbreviated(groups)
    return [{level: having[level] for level in levels} for levels in groups.values() if len(levels) > 1]


def _abbreviated(groups: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Two groups of the same first letter, as of M, male, F and female; or the groups as they were."""
    by_letter: dict[str, list[str]] = {}
    for plain in groups:
        by_letter.setdefault(plain[:1], []).append(plain)
    if len(by_letter) != 2 or any(len(each) > 1 and letter not in each for letter, each in by_letter.items()):
        return dict(groups)
    return {letter: [level for plain in each for level in groups[plain]] for letter, each in by_letter.items()}


def _plain(level: str) -> str:
    """A level without case, and with single spaces for what separates words."""
    return re.sub(r"(?<=\w)[\s_-]+(?=\w)", " ", level.casefold())


def _rewritten(what: str, spellings: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """The silos of each spelling but the usual one, and what to do."""
    usual = max(spellings, key=lambda level: len(spellings[level]))
    return [
        (listed(silos), f"{what} {level!r} and elsewhere {usual!r}: two spellings of one? Write them alike")
        for level, silos in spellings.items()
        if level != usual
    ]


def listed(names: Sequence[str]) -> str:
    """A few names and how many more."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
