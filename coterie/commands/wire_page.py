"""The page `docs/wire.md`: for every method, each field that crosses, its shape and bytes, and who can see it.

    python -m coterie.commands.wire_page > docs/wire.md

Fields come from the types that the encoder accepts; bytes from one round of the embedded default study.
"""

import sys
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from coterie import toml
from coterie.data.own.label import Label
from coterie.data.own.statistics import declare
from coterie.deploy.messages import Declared, Done, Measured, Scored
from coterie.engine.judge import judged
from coterie.engine.method import Cohort, Method
from coterie.measure.predictions import RAW
from coterie.measure.tempering import GRID
from coterie.methods import METHODS, make
from coterie.run.experiment import prepare
from coterie.studies.study import check, read
from coterie.wire import About, Private, Record, described, every_field, held

SEEN = {"Up": "server", "Down": "the silo", "Private": "nobody"}
INSIDE = About("what the method itself keeps", "rows", "number", ())
COMPRESSED = ({"top_k": 0.05}, {"bits": 8})
SECURED = (("fedavg", "blind"), ("fedamp", "blind"), ("fedavg", "secagg"))
COLUMNS = "| type | field | shape | bytes | what it is | seen by |\n|---|---|---|---:|---|---|"
HEAD = """# What crosses the wire

Made by `python -m coterie.commands.wire_page > docs/wire.md`; a test fails when it is stale. `Up` is all that leaves a
silo (its encoder accepts nothing else), `Down` is what a silo is sent, `Private` never leaves it. What a silo declares
once, when it joins, and what it reports of its models is
[the same for all methods](#every-silo-whatever-the-method).

In a search for learning rates a message holds the method's fields once for each rate that still goes on, as `c0.w`,
`c1.w`, …: a silo's policy that names `w` means these too.

Bytes are those of one silo in the second round of the embedded default (`{model}`, d = {d:,} columns, {m} silos,
float32). A field without bytes is empty with the method's default options.
"""

REPORTED = """## every silo, whatever the method

It declares this once, when it joins, beside its name; `sample`, `classes` and `outputs` of tables are empty until all
silos have agreed. Measures are of its own model on its own data, one number for each split. Of a search for learning
rates it reports the loss of each candidate, and in the end the round whose model it keeps and its log-loss at a grid of
temperatures: all silos are sent the mean of these, by which a silo with few rows tempers its model as the others do.
"""

OWN_DATA = """## own tables (`coterie run --silos`)

So that all silos encode their rows alike, each declares this of its training rows, once, before the first round. With
`standardize = "silo"` the first three stay empty: each silo standardises by its own. Bytes are those of a table with
one column of numbers, one of text with two levels, and two classes; they grow with columns and levels, not with rows.
"""


def page() -> str:
    """The whole page."""
    study, federation = prepare(check(read("digits"), ["fedavg"]), seed=0)
    parts = [HEAD.format(model=study.model["name"], d=federation.model.width, m=len(federation.members))]
    linear = check(read("digits") | {"model": {"name": "linear"}}, ["fedavg"])
    methods: dict[str, Method] = {name: METHODS[name]() for name in METHODS.packaged}
    for how in COMPRESSED:
        methods[f"fedavg, compress = {toml.value(how)}"] = make("fedavg", {"compress": how})
    for name, level in SECURED:
        methods[f'{name}, [secure] level = "{level}"'] = make(name, {level: {}})
    for name, method in methods.items():
        ground = federation
        note = ""
        if method.refusal(federation.engine(method).roster, federation.model) is not None:
            _, ground = prepare(linear, seed=0)
            note = f" (bytes with a linear model, d = {ground.model.width:,})"
        engine = ground.engine(method)
        server = method.open(engine.roster, ground.model)
        everyone = torch.arange(len(engine.roster), device=ground.model.device)
        for round in range(2):
            cohort = Cohort(everyone, round, engine.roster, engine.model)
            down = method.send(server, cohort)
            replies = engine.train(cohort, down)
            up, question = replies.up, method.confirm(cohort, cohort, replies.up)
            server = method.receive(server, cohort, judged(method, engine, everyone, down, replies, 0, {}).up)
        crosses = {"Up": up.one(0), "Down": down.one(0), "Private": engine.private().one(0)}
        if question is not None:
            answers = engine.confirm(cohort, question).up
            crosses |= {"Down, then": question.one(0), "Up, then": answers.one(0)}
        parts.append(_section(name, method, note, crosses))
    parts += [_reported(), _own_data()]
    return "\n".join(parts)


def _reported() -> str:
    """What a silo sends beside a method's uploads, with the bytes of one of two classes, three splits, seven rates."""
    three, count = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    records: list[Record] = [
        Declared(sizes=three.long(), sample=count[None], classes=count, outputs=count, shares=torch.zeros(1, 2).long()),
        Measured(**dict.fromkeys(described(Measured), three)),
        Scored(loss=torch.zeros(1, 7, dtype=torch.float64)),
        Done(
            round=count,
            curve=torch.zeros(1, len(GRID), dtype=torch.float64),
            tempered=torch.zeros(1, 2 * len(RAW), dtype=torch.float64),
        ),
    ]
    return "\n".join([REPORTED, COLUMNS, *(line for each in records for line in _rows("Up", each, "server")), ""])


def _own_data() -> str:
    """What a silo declares of its own tables, with the bytes of a small one."""
    table = pd.DataFrame({"age": [61.0, None, 48.5], "ward": ["er", "icu", None]})
    label = Label("category", np.array(["ill", "well", "ill"], dtype=object))
    declared = declare(table, label, np.arange(3), "auto", shared=True, where="")
    return "\n".join([OWN_DATA, COLUMNS, *_rows("Up", declared, "server"), ""])


def _section(name: str, method: Method, note: str, crosses: Mapping[str, Record]) -> str:
    lines = [f"## {name}", "", f"{method.summary}.{note}", "", COLUMNS]
    for kind, record in crosses.items():
        lines += _rows(kind, record, SEEN[kind.partition(",")[0]])
    return "\n".join([*lines, ""])


def _rows(kind: str, record: Record, seen: str) -> list[str]:
    """A line for each field of a record."""
    inside = {name: INSIDE for name, each in held(type(record)).items() if each is Private}  # of any type
    lines, listed, tensors = list[str](), {**every_field(type(record)), **inside}, record.tensors()
    if not listed:
        lines.append(f"| {kind} | nothing | | 0 | | |")
    for name, about in listed.items():
        size = sum(t.nbytes for key, t in tensors.items() if key == name or key.startswith(f"{name}."))
        by = about.seen_by or seen
        lines.append(f"| {kind} | `{name}` | {about.shape or '1'} | {size:,} | {about.doc} | {by} |")
    return lines


if __name__ == "__main__":
    sys.stdout.write(page())
