"""Own silos made ready to train on: split, declared, agreed on, encoded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from coterie.data.allot import carve, held_out, in_time, portion, whole
from coterie.data.mapped import kept
from coterie.data.own.agree import Difference, agree
from coterie.data.own.columns import as_number, is_dated, parsed, without, written
from coterie.data.own.fences import beyond, fence, nearer, within
from coterie.data.own.gather import Holding, gather
from coterie.data.own.incumbent import by_trees, given, is_column
from coterie.data.own.label import Label, Task, read_label
from coterie.data.own.leaks import RARE, by_chance, copies, copies_elsewhere, repeating_identifiers
from coterie.data.own.schema import Schema, standard
from coterie.data.own.sides import (
    NAMES,
    TEST,
    TRAIN,
    VALIDATION,
    Marks,
    SplitBy,
    check_columns,
    check_marks,
    check_variety,
    last_times,
    read_marks,
)
from coterie.data.own.statistics import Statistics, declare
from coterie.data.own.subgroups import check_levels, read_subgroups
from coterie.data.own.trees import TREES
from coterie.data.silo import Array, FederatedData, HoldsData, Indices, Part, Share, Silo, named
from coterie.errors import BadInput, nearest, warn
from coterie.keys import generator
from coterie.options import option

FEWEST = 10  # rows of a silo, so that it can train, validate and test
UNMARKED = Marks()
RAREST = 100  # samples of the rarest class that validate and test at least, where there are so many
MOST = 0.5  # of a silo's rows, in one group
SHOWN = 3  # far values that are named


@dataclass(frozen=True)
class OwnData(SplitBy):
    """Options of your own data."""

    path: str = option("", "the folder with one file (CSV, Parquet, npz) or folder (pictures, tables) for each silo")
    label: str = option("", "the column to predict, of tables")
    task: Literal["auto", "classification", "regression"] = option("auto", "auto: as the label looks")
    drop: tuple[str, ...] = option((), "columns to leave out, such as identifiers")
    text: tuple[str, ...] = option((), "columns of free text, whose words are hashed")
    resize: int = option(0, "pixels in height and width that pictures are brought to; 0: as they are", low=0, high=4096)
    standardize: Literal["federation", "silo"] = option(
        "federation", "numbers by what all silos declare, or each silo by its own and nothing of it leaves"
    )
    most_validation: int = option(10_000, "rows of a silo that validate, at most, where they are drawn; 0: any", low=0)
    most_test: int = option(100_000, "rows of a silo that test, at most, where they are drawn; 0: any", low=0)
    subgroups: tuple[str, ...] = option((), "columns by whose levels measures are taken too")
    incumbent: str = option(
        "",
        "what silos use today: trees, a column of predictions, or an ONNX file ({silo}: its name); stack's candidate",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are no features."""
        return (*super().columns, *([self.incumbent] if is_column(self.incumbent) else []))


@dataclass(frozen=True, repr=False)
class SplitHolding(HoldsData):
    """A holding less its rows without a label, and which rows are for what."""

    holding: Holding
    label: Label
    train: Indices
    validation: Indices
    test: Indices
    rows: Indices  # where its rows are in what the silo holds
    unlabelled: int
    units: Indices | None = None  # (n,) rows of one group have one code
    fewer: tuple[str, ...] = ()  # of what it has fewer than its share, because they are enough: validation, test

    def about(self) -> str:
        return self.holding.about()


def load(options: OwnData, seed: int) -> FederatedData:
    """The federation of a folder."""
    if not options.path:
        raise BadInput("own data: give `path`, the folder with a file or a folder for each silo (--silos FOLDER)")
    folder = Path(options.path).expanduser()
    holdings = gather(folder, options.label, options.drop, options.columns, options.resize)
    data = ready(holdings, options, seed)
    if len(holdings) == 1:
        warn(
            f"{folder}: holds one silo, '{holdings[0].name}', which has nobody to learn with; give the folder that has "
            "a file or a folder for each silo"
        )
    return data


