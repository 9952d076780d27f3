"""`coterie silo repair`: what is damaged in a silo's folder is found, and mended where the budget is not lost by it.

Nothing is deleted: what cannot be read is set aside. Where it is not known what has left, the most is assumed.
"""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coterie.deploy.budget import FILE as SPENT
from coterie.deploy.budget import TRAINED, Budget, Spent, has_left
from coterie.deploy.home import close_folder, owner_only, set_aside, settings, write_whole
from coterie.deploy.ledger import FILE as LEDGER
from coterie.deploy.ledger import Ledger
from coterie.deploy.policy import Policy, read_policy
from coterie.deploy.vault import Vault
from coterie.errors import BadInput
from coterie.lock import locked

SECRET = "state/secret"


@owner_only()
def repair(folder: Path) -> tuple[list[str], list[str]]:
    """What was mended, and what is left for the silo's owner."""
    done, left = [], []
    for check in (settings, read_policy):
        try:
            check(folder)
        except BadInput as error:
            left.append(str(error))
    if (folder / "ca.crt").exists() and not (folder / "key").exists():
        left.append(f"{folder / 'key'}: missing; restore it, or make another with `coterie silo rotate` to be enrolled")
    with locked(folder / ".lock"):  # nothing is answered meanwhile
        done += _mended_budget(folder)  # first: it counts what a damaged ledger still holds
        done += Ledger(folder).mend()
        for run in sorted(path for path in (folder / "state").glob("*") if path.is_dir()):
            done += Vault(folder / "state", run.name).mend()
        done += _mended_secret(folder / SECRET)
    close_folder(folder)
    return done, left


def _mended_budget(folder: Path) -> list[str]:
    """What was spent, counted anew from the ledger where the count is lost; uploads count as made without noise."""
    path, lines = folder / SPENT, _legible(folder / LEDGER)
    try:
        if path.exists() or not has_left(folder):
            Budget(folder, Policy()).spent()
            return []
        why = "missing"
    except BadInput:
        why = f"damaged, set aside as {set_aside(path).name}"
    counted = _answers(lines)
    spent = Spent(answers=sum(counted.values()), bare=sum(n for kind, n in counted.items() if kind in TRAINED))
    write_whole(path, json.dumps(asdict(spent)).encode())
    known = f"at least {spent.answers} answers, {spent.bare} of them uploads, taken to be without noise"
    remedy = "put the newest copy there if you have one: with an epsilon in silo.toml nothing trained leaves until then"
    return [f"{SPENT}: {why}; counted anew from the ledger: {known}; {remedy}"]


def _answers(lines: list[dict[str, Any]]) -> Counter[str]:
    """How many answers a silo has written down, by kind; a field that is there twice is of two."""
    fields = Counter(
        tuple(str(line.get(key)) for key in ("kind", "run", "round", "attempt", "field")) for line in lines
    )
    answers = dict[tuple[str, ...], int]()
    for (*about, _), times in fields.items():
        answers[tuple(about)] = max(times, answers.get(tuple(about), 0))
    counted = Counter[str]()
    for (kind, *_), times in answers.items():
        counted[kind] += times
    return counted


def _mended_secret(path: Path) -> list[str]:
    """The secret that noise is drawn from is made anew where it is none: half of one could be guessed."""
    if not path.exists() or (path.is_file() and len(path.read_bytes()) == 64):
        return []
    return [f"{SECRET}: damaged, set aside as {set_aside(path).name}; another is made"]


def _legible(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger that can be read, whatever became of the others."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and all(isinstance(value, str | int | list) for value in entry.values()):
            found.append(entry)
    return found
