"""Kept runs once more: does this code still give what the pages show?

    python bench/again.py [NAME...] [--seeds 0] [--methods fedamp,fedem] [--rounds 20] [--out runs/again]

Each kept study of these names (of none: all whose device was a CPU) is run as it was kept; keys that came later take
what they meant then. For each method and seed a line: how far the test figures of the rounds that both have are apart,
and, of a run of full length, the scores that pages show. The mean over silos may be apart by rounding, which training
makes larger, and which moves single predictions: --points of it are allowed. The exit code is 1 where something is
further apart, but for what was changed on purpose since, which the page of the run says. With --rounds a run is the
beginning of the kept one, and compared as far as it goes.

Every method with each seed is a run of its own in a folder; what is done is not run again, and what was stopped goes
on, also by other code: the commits are printed last. Remove the folder to begin anew.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from math import inf, nan
from pathlib import Path
from typing import Any

import pandas as pd
from finished_runs import LATER, SINCE, Change
from page_parts import SCORES
from results import RUNS

from coterie import toml
from coterie.run import experiment
from coterie.runs.folder import UNFINISHED
from coterie.studies import study as studies

KEPT = Path(__file__).resolve().parents[1] / RUNS
POINTS = 0.5  # of accuracy, a mean over silos
PLACES = 6  # that are kept of an accuracy
SAME = 1.5 * 10**-PLACES
SAME_SCORE = 1.5e-4  # to four places
LOOSE = {"picked_round", "bottom_decile"}  # scores that single silos move
KEYS = ["round", "silo", "measure"]


@dataclass(frozen=True)
class Apart:
    """How far a measure is from what was kept."""

    measure: str
    rounds: int  # that both have
    since: int | None  # the first that is not the same; None: all are
    silo: float  # the most that one silo is apart in a round
    mean: float  # the most that the mean over silos is apart in a round

    def __str__(self) -> str:
        if self.since is None:
            return f"{self.measure} the same in {self.rounds} rounds"
        most = f"at most {100 * self.mean:.2f} points in the mean, {100 * self.silo:.2f} of a silo"
        return f"{self.measure} apart from round {self.since} on, {most} ({self.rounds} rounds)"


def as_then(table: Mapping[str, Any]) -> dict[str, Any]:
    """A kept study with what keys that came later meant then."""
    whole: dict[str, Any] = deepcopy(dict(table))
    for key in toml.flat(studies.check(table).as_table()).keys() - toml.flat(table).keys():
        path = key.split(".")
        name = key if key in LATER else path[-1]
        inner = whole
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        if LATER.get(name) is not None and (name != "first" or "budget" in inner):
            inner[path[-1]] = LATER[name]
    return whole


def one(table: Mapping[str, Any], method: str, seed: int, rounds: int | None) -> studies.Study:
    """One method of a kept study with one seed; with fewer rounds the beginning of what it was."""
    whole = as_then(table) | {"seeds": [seed]}
    train = whole["train"]
    if rounds is not None and rounds < train["rounds"]:
        whole["train"] = train | {"rounds": rounds, "schedule_rounds": train.get("schedule_rounds") or train["rounds"]}
    whole["engine"] = whole["engine"] | {"models": False, "checkpoint_every": "auto"}
    return studies.check(whole, [method])


def ran(study: studies.Study, folder: Path) -> None:
    """Run a study into a folder, go on with it there, or leave it as it is done."""
    if (folder / UNFINISHED).exists():
        experiment.resume(folder, lambda *_: None)
    elif not (folder / "summary.json").exists():
        experiment.run_into(study, folder, "bench/again.py", lambda *_: None)


def tested(folder: Path, method: str, seed: int) -> pd.Series:
    """The test accuracies of a run by round, silo and measure, as they are kept."""
    found = pd.read_parquet(folder / "results.parquet")
    found = found[(found["split"] == "test") & found["measure"].str.startswith("accuracy")]
    found = found[(found["method"] == method) & (found["seed"] == seed)]
    return found.set_index(KEYS)["value"].round(PLACES)


def compared(kept: pd.Series, now: pd.Series) -> Iterator[Apart]:
    """Each measure that was kept, at the rounds that both have; what one of them lacks is infinitely apart."""
    shared = set(kept.index.unique("round")) & set(now.index.unique("round"))
    both = pd.concat({"kept": kept, "now": now}, axis=1)
    for measure, each in both[both.index.isin(shared, "round")].groupby("measure"):
        if each["kept"].isna().all():  # it came later
            continue
        off = (each["now"] - each["kept"]).abs().fillna(inf)
        means = each.groupby("round").agg(lambda values: values.mean(skipna=False))
        apart = off.index[off > SAME].unique("round")
        yield Apart(
            measure=str(measure),
            rounds=len(means),
            since=int(apart.min()) if len(apart) else None,
            silo=float(off.max()),
            mean=float((means["now"] - means["kept"]).abs().fillna(inf).max()),
        )


def scores(folder: Path, method: str, seed: int) -> dict[str, float]:
    """What pages show of a method with a seed."""
    every = json.loads((folder / "summary.json").read_text("utf-8"))["methods"][method]["per_seed"]
    found = next(each for each in every if each["seed"] == seed)
    return {score: found[score] for score in (*SCORES, "picked_round", "missing") if score in found}


def moved(kept: Mapping[str, float], now: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The scores that were kept and are not the same now."""
    other = {score: (value, round(now.get(score, nan), 4)) for score, value in kept.items()}
    return {score: (was, new) for score, (was, new) in other.items() if not abs(new - was) <= SAME_SCORE}