def ready(holdings: Sequence[Holding], options: OwnData, seed: int) -> FederatedData:
    """The federation of what the silos hold; only their `Statistics` are looked at together."""
    splits = [resting(split(holding, options, seed)) for holding in holdings]
    shared = options.standardize == "federation"
    declared = {
        s.holding.name: declare(
            s.holding.x, s.label, s.train, options.task, shared, f"silo '{s.holding.name}'", text=options.text
        )
        for s in splits
    }
    schema, differences = agree(declared, options.label, options.task)
    _check_classes(len(schema.classes), sum(len(s.label.values) for s in splits), options.label)
    differences += [
        Difference(options.label or "label", s.holding.name, f"{s.unlabelled} rows without one: left out")
        for s in splits
        if s.unlabelled
    ]
    numbers = [column.name for column in schema.columns if column.kind in ("number", "date")]
    differences += [each for s in splits for each in far_values(s, numbers, not schema.classes, options.label)]
    differences += [each for s in splits for each in (*copied(s, options), *crowded(s, options), *capped(s))]
    differences += identified(splits, options)
    schemas = {s.holding.name: fitted(schema, s, not shared) for s in splits}
    marked = [read_subgroups(s.holding, options.subgroups, options.label) for s in splits]
    check_levels(marked)
    silos = [encoded(s, schemas[s.holding.name], of, options.incumbent) for s, of in zip(splits, marked, strict=True)]
    _check_incumbent(silos, options.incumbent, splits)
    differences += copied_elsewhere(splits, silos)
    return FederatedData(
        silos, len(schema.classes), "own", _note(declared, schema), [0] * len(silos), [False] * len(silos), schemas,
        differences,
    )  # fmt: skip


def split(holding: Holding, options: OwnData, seed: int) -> SplitHolding:
    """A silo's rows for training, validation and test: as it came split, or drawn."""
    where = f"silo '{holding.name}'"
    label, there = read_label(holding.y, f"{where} label")
    if isinstance(holding.x, DataFrame):
        holding = replace(holding, x=parsed(holding.x, where, options.text))
    check_columns(options, options.label, holding.aside, holding.columns, where)
    marks = read_marks(holding.aside, holding.sides, options, where)
    rows = np.flatnonzero(there)
    unlabelled = len(there) - len(rows)
    if unlabelled:
        holding, marks = holding.take(rows), marks.take(rows)
    check_marks(marks, rows, options, where)
    if marks.sides is None:
        share = drawn(holding.name, label, options, seed, marks)
    else:
        share = as_given(holding, label, options, seed, marks)
    limited = at_most(options, label, marks)
    shares = {"validation": (limited.validation, options.validation), "test": (limited.test_share, options.test_share)}
    fewer = tuple(name for name, (limit, share) in shares.items() if limit < share)
    return SplitHolding(holding, label, share.train, share.validation, share.test, rows, unlabelled, marks.units, fewer)


def resting(own: SplitHolding) -> SplitHolding:
    """The same, with what is beyond the limit of memory in files."""
    return replace(own, holding=own.holding.resting())


def as_given(holding: Holding, label: Label, options: OwnData, seed: int, marks: Marks) -> Share:
    """The split that a silo came with; where no row validates, some of those to train are drawn."""
    sides, units = np.asarray(marks.sides), marks.units
    train, validation, test = (np.flatnonzero(sides == side) for side in (TRAIN, VALIDATION, TEST))
    for side, rows in ((TRAIN, train), (TEST, test)):
        if len(rows) == 0:
            raise BadInput(f"silo '{holding.name}': no row is for {NAMES[side]}; add some or leave the silo out")
    if len(validation) == 0:
        _check_enough(len(sides), f"silo '{holding.name}'")
        draw = carve if units is None else whole(units)
        rng = generator(seed, "own split", holding.name)
        count = portion(at_most(options, label, marks).validation, len(train))
        validation, train = draw(train, strata(label, options.task), count, rng)
    return Share(train, validation, test)


def at_most(options: OwnData, label: Label, marks: Marks) -> OwnData:
    """The options with such shares of a silo's rows that no more are drawn to validate and test than are wanted.

    What is drawn by groups or by time is as much as it was: a few groups would fill the number, and a few hours. So is
    what would have few samples of the rarest class.
    """
    if marks.units is not None or marks.times is not None:
        return options
    rows, wanted = len(label.values), 1.0
    if len(classes := np.unique(strata(label, options.task), return_counts=True)[1]) > 1:
        wanted = RAREST * rows / int(classes.min())
    if marks.sides is None:
        if options.most_test and portion(options.test_share, rows) > (most := max(options.most_test, wanted)):
            options = replace(options, test_share=most / rows)
        rows -= portion(options.test_share, rows)
        rows = min(rows, options.keep or rows)
    elif (marks.sides == VALIDATION).any():
        return options
    else:
        rows = int((marks.sides == TRAIN).sum())
    if options.most_validation and portion(options.validation, rows) > (most := max(options.most_validation, wanted)):
        options = replace(options, validation=most / rows)
    return options


def strata(label: Label, task: Task) -> Array:
    """(n,) what is to be in every part of a split alike: the classes, where the label has some."""
    return np.zeros(len(label.values)) if label.levels(task) is None else label.names().astype(str)


