"""Who is in a run, and what they agree on before its first round."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from coterie.data.own.agree import agree, far_values, unsound
from coterie.data.own.schema import Schema
from coterie.data.own.statistics import Statistics, description_of
from coterie.deploy.home import write_whole
from coterie.deploy.messages import Job, Transport
from coterie.deploy.patience import MANY, Patience
from coterie.deploy.remote import Declaration, declarations, descriptions, unapproved
from coterie.engine.exchange import Failure
from coterie.errors import BadInput, warn
from coterie.options import parse

MEMBERS, NEWCOMERS, SCHEMA, DIFFERENCES = "members.json", "newcomers.json", "schema.json", "differences.json"


@dataclass(frozen=True)
class Gathering:
    """The silos of a run, as its folder remembers them."""

    folder: Path
    transport: Transport
    silos: Callable[[], list[str]]  # those registered by now
    patience: Patience
    report: Callable[..., None]

    def members(self) -> dict[str, Declaration]:
        """Those who declared themselves before the first round."""
        known = self._read(MEMBERS)
        if known:
            return known
        until = time.monotonic() + self.patience.gather
        found, why = dict[str, Declaration](), dict[str, Failure]()
        while True:
            names = [name for name in self.silos() if name not in found]
            some, why = declarations(self.transport, self.folder.name, names, self.patience.reply)
            found |= some
            waiting = [name for name, failure in why.items() if not failure.reason.startswith("refused")]
            if not waiting or time.monotonic() > until:
                break
            self.report(state="waiting for silos", silos={name: why[name].reason for name in waiting})
            time.sleep(self.patience.pause)
        why |= self._too_large(found)
        found = {name: each for name, each in found.items() if name not in why}
        if not found:
            reasons = "; ".join(f"{name}: {failure.reason}" for name, failure in why.items())
            raise BadInput(f"no silo takes part ({reasons or 'none is registered'})")
        agreeing({name: found[name] for name in sorted(found)})
        if not any(each.outputs for each in found.values()):
            found, more = self._described(found)
            why |= more
        members = {name: found[name] for name in sorted(found)}
        self.report(state="gathered", silos={}, absent={name: failure.reason for name, failure in why.items()})
        self._write(MEMBERS, members)
        return members

    def await_approval(self, jobs: Sequence[Job]) -> None:
        """Have the members' owners approve what will run; it waits for them as long as for silos that are missing.

        A silo that refuses it for any other reason takes no part, and who runs it reads why before the first round.
        """
        until = time.monotonic() + self.patience.gather
        names = list(self.members())
        while names:
            why, refused = unapproved(self.transport, self.folder.name, jobs, names, self.patience.reply)
            for name, failure in refused.items():
                warn(f"{name} takes no part in this study, which it {failure.reason}")
            if not (names := list(why)):
                break
            self.report(state="waiting for approval", silos={name: failure.reason for name, failure in why.items()})
            if time.monotonic() > until:
                first = next(iter(why.values())).reason
                raise BadInput(f"{', '.join(why)}: {first}; then go on with --resume {self.folder.name}")
            time.sleep(self.patience.pause)

    def newcomers(self) -> dict[str, Declaration]:
        """Silos that are here by now and were not when the run began, if the run's model fits their data."""
        members = self.members()
        newcomers = [name for name in self.silos() if name not in members]
        if not newcomers:
            return {}
        found, _ = declarations(self.transport, self.folder.name, newcomers, self.patience.reply)
        large = self._too_large(members | found)
        found = {name: each for name, each in found.items() if name not in large}
        first, schema = next(iter(members.values())), self.schema()
        if schema is not None:
            described, _ = descriptions(self.transport, self.folder.name, list(found), self.patience.reply)
            fits = {name: each for name, each in described.items() if _fits(each, schema)}
            found = {name: _as_agreed(found[name], schema, each) for name, each in fits.items()}
        fitting = {name: each for name, each in found.items() if each.sample == first.sample}
        self._write(NEWCOMERS, self._read(NEWCOMERS) | fitting)
        return fitting

    def everyone(self) -> dict[str, Declaration]:
        """Members and newcomers."""
        return self.members() | self._read(NEWCOMERS)

    def differences(self) -> list[dict[str, Any]]:
        """How the tables of the silos differ, as was written when they agreed."""
        path = self.folder / DIFFERENCES
        found: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
        return found

    def began(self) -> float:
        """When the members had gathered, by the clock."""
        return (self.folder / MEMBERS).stat().st_mtime

    def schema(self) -> Schema | None:
        """How all silos encode their tables or pictures; None where they hold arrays."""
        path = self.folder / SCHEMA
        return Schema.read(json.loads(path.read_text("utf-8")), str(path)) if path.exists() else None

    def _too_large(self, found: dict[str, Declaration]) -> dict[str, Failure]:
        """Silos whose declared size, the weight of their models in averages, is not to be believed."""
        sizes = {name: sum(each.sizes) for name, each in found.items()}
        largest, refused = self.patience.largest_silo, dict[str, Failure]()
        for name, size in sizes.items():
            others = [n for other, n in sizes.items() if other != name]
            if largest is not None and size > largest:
                refused[name] = Failure(f"it declares {size} samples, more than --largest-silo {largest}")
            elif largest is None and others and size > MANY * median(others):
                much = f"it declares {size} samples, over {MANY} times as many as the others' median"
                refused[name] = Failure(f"{much}; let it in with --largest-silo {size}")
        return refused

    def _described(self, found: dict[str, Declaration]) -> tuple[dict[str, Declaration], dict[str, Failure]]:
        """Have silos describe their tables or pictures, and agree on one schema."""
        self.report(state="agreeing on columns")
        described, why = descriptions(self.transport, self.folder.name, sorted(found), self.patience.reply)
        while wrong := unsound(described, "label", {name: found[name].sizes for name in described}):
            for each in wrong:
                described.pop(each.silo, None)
                why[each.silo] = Failure(f"what it declares is refused: {each.column!r}: {each.what}")
        if not described:
            name, failure = next(iter(why.items()))
            raise BadInput(f"no silo describes its data; {name}: {failure.reason}")
        schema, differences = agree(described, "label", "auto")
        table = [asdict(difference) for difference in differences + far_values(described, "label")]
        write_whole(self.folder / DIFFERENCES, json.dumps(table, indent=1, ensure_ascii=False).encode())
        write_whole(self.folder / SCHEMA, json.dumps(schema.as_table(), indent=1, ensure_ascii=False).encode())
        return {name: _as_agreed(found[name], schema, described[name]) for name in described}, why

    def _read(self, file: str) -> dict[str, Declaration]:
        path = self.folder / file
        table = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return {name: parse(Declaration, each, str(path)) for name, each in table.items()}

    def _write(self, file: str, silos: dict[str, Declaration]) -> None:
        table = {name: asdict(each) for name, each in silos.items()}
        write_whole(self.folder / file, json.dumps(table, indent=1).encode())


