"""What may make a silo's test score flatter: copies of training rows, its own or another silo's, and an identifier that
repeats.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from coterie.data.own.columns import numbers_in
from coterie.data.silo import Array, Indices, Part, Silo

RARE = 0.01  # copies that a row has by chance; where it has more, rows are alike because there are few kinds of them
FEWEST = 10  # different values of an identifier
REPEATED = 0.3  # share of the rows whose value another row has too
ENOUGH = 40  # such rows: fewer are alike by chance too often
LARGEST = 20  # rows of a value that repeats, on average
ALIKE = 0.6  # how much rows of one value differ, as a share of how much rows of two values do
COMPARED = 20_000  # rows; more add nothing
EXAMINED = 200  # columns, the first ones: an identifier is seldom further back
WIDEST = 50  # columns that they are compared in, evenly from those of a wide table
AT_ONCE = 10_000_000  # numbers of which keys are made in one call


def copies(x: DataFrame | Array, labels: Array, train: Indices, others: Mapping[str, Indices]) -> str:
    """How many rows of the other parts of a split are copies of training rows; empty: none, or as chance has it."""
    keys = _keys(x, labels)
    counts = {name: int(np.isin(keys[rows], keys[train]).sum()) for name, rows in others.items()}
    if not any(counts.values()) or by_chance(x, labels, len(train)) > RARE:
        return ""
    found = _counted(counts)
    one = sum(counts.values()) == 1
    what = "row is an exact copy of a training row" if one else "rows are exact copies of training rows"
    return f"{found} {what}; a score on them flatters: remove them"


def copies_elsewhere(silos: Sequence[Silo]) -> dict[str, tuple[str, list[str]]]:
    """By silo how many of its rows to test and validate are training rows of other silos as encoded, and of which."""
    keys = [_encoded_keys(silo.train) for silo in silos]
    owners = np.repeat(np.arange(len(silos)), [len(each) for each in keys])
    order = np.argsort(every := np.concatenate(keys), kind="stable")
    every, owners, found = every[order], owners[order], dict[str, tuple[str, list[str]]]()
    for place, silo in enumerate(silos):
        counts, others = dict[str, int](), set[int]()
        for name, part in (("test", silo.test), ("validation", silo.validation)):
            own = _encoded_keys(part)
            ends = zip(np.searchsorted(every, own), np.searchsorted(every, own, "right"), strict=True)
            holders = [set(owners[low:high].tolist()) - {place} for low, high in ends if low < high]
            counts[name] = sum(map(bool, holders))
            others.update(*holders)
        if others:
            found[silo.name] = _counted(counts), [silos[other].name for other in sorted(others)]
    return found


def repeating_identifiers(columns: DataFrame, label: Series) -> list[str]:
    """The columns that look like the number of a patient who has several rows.

    Rows of one value are alike in the other columns, while rows of neighbouring values are not: this tells a patient
    from an age, which other columns follow step by step, and from a town, whose people differ.
    """
    codes = {name: found for name in columns.columns[:EXAMINED] if (found := _repeating(columns[name])) is not None}
    if not codes:
        return []
    some = columns.columns[:: -(-len(columns.columns) // WIDEST)]
    read = [_values(column) for column in (*(columns[name] for name in some), label)]
    values, numeric = np.stack([each for each, _ in read], 1), np.array([number for _, number in read])
    levels = np.array([len(np.unique(each)) for each, _ in read])
    return [str(name) for name, found in codes.items() if _alike(found, values, numeric, levels)]


def _repeating(column: Series) -> Indices | None:
    """(n,) the codes of a column whose values repeat as often as a patient comes; None: of another."""
    codes, whole = _codes(column)
    sizes = np.bincount(codes[codes >= 0])
    again = sizes[sizes > 1]
    few = len(sizes) < FEWEST or again.sum() < max(ENOUGH, REPEATED * len(codes))
    return codes if whole and not few and again.mean() <= LARGEST else None


def _alike(codes: Indices, values: Array, numeric: Array, levels: Array) -> bool:
    """Whether rows of one code (n,) are alike in the columns of `values` (n, c), and rows of near codes are not."""
    many = len(np.unique(codes))
    order = np.argsort(codes, kind="stable")[(codes < 0).sum() :][:COMPARED]
    codes, values = codes[order], values[order]

    def apart(step: int, same: bool) -> Array:
        """(c,) how much rows so many steps from each other differ, of one code or of two."""
        gaps = np.abs(values[step:] - values[:-step])[(codes[step:] == codes[:-step]) == same]
        mean: Array = np.where(numeric, gaps, gaps > 0).sum(0) / max(1, len(gaps))
        return mean

    within, beside, far = apart(1, True), apart(2 * len(order) // many + 1, False), apart(len(order) // 2, False)
    renames = (within == 0) & (levels == many)  # the column itself, or its values by other names
    follows = beside < far / 2  # as a birth year an age
    ratios = np.where(follows, 1, np.minimum(1, within / np.maximum(beside, 1e-12)))[(far > 0) & ~renames]
    return len(ratios) > 1 and float(ratios.mean()) < ALIKE


def _codes(column: Series) -> tuple[Indices, bool]:
    """(n,) the place of each value in their order, -1: missing; and whether they are text or whole numbers."""
    values = _plain(column)
    whole = values.dtype == object or bool((values.dropna() % 1 == 0).all())
    return pd.factorize(values, sort=True)[0].astype(np.int64), whole


def _values(column: Series) -> tuple[Array, bool]:
    """(n,) the ranks of numbers, or a code for each text; and whether they are numbers."""
    values = _plain(column)
    if values.dtype == object:
        return _codes(column)[0], False
    return values.rank().fillna(0).to_numpy(), True


def _plain(column: Series) -> Series:
    """As numbers, or as text where one is none."""
    if column.dtype.kind in "fiu":
        return column
    text = column.map(str, na_action="ignore").astype(object)
    numbers = numbers_in(text)
    return text if (numbers.isna() & text.notna()).any() else numbers


def _keys(x: DataFrame | Array, labels: Array) -> Array:
    """(n,) the same for rows that are the same."""
    if isinstance(x, DataFrame):
        keys: Array = pd.util.hash_pandas_object(x.assign(**{"": labels}), index=False).to_numpy()
        return keys
    return np.array([hash((row.tobytes(), label)) for row, label in zip(x, labels.tolist(), strict=True)])


def _encoded_keys(part: Part) -> Array:
    """(n,) the same for rows that are encoded alike and have the same label."""
    return _sums(part.x, 0) + _sums(part.y, 1)


def _sums(values: Array, seed: int) -> Array:
    """(n,) the bits of each row, every place by a factor of its own, modulo 2^64."""
    rows = np.ascontiguousarray(values).reshape(len(values), math.prod(values.shape[1:]))
    bits = rows.view(np.uint32 if rows.itemsize % 4 == 0 else np.uint8)
    factors = np.random.default_rng(seed).integers(1, 2**63, bits.shape[1], dtype=np.uint64)
    found, step = np.zeros(len(bits), np.uint64), max(1, AT_ONCE // max(1, bits.shape[1]))
    for at in range(0, len(bits), step):
        found[at : at + step] = bits[at : at + step].astype(np.uint64) @ factors
    return found


def _counted(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{count} {name}" for name, count in counts.items() if count)


def by_chance(x: DataFrame | Array, labels: Array, among: int) -> float:
    """How many copies among so many rows a row has, had the columns nothing to do with each other."""
    chance, count = 1.0, len(labels)
    for column in chain([labels], _columns(x)):
        same = Series(column).value_counts(dropna=False).to_numpy()
        chance *= float((same * (same - 1.0)).sum()) / (count * (count - 1))
        if chance * max(count, among) < RARE:
            break
    return chance * among


def _columns(x: DataFrame | Array) -> Iterable[Array | Series]:
    return (x[name] for name in x) if isinstance(x, DataFrame) else x.reshape(len(x), -1).T