def beyond(
    apart: Sequence[Apart], changed: Mapping[str, tuple[float, float]], points: float, changes: Sequence[Change] = ()
) -> bool:
    """Whether a method is further from what was kept than rounding takes it, and than was changed on purpose."""
    if any(not change.scores for change in changes):
        return False
    same = bool(apart) and all(each.since is None for each in apart)
    judged = changed.keys() - {score for change in changes for score in change.scores} - (set() if same else LOOSE)
    allowed = 0.0 if same else points  # what is the same has no other score by rounding
    far = [score for score in judged if not abs(changed[score][1] - changed[score][0]) <= allowed]
    return bool(far) or not apart or any(not 100 * each.mean <= points for each in apart)


def on_a_cpu(folder: Path) -> bool:
    """Whether a kept run was made on one."""
    return str(json.loads((folder / "summary.json").read_text("utf-8"))["device"]).startswith("cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, compare, print; 1 where a method is further from what was kept than it may be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="kept runs; none: all that were made on a CPU")
    parser.add_argument("--seeds", help="of those that were kept, none: all")
    parser.add_argument("--methods", help="of those that were kept, none: all")
    parser.add_argument("--rounds", type=int, help="the first of them, none: all")
    parser.add_argument("--points", type=float, default=POINTS, help="of accuracy that rounding may come to")
    parser.add_argument("--runs", type=Path, default=KEPT, help="where the kept runs are")
    parser.add_argument("--out", type=Path, default=Path("runs/again"), help="where the new ones go")
    given = parser.parse_args(arguments)
    held = {path.parent.name: path.parent for path in sorted(given.runs.glob("*/summary.json"))}
    if unknown := [name for name in given.names if name not in held]:
        parser.error(f"{given.runs} keeps no {', '.join(unknown)}")
    names = given.names or [name for name, path in held.items() if on_a_cpu(path)]
    far, commits = list[str](), set[str | None]()
    for name in names:
        kept = given.runs / name
        table = tomllib.loads((kept / "study.toml").read_text("utf-8"))
        lacks = json.loads((kept / "summary.json").read_text("utf-8")).get("lacks", ())
        seeds = [seed for seed in table["seeds"] if given.seeds is None or str(seed) in given.seeds.split(",")]
        methods = [each for each in table["methods"] if given.methods is None or each in given.methods.split(",")]
        for seed, method in product(seeds, methods):
            study = one(table, method, seed, given.rounds)
            rounds = study.training.rounds
            folder = given.out / name / f"{method}-seed{seed}-rounds{rounds}"
            ran(study, folder)
            apart = list(compared(tested(kept, method, seed), tested(folder, method, seed)))
            whole = rounds == table["train"]["rounds"]
            changed = moved(scores(kept, method, seed), scores(folder, method, seed)) if whole else {}
            says = [str(each) for each in apart] + [f"{s} {was} -> {new}" for s, (was, new) in changed.items()]
            changes = [SINCE[commit] for commit in lacks if SINCE[commit].of(table, method)]
            if beyond(apart, changed, given.points, changes):
                far.append(f"{name} {method} seed {seed}")
                says.append("OTHERWISE")
            if changed or any(each.since is not None for each in apart):
                says += [f"since then {change.what}" for change in changes]
            print(f"{name} {method} seed {seed}: {'; '.join(says)}", flush=True)
            commits.add(json.loads((folder / "summary.json").read_text("utf-8"))["commit"])
    if not commits:
        parser.error("nothing of these names, seeds and methods is kept")
    print(f"at {', '.join(sorted(str(each) for each in commits))}: {len(far)} further apart than {given.points} points")
    return int(bool(far))


if __name__ == "__main__":
    sys.exit(main())
