"""Every upload is judged before it counts: what is no model, or absurdly long, is as if it had never arrived.

A length is compared with the cohort's median of it or, where that is shorter, with the length of the model that was
sent: late in training the changes of most silos may be next to nothing, and the one that still learns is no rogue. From
models at zero, or next to it, silos go as far as their steps take them: an upload may also be longer than what the silo
was sent by the median of that, times how many more samples than the median the silo has, times HONEST.

What a silo sends again is known by its lengths: two trainings never end in the same to the last bit. It is a replay if
the silo was sent something else since; sent the same and sending the same, it has converged. What is left: a silo that
repeats an upload older than its last one, or changes a bit of it, is not caught; and where training ends at one point
from wherever it starts (a convex loss, whole batches, many epochs), or an APPLE silo has gradients of exactly zero, an
honest silo is taken for a replay in the rounds in which it does. Methods that may leave what was sent aside are exempt.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.codec import check
from coterie.engine.exchange import CohortPart, Engine, Rejected, Replies
from coterie.engine.method import Cohort, Method
from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.wire import Record, described, held

R = TypeVar("R", bound=Record)
Verdicts = tuple[dict[int, str], np.ndarray, np.ndarray]
HONEST = 3.0  # times as far as its like an honest silo may go with as many samples
MOST_SAMPLES = 100.0  # times the median that count: a rogue may declare any number


def judged(
    method: Method,
    engine: Engine,
    asked: Tensor,
    down: Any,
    replies: Replies,
    limit: float,
    heard: dict[str, list[list[float]]],
) -> Replies:
    """The replies that count, their uploads unpacked; the other silos go back to where they were before the round.

    `asked` are the silos that `down` was sent to; `limit` is `[train] norm_limit`; `heard` has the lengths of each
    silo's last upload that counted and of what it was then sent, and is kept up to date.
    """
    cohort = replies.cohort
    if not len(cohort.ids):
        return replies
    if len(cohort.ids) < len(asked):
        down = down.take(torch.searchsorted(asked, cohort.ids))
    up = method.unpacked(down, replies.up)
    reasons, lengths, marks = verdicts(up, down, cohort, limit, share=replies.share)
    names = cohort.names
    for row, (came, given) in enumerate(zip(lengths.T.tolist(), marks.T.tolist(), strict=True)):
        last = heard.get(names[row])
        again = last is not None and any(came) and last[0] == came and last[1] != given
        if row not in reasons and again and not method.from_own:
            reasons[row] = "it is what the silo last sent"
        elif row not in reasons:
            heard[names[row]] = [came, given]
    good = torch.tensor([row for row in range(len(cohort.ids)) if row not in reasons], dtype=torch.int64)
    good = good.to(cohort.ids.device)
    left = up.take(good if replies.share is None else replies.share.kept(good)) if reasons else up
    counted = replace(replies, cohort=replace(cohort, ids=cohort.ids[good]), up=left)
    if len(good):
        try:
            counted = _confirmed(method, engine, replace(cohort, ids=asked), counted)
        except BadInput as error:
            reasons |= dict.fromkeys(good.tolist(), str(error))
            counted = replace(counted, cohort=replace(cohort, ids=cohort.ids[:0]), up=None)
    engine.settle(cohort.ids[list(reasons)])
    rejected = {names[row]: Rejected(reason) for row, reason in sorted(reasons.items())}
    return replace(counted, failures={**replies.failures, **rejected}) if reasons else counted


def _confirmed(method: Method, engine: Engine, asked: Cohort, replies: Replies) -> Replies:
    """The uploads as they can be taken in, after a second exchange where the method has one."""
    question = method.confirm(asked, replies.cohort, replies.up)
    if question is None:
        return replies
    answers = engine.confirm(replies.cohort, question)
    return replace(
        replies,
        up=method.summed(asked, replies.cohort, replies.up, answers.cohort, answers.up),
        bytes_up=replies.bytes_up + answers.bytes_up,
        bytes_down=replies.bytes_down + answers.bytes_down,
    )


def verdicts(
    up: Record, down: Record, cohort: Cohort, limit: float, inside: str = "", share: CohortPart | None = None
) -> Verdicts:
    """The rows that do not count, and why; and the lengths of what each silo uploaded and was sent: (fields, k).

    A record inside the upload is compared with the record inside `down` of the same name, if there is one. With a
    `share` the two have its rows alone.
    """
    reasons, lengths, marks = _verdicts(up, down, cohort, limit, inside, share)
    for name in held(up):
        sent = getattr(down, name) if name in held(down) else down
        more, *other = verdicts(getattr(up, name), sent, cohort, limit, f"{inside}{name}.", share)
        reasons = more | reasons
        lengths, marks = (np.concatenate(both) for both in zip((lengths, marks), other, strict=True))
    return reasons, lengths, marks


def _verdicts(
    up: Record, down: Record, cohort: Cohort, limit: float, inside: str, share: CohortPart | None
) -> Verdicts:
    about = described(up)
    named = {name: value for name in about if (value := getattr(up, name)) is not None}
    numbers = [name for name, value in named.items() if value.is_floating_point()]
    places = [name for name in named if about[name].role == "silo"]
    columns = [_lengths(named[name]) for name in numbers]
    silos = len(cohort.roster)
    columns += [((named[name] < 0) | (named[name] >= silos)).flatten(1).any(1).double() for name in places]
    if not columns:
        return {}, np.empty((0, len(cohort))), np.empty((0, len(cohort)))
    marks, models = _sent(down, len(columns[0]))
    parts = [columns, marks, models]
    here = torch.stack([each for part in parts for each in part])
    found = here if share is None else share.gathered(here.T).T
    found = torch.cat([found, cohort.sizes.to(found)[None]]).cpu()  # the round's one wait
    each = torch.split(found, [*(len(part) for part in parts), 1])
    usual_given = each[2].nanmedian(1).values.numpy()
    every, marked, given, sizes = (part.numpy() for part in each)
    sent, own = usual_given.max(initial=0.0), given.max(0, initial=0.0)
    more = np.clip(sizes[0] / max(_middle(sizes[0]), 1), 1, MOST_SAMPLES)
    reasons: dict[int, str] = {}
    for name, lengths in zip([*numbers, *places], every, strict=True):
        finite = np.isfinite(lengths)
        wrong = dict.fromkeys(np.flatnonzero(~finite), f"'{inside}{name}' is not finite")
        if name in places:
            wrong |= dict.fromkeys(np.flatnonzero(lengths), f"'{inside}{name}' names silos that do not exist")
        elif limit and about[name].has_columns:
            start = np.zeros_like(own) if about[name].role == "change" else own
            usual = max(_middle(lengths[finite]), sent)
            reach = start + HONEST * more * _middle(np.abs(lengths - start)[finite])
            allowed = np.maximum(limit * usual, reach)
            long = np.flatnonzero(finite & (usual > 0) & (lengths > allowed))
            wrong |= {row: f"'{inside}{name}' is {lengths[row]:.3g} long; usual: {usual:.3g}" for row in long}
        reasons = {int(row): why for row, why in wrong.items()} | reasons
    return reasons, every[: len(numbers)], marked


def _middle(values: np.ndarray) -> float:
    """The median. One alone has none, and of two it is the smaller: the larger cannot speak for itself."""
    return float(np.quantile(values, 0.5, method="lower")) if len(values) > 1 else 0.0


def _lengths(rows: Tensor) -> Tensor:
    """(k,) in float64, where 10³⁰ squared is a number; NaN or infinite where any value of the row is."""
    lengths: Tensor = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1, dtype=torch.float64)
    return lengths


def _sent(down: Record, k: int) -> tuple[list[Tensor], list[Tensor]]:
    """Of every field of numbers, the length of what each silo was sent; and of those with models, the model's: (k,)."""
    marks, models = list[Tensor](), list[Tensor]()
    for name, about in described(down).items():
        value = getattr(down, name)
        if value is None or not value.is_floating_point() or not value.numel():
            continue
        lengths = _lengths(value[None] if about.kind == "shared" else value)
        if about.kind == "bank":
            handed = torch.cat([lengths, lengths.new_zeros(1)])[getattr(down, about.picks)]  # -1 points at the zero
            marks.append(handed.sum(1))
            lengths = lengths.nanmedian()
        else:
            marks.append(lengths.expand(k))
        if about.role == "model":
            models.append(lengths.expand(k))
    for name in held(down):
        for known, more in zip((marks, models), _sent(getattr(down, name), k), strict=True):
            known.extend(more)
    return marks, models


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
