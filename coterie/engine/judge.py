"""Every upload is judged before it counts: what is no model, or absurdly long, is as if it had never arrived.

A length is compared with the cohort's median of it or, where that is shorter, with the length of the model that was
sent: late in training the changes of most silos may be next to nothing, and the one that still learns is no rogue.
What a silo sends again is known by its lengths: two trainings never end in the same to the last bit.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.codec import check
from coterie.engine.exchange import Engine, Rejected, Replies
from coterie.engine.method import Method
from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.wire import Record, described

R = TypeVar("R", bound=Record)


def judged(
    method: Method,
    engine: Engine,
    asked: Tensor,
    down: Any,
    replies: Replies,
    limit: float,
    heard: dict[str, list[float]],
) -> Replies:
    """The replies that count, their uploads unpacked; the other silos go back to where they were before the round.

    `asked` are the silos that `down` was sent to; `limit` is `[train] norm_limit`; `heard` has the lengths of each
    silo's last upload that counted, and is kept up to date.
    """
    cohort = replies.cohort
    if not len(cohort.ids):
        return replies
    if len(cohort.ids) < len(asked):
        down = down.take(torch.searchsorted(asked, cohort.ids))
    up = method.unpacked(down, replies.up)
    reasons, lengths = verdicts(up, down, len(cohort.roster), limit)
    names = [cohort.roster.names[silo] for silo in cohort.ids.tolist()]
    for row, said in enumerate(lengths.T.tolist()):
        if row not in reasons and any(said) and heard.get(names[row]) == said:
            reasons[row] = "it is what the silo last sent"
        elif row not in reasons:
            heard[names[row]] = said
    engine.settle(cohort.ids[list(reasons)])
    if not reasons:
        return replace(replies, up=up)
    good = torch.tensor([row for row in range(len(cohort.ids)) if row not in reasons], dtype=torch.int64)
    good = good.to(cohort.ids.device)
    rejected = {names[row]: Rejected(reason) for row, reason in sorted(reasons.items())}
    return replace(
        replies,
        cohort=replace(cohort, ids=cohort.ids[good]),
        up=up.take(good),
        failures={**replies.failures, **rejected},
    )


def verdicts(up: Record, down: Record, silos: int, limit: float) -> tuple[dict[int, str], np.ndarray]:
    """The rows that do not count, and why; and the length of every row of each field of numbers: (fields, k)."""
    named = up.tensors()
    about = described(up)
    numbers = [name for name, value in named.items() if value.is_floating_point()]
    places = [name for name in named if about[name].role == "silo"]
    columns = [_lengths(named[name]) for name in numbers]
    columns += [((named[name] < 0) | (named[name] >= silos)).flatten(1).any(1).double() for name in places]
    if not columns:
        return {}, np.empty((0, 0))
    k = len(columns[0])
    told = torch.stack([*columns, *(usual.expand(k) for usual in _sent(down))]).cpu().numpy()  # the round's one wait
    sent = told[len(columns) :, 0].max(initial=0.0)
    reasons: dict[int, str] = {}
    for name, lengths in zip([*numbers, *places], told, strict=False):
        finite = np.isfinite(lengths)
        wrong = dict.fromkeys(np.flatnonzero(~finite), f"'{name}' is not finite")
        if name in places:
            wrong |= dict.fromkeys(np.flatnonzero(lengths), f"'{name}' names silos that do not exist")
        elif limit and about[name].has_columns:
            # One alone has no median, and of two it is the shorter: the longer cannot speak for itself.
            others = np.quantile(lengths[finite], 0.5, method="lower") if finite.sum() > 1 else 0.0
            usual = max(float(others), sent)
            long = np.flatnonzero(finite & (usual > 0) & (lengths > limit * usual))
            wrong |= {row: f"'{name}' is {lengths[row]:.3g} long; usual: {usual:.3g}" for row in long}
        reasons = {int(row): why for row, why in wrong.items()} | reasons
    return reasons, told[: len(numbers)]


def _lengths(rows: Tensor) -> Tensor:
    """(k,) in float64, where 10³⁰ squared is a number; NaN or infinite where any value of the row is."""
    lengths: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=torch.float64)
    return lengths


def _sent(down: Record) -> Iterator[Tensor]:
    """The usual length of each model that silos were sent."""
    for name, about in described(down).items():
        value = getattr(down, name)
        if value is not None and about.role == "model" and len(value):
            yield _lengths(value[None] if about.kind == "shared" else value).nanmedian()


def alike(found: Mapping[str, R], axes: Mapping[str, int], model: Model) -> dict[str, str]:
    """Which of several silos' single rows have not the shapes that their fields declare, or that most have; and why."""
    wrong = {name: why for name, record in found.items() if (why := _misshapen(record, axes, model))}
    kinds = {name: _kind(record) for name, record in found.items() if name not in wrong}
    usual = Counter(kinds.values()).most_common(1)
    return wrong | {name: "its upload is not like the others'" for name, kind in kinds.items() if kind != usual[0][0]}


def _misshapen(record: Record, axes: Mapping[str, int], model: Model) -> str:
    try:
        check(record, model.dtype, **axes, rows=1)
    except BadInput as error:
        return str(error)
    return ""


def _kind(record: Record) -> tuple[object, ...]:
    return tuple((name, t.dtype, t.shape) for name, t in sorted(record.tensors().items()))
