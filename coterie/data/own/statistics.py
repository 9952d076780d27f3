"""What a silo declares of its columns before training, so that all encode alike: an `Up`, as everything that leaves."""

import json
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from pandas import DataFrame, Series
from torch import Tensor

from coterie.data.own.columns import as_days, as_number, as_text, kind_of, numbers_in
from coterie.data.own.fences import beyond, fence, within
from coterie.data.own.label import Label, Task
from coterie.data.own.suspects import Suspects
from coterie.data.silo import Array, Indices
from coterie.errors import BadInput
from coterie.options import parse
from coterie.wire import Up, rows

LEVELS = 100  # of a category; more are free text or an identifier
GROUPED = r"[-+]?\d{1,3}([,.' ]\d{3})*([.,]\d+)?"  # a number as people write it
ALWAYS = 20  # so few levels are a category, however few the rows
Summary = tuple[int, tuple[float, float, float]]
SHOWN = 10  # columns that cannot be used and are named


class Statistics(Up):
    """Of a silo's training rows; with `standardize = "silo"` the three of its columns of numbers stay empty."""

    count: Tensor = rows("of each column of numbers, or dates as days: how many values", "columns", seen_by="server")
    mean: Tensor = rows("of each column of numbers: their mean", "columns", seen_by="server")
    scatter: Tensor = rows("of each: the sum of squares around that mean", "columns", seen_by="server")
    target: Tensor = rows("count, mean and sum of squares of a label that is a number", "3", seen_by="server")
    table: Tensor = rows(
        "names of the columns, levels of each category, classes of the label, which columns lack values, in which how "
        "many lay far from the others, and which look like identifiers, repeat another or tell the label by "
        "themselves, as JSON",
        "bytes",
        seen_by="server",
        below="byte",
    )


@dataclass(frozen=True)
class Description:
    """The part of it that is text."""

    label: str  # number or category
    classes: tuple[str, ...] | None = None  # None: a quantity
    numbers: tuple[str, ...] = ()
    categories: dict[str, tuple[str, ...]] | None = None
    empty: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # columns in which some value is missing
    shape: tuple[int, ...] = ()  # of a sample that is an array
    far: dict[str, int] | None = None  # by column of numbers: how many values were pulled in, where any were
    far_labels: int = 0
    identifiers: tuple[str, ...] = ()  # columns of whole numbers, another in each row
    copies: dict[str, str] | None = None  # columns that repeat another, and which
    dates: tuple[str, ...] = ()  # of the columns of numbers: which are days
    texts: tuple[str, ...] = ()  # columns of free text
    telling: tuple[str, ...] = ()  # columns that tell the label by themselves


def declare(
    x: DataFrame | Array,
    label: Label,
    train: Indices,
    task: Task,
    shared: bool,
    where: str,
    *,
    text: tuple[str, ...] = (),
) -> Statistics:
    """A silo's statistics: of its training rows alone, but the classes of all its rows; of columns of `text` no more
    than their names."""
    if isinstance(x, DataFrame):
        description, numbers = _described(x.drop(columns=list(text)) if text else x, train, label, task, where)
        description = replace(description, texts=text)
    elif text:
        raise BadInput(f"--text {text[0]}: {where} holds arrays, which have no columns; leave it out")
    else:
        description, numbers = Description(label.kind, label.levels(task), shape=x.shape[1:]), []
    three = torch.tensor(np.array([moments for _, moments in numbers] if shared else [], np.float64).reshape(-1, 3).T)
    quantity = label.kind == "number" and task != "classification"
    far_labels, target = _summary(label.values[train] if quantity else np.zeros(0))
    far = {name: count for name, (count, _) in zip(description.numbers, numbers, strict=True) if count}
    description = replace(description, far=far, far_labels=far_labels)
    written = json.dumps(asdict(description), ensure_ascii=False).encode()
    return Statistics(
        count=three[:1],
        mean=three[1:2],
        scatter=three[2:],
        target=torch.tensor([target], dtype=torch.float64),
        table=torch.from_numpy(np.frombuffer(written, np.uint8).copy())[None],
    )


def description_of(statistics: Statistics) -> Description:
    """The text of a declaration, checked."""
    try:
        table = json.loads(statistics.table[0].numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"a silo's statistics arrived damaged: {error}") from None
    return parse(Description, table, "a silo's statistics")


def _described(x: DataFrame, train: Indices, label: Label, task: Task, where: str) -> tuple[Description, list[Summary]]:
    numbers, empty, missing, summaries = list[str](), list[str](), list[str](), list[Summary]()
    categories: dict[str, tuple[str, ...]] = {}
    suspects, dates, wrong = Suspects(label, train, task), list[str](), list[str]()
    for name, column in x.items():
        name, at = str(name), f"{where} column {name!r}"
        try:
            kind = kind_of(column, at)
            gaps = True
            if kind in ("number", "date"):
                whole = as_number(column, at) if kind == "number" else as_days(column, at)
                suspects.number(name, whole, counted=kind == "number")
                dates += [name] * (kind == "date")
                numbers.append(name)
                summaries.append(_summary(whole[train]))
                gaps = summaries[-1][1][0] < len(train)
            elif kind == "category":
                text = as_text(column, at)
                categories[name] = _levels(text, train, name, at)
                suspects.category(name, text)
                gaps = bool(text.iloc[train].isna().any())
            else:
                empty.append(name)
            missing += [name] * gaps
        except BadInput as error:
            wrong.append(str(error))
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more columns" if len(wrong) > SHOWN else ""
        raise BadInput("; ".join(wrong[:SHOWN]) + more)
    made = Description(
        label.kind, label.levels(task), tuple(numbers), categories, tuple(empty), tuple(missing),
        dates=tuple(dates), identifiers=tuple(suspects.identifiers), copies=suspects.copies,
        telling=tuple(suspects.telling),
    )  # fmt: skip
    return made, summaries


def _levels(text: Series, train: Indices, name: str, at: str) -> tuple[str, ...]:
    levels = sorted(map(str, text.iloc[train].dropna().unique()))
    if len(levels) <= ALWAYS:
        return tuple(levels)
    text = text.dropna()
    odd = text[numbers_in(text).isna()]
    if len(odd) < len(text) / 2:
        raise BadInput(
            f"{at}: {odd.iloc[0]!r} is no number, though {len(text) - len(odd)} of {len(text)} values are; "
            f"correct it or leave it empty, or leave the column out with --drop {name}"
        )
    if text.str.fullmatch(GROUPED).all():
        raise BadInput(
            f"{at}: {levels[-1]!r} looks like a number whose digits are grouped; write it without, as 1234.5, or leave "
            f"the column out with --drop {name}"
        )
    if len(levels) > LEVELS or len(levels) > len(text) / 2:
        raise BadInput(
            f"{at}: {text.nunique()} different texts in {len(text)} rows look like an identifier or free text, "
            f"which no model should learn; leave it out with --drop {name}, or hash its words with --text {name}"
        )
    return tuple(levels)


def _summary(values: Array) -> Summary:
    """How many values were pulled in; count, mean and sum of squares around it, which add up without cancelling."""
    bounds = fence(values)
    there = within(values, bounds)[~np.isnan(values)]
    mean = float(there.mean()) if len(there) else 0.0
    return int(beyond(values, bounds).sum()), (float(len(there)), mean, float(((there - mean) ** 2).sum()))