def agreeing(members: dict[str, Declaration]) -> None:
    """Refuse silos whose data no one model fits."""
    first, *others = members.items()
    for name, each in others:
        numbers = (each.classes == 0, first[1].classes == 0)
        if bool(each.outputs) != bool(first[1].outputs):
            raise BadInput(f"of {name} and {first[0]} one holds arrays, the other a table or pictures; agree first")
        if each.sample != first[1].sample or numbers[0] != numbers[1]:
            raise BadInput(
                f"{name}'s samples are {each.sample} and {first[0]}'s {first[1].sample}: one model must fit both; "
                "agree on the data first"
            )
        if not each.classes and each.outputs != first[1].outputs:
            raise BadInput(f"{name} predicts {each.outputs} numbers and {first[0]} {first[1].outputs}; agree first")


def _as_agreed(declared: Declaration, schema: Schema, statistics: Statistics) -> Declaration:
    own = description_of(statistics).classes or ()
    by_name = dict(zip(own, declared.shares, strict=True)) if len(own) == len(declared.shares) else {}
    shares = tuple(by_name.get(name, 0) for name in schema.classes) if by_name and len(schema.classes) == 2 else ()
    return Declaration(declared.sizes, schema.shape, len(schema.classes), len(schema.classes) or 1, shares)


def _fits(statistics: Any, schema: Schema) -> bool:
    """Whether a silo that comes late has what the others agreed on."""
    own = description_of(statistics)
    names = {*own.numbers, *(own.categories or {}), *own.texts, *own.empty}
    known = schema.classes and own.classes is not None and set(own.classes) <= set(schema.classes)
    same = own.shape == schema.shape if not schema.columns else {c.name for c in schema.columns} <= names
    return bool(same and (known or (not schema.classes and own.label == "number")))