def drawn(name: str, label: Label, options: OwnData, seed: int, marks: Marks = UNMARKED) -> Share:
    """Which of a silo's rows are for what: the last ones test, or drawn by the seed and its name with its classes."""
    where, count = f"silo '{name}'", len(label.values)
    _check_enough(count, where)
    check_variety(marks, options, where)
    options = at_most(options, label, marks)
    if marks.times is not None:
        share = in_time(last_times(marks.times, marks.units), options)
    else:
        rng = generator(seed, "own split", name)
        draw = carve if marks.units is None else whole(marks.units)
        every = [np.arange(count)]
        share = held_out(every, strata(label, options.task), f"of {where}", options, rng, draw).shares[0]
    if len(share.test) == 0:
        raise BadInput(f"{where}: test_share = {options.test_share} of {count} rows leaves none to test; raise it")
    if marks.units is not None and portion(options.validation, len(share.train)) and len(share.validation) == 0:
        raise BadInput(
            f"{where}: the values of {options.group!r} are too few or too unequal to validate; give another column"
        )
    return share


def _check_enough(rows: int, where: str) -> None:
    """Refuse a silo of fewer rows than can be split."""
    if rows < FEWEST:
        raise BadInput(
            f"{where}: has {rows} rows with a label; {FEWEST} or more are needed to train, validate and "
            "test; add rows or leave the silo out"
        )


def fitted(schema: Schema, own: SplitHolding, by_itself: bool) -> Schema:
    """The schema with this silo's fences and, where it standardises by itself, with its own means and deviations."""
    made = []
    for column in schema.columns:
        if column.kind in ("number", "date"):
            values = _numbers(own, column.name)[own.train]
            column = replace(column, fence=fence(values))
            there = within(values, column.fence)[~np.isnan(values)]
            if by_itself and len(there):
                column = replace(column, mean=float(there.mean()), scale=float(there.std()) or 1.0)
        made.append(column)
    return replace(schema, columns=tuple(made), resize=own.holding.resize)


def far_values(own: SplitHolding, numbers: Sequence[str], quantity: bool, label: str) -> list[Difference]:
    """Values that lie so far from the silo's others that they are pulled in, by column."""
    columns = {name: _numbers(own, name) for name in numbers} | (
        {label or "label": own.label.values} if quantity else {}
    )
    found = []
    for name, values in columns.items():
        bounds = fence(values[own.train])
        far = np.flatnonzero(beyond(values, bounds))
        if len(far):
            date = name in numbers and is_dated(own.holding.x[name])
            named = ", ".join(f"{written(values[i], date)} in row {own.rows[i] + 1}" for i in far[:SHOWN])
            more = f" and {len(far) - SHOWN} more" if len(far) > SHOWN else ""
            low, high = (written(each, date, 4) for each in nearer(bounds))
            scored = name not in numbers  # the label
            where = ", in scores too (if they are right, predict the logarithm)" if scored else ""
            what = f"far from the others, so taken as {low} or {high}{where}: {named}{more}"
            found.append(Difference(name, own.holding.name, what, flatters=scored))
    return found


def copied(own: SplitHolding, options: OwnData) -> list[Difference]:
    """Rows to test or validate that are copies of training rows."""
    others = {"test": own.test, "validation": own.validation}
    found = copies(own.holding.x, own.label.values, own.train, others)
    remedy = "" if options.group else " or give --group"
    return [Difference("rows", own.holding.name, found + remedy, flatters=True)] if found else []


def copied_elsewhere(splits: Sequence[SplitHolding], silos: Sequence[Silo]) -> list[Difference]:
    """Rows to test or validate that another silo trains on: what is trained together has seen them."""
    among, elsewhere, found = sum(len(each.train) for each in splits), copies_elsewhere(silos), []
    for own in splits:
        name = own.holding.name
        if name in elsewhere and by_chance(own.holding.x, own.label.values, among) <= RARE:
            count, others = elsewhere[name]
            one = count in ("1 test", "1 validation")
            what = "row is an exact copy of a training row" if one else "rows are exact copies of training rows"
            seen = f"what is trained together has seen {'it' if one else 'them'}, so its score flatters"
            remedy = f"remove {'it' if one else 'them'} here or there"
            what = f"{count} {what} of {named(others)}; {seen}: {remedy}"
            found.append(Difference("rows", name, what, flatters=True))
    return found


def capped(own: SplitHolding) -> list[Difference]:
    """That fewer rows validate or test than their share would be, where that is so."""
    counts = {"validation": f"{len(own.validation):,} validate", "test": f"{len(own.test):,} test"}
    if not own.fewer:
        return []
    keys = " and ".join(f"most_{name}" for name in own.fewer)
    what = f"{' and '.join(counts[name] for name in own.fewer)}, fewer than their share; the others train ({keys})"
    return [Difference("rows", own.holding.name, what)]


def crowded(own: SplitHolding, options: OwnData) -> list[Difference]:
    """A group that has most of a silo's rows, which then are all for one thing."""
    if own.units is None:
        return []
    sizes = np.bincount(own.units)
    if sizes.max() <= MOST * len(own.units):
        return []
    value = own.holding.aside[options.group].iloc[int((own.units == sizes.argmax()).argmax())]
    what = (
        f"'{value}' has {sizes.max()} of {len(own.units)} rows, which stay on one side of the split: is it one group? "
    )
    return [Difference(options.group, own.holding.name, what + "where it means unknown, leave the cell empty")]


def identified(splits: Sequence[SplitHolding], options: OwnData) -> list[Difference]:
    """Columns by which rows should stay together, where nothing keeps them so; also those that are left out."""
    silos = dict[str, list[str]]()
    for own in splits:
        x, aside = own.holding.x, own.holding.aside
        if own.units is None and isinstance(x, DataFrame):
            every = pd.concat([without(aside, options.columns), x], axis=1)
            sides = Series(0, every.index)
            sides.iloc[own.validation], sides.iloc[own.test] = 1, 2
            for name in repeating_identifiers(every, Series(own.label.values)):
                if (sides.groupby(every[name]).nunique() > 1).any():  # a split of one's own may keep them together
                    silos.setdefault(name, []).append(own.holding.name)
    what = "looks like an identifier that repeats: give --group {}"
    return [Difference(name, named(where), what.format(name), flatters=True) for name, where in silos.items()]


def _numbers(own: SplitHolding, name: str) -> Array:
    """(n,) a column of numbers; NaN where one is missing."""
    assert isinstance(own.holding.x, DataFrame)  # arrays have no columns
    return as_number(own.holding.x[name], name)


def _check_classes(classes: int, rows: int, label: str) -> None:
    """Refuse a label that tells most rows apart: somebody's number has been given as what to predict."""
    if classes > rows / 2:
        what = f"label '{label}'" if label else "the labels"
        raise BadInput(
            f"{what}: {classes} different values in {rows} rows look like an identifier; give what is to be predicted"
        )


def _check_incumbent(silos: Sequence[Silo], incumbent: str, splits: Sequence[SplitHolding]) -> None:
    """Refuse an incumbent that no silo has: a misspelt one would be missed by nobody."""
    if incumbent and all(silo.train.incumbent is None for silo in silos):
        known = [name for s in splits for name in s.holding.columns]
        hint = nearest(incumbent, known) if is_column(incumbent) else "check the path"
        raise BadInput(f"--incumbent {incumbent}: no silo has it; {hint}")


def encoded(
    own: SplitHolding, schema: Schema, subgroups: Mapping[str, Array] | None = None, incumbent: str = ""
) -> Silo:
    """A silo as a model takes it."""
    name = own.holding.name
    x = schema.encode(own.holding.x, f"silo '{name}'") if isinstance(own.holding.x, DataFrame) else own.holding.x
    y = _targets(own, schema)
    units, trees = own.units, None
    if incumbent == TREES:
        beside, trees = by_trees(x, y, own.train, schema)
    else:
        beside = given(incumbent, own.holding, x, schema)
    parts = [
        Part(
            kept(x[rows]), y[rows], own.rows[rows], *(None if each is None else each[rows] for each in (units, beside))
        )
        for rows in (own.train, own.validation, own.test)
    ]
    parted = {column: values[own.test] for column, values in (subgroups or {}).items()}
    return Silo(name, *parts, subgroups=parted, trees=trees)


def _targets(own: SplitHolding, schema: Schema) -> Array:
    if not schema.classes:
        values = within(own.label.values, fence(own.label.values[own.train]))
        return standard(values, schema.centre, schema.unit).astype(np.float32)
    place = {name: i for i, name in enumerate(schema.classes)}
    return np.array([place[name] for name in own.label.names()], np.int64)


def _note(declared: dict[str, Statistics], schema: Schema) -> str:
    size = max(statistics.nbytes() for statistics in declared.values())
    what = f"{len(schema.classes)} classes" if schema.classes else f"regression (deviation {schema.unit:.4g})"
    return f"{what}; to encode alike, each silo declared at most {size:,} bytes of statistics of its columns"
