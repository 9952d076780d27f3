"""The folders of finished runs, by study and cell, and what each had otherwise than the built-in study."""

import json
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from coterie import toml
from coterie.errors import BadInput
from coterie.runs.joined import ordered
from coterie.studies import study as studies

NO_DIFFERENCE = ("seeds", "measured", "about", "shows")  # how often, and not what


@dataclass
class Cell:
    """All that was run of one cell of a study."""

    name: str
    tables: list[dict[str, Any]] = field(default_factory=list)  # study.toml of each folder
    summaries: list[dict[str, Any]] = field(default_factory=list)  # its summary.json
    folders: list[Path] = field(default_factory=list)

    def add(self, folder: Path, table: dict[str, Any], summary: dict[str, Any]) -> None:
        """One more folder."""
        for method, scores in summary["methods"].items():
            twice = {each["seed"] for each in scores["per_seed"]} & set(self.seeds(method))
            if twice:
                raise BadInput(
                    f"{folder}: {method} with seed {min(twice)} is in another folder as well; give one of them"
                )
        self.folders.append(folder)
        self.tables.append(table)
        self.summaries.append(summary)

    def methods(self) -> list[str]:
        """In the order of the study, then as they come."""
        ran = dict.fromkeys(method for summary in self.summaries for method in summary["methods"])
        return ordered(self.tables[0]["name"], ran)

    def published(self, key: str = "published") -> dict[str, float]:
        """The paper's figures, which are of the full scale, of all methods that were run."""
        tables = [table for table in self.tables if table.get("scale") != "small"]
        return {method: figure for table in tables for method, figure in table.get(key, {}).items()}

    def of(self, method: str) -> list[dict[str, Any]]:
        """A method's scores in each folder that has it."""
        return [summary["methods"][method] for summary in self.summaries if method in summary["methods"]]

    def seeds(self, method: str) -> list[int]:
        """The seeds it was run with."""
        return sorted(each["seed"] for scores in self.of(method) for each in scores["per_seed"])

    def values(self, method: str, score: str) -> list[float]:
        """A score of every seed; none where some seed has none."""
        found = [each.get(score) for scores in self.of(method) for each in scores["per_seed"]]
        return [] if None in found else found  # type: ignore[return-value]

    def per_silo(self, method: str) -> dict[str, float]:
        """Every silo's score, a mean over all seeds."""
        parts = [(len(scores["per_seed"]), scores["per_silo"]) for scores in self.of(method)]
        silos = [silo for silo in parts[0][1] if all(silo in each for _, each in parts)]
        return {silo: sum(n * each[silo] for n, each in parts) / sum(n for n, _ in parts) for silo in silos}


def read(folders: Iterable[Path]) -> dict[str, dict[str, Cell]]:
    """The runs by study and cell."""
    found: dict[str, dict[str, Cell]] = {}
    for folder in folders:
        try:
            table = tomllib.loads((folder / "study.toml").read_text("utf-8"))
            summary = json.loads((folder / "summary.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(f"{folder}: not the folder of a finished run ({error})") from None
        _with_last_cloud(summary, folder)
        name = " ".join(filter(None, (table.get("cell"), table.get("scale"))))
        found.setdefault(table["name"], {}).setdefault(name, Cell(name)).add(folder, table, summary)
    return found


def _with_last_cloud(summary: dict[str, Any], folder: Path) -> None:
    """The last round of the models on the server, which summaries had not always."""
    lacking = [
        (method, seed)
        for method, scores in summary["methods"].items()
        for seed in scores["per_seed"]
        if "bmta_cloud" in seed and "last_cloud" not in seed
    ]
    results = pd.read_parquet(folder / "results.parquet") if lacking else pd.DataFrame()
    for method, seed in lacking:
        run = results[(results["method"] == method) & (results["seed"] == seed["seed"])]
        cloud = run[(run["measure"] == "accuracy_cloud") & (run["split"] == "test")]
        seed["last_cloud"] = 100 * float(cloud.loc[cloud["round"] == cloud["round"].max(), "value"].mean())


def built_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """The cell of the built-in study that a run was one of, with every default; nothing for a study of one's own."""
    try:
        whole = studies.read(table["name"])
        return studies.check(studies.select(whole, table.get("cell"), table.get("scale", "full"))).as_table()
    except BadInput:
        return {}


LATER = {  # keys that studies had not always, and what a run without them had
    "measure.by": None, "measure.positive": None, "train.patience": 0, "train.class_weight": "none",
    "train.schedule_rounds": 0, "data.resize": 0, "data.mean": [], "data.deviation": [], "data.test": 0,
    "first": "budget", "train.keep_features": None, "train.round_samples": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """What the code does otherwise since a commit, on purpose."""

    what: str
    methods: tuple[str, ...] = ()  # none: all
    scores: tuple[str, ...] = ()  # that it is seen in, none: all figures

    def of(self, table: Mapping[str, Any], label: str) -> bool:
        """Whether a study's method is one of those."""
        return not self.methods or table["methods"][label].get("method", label) in self.methods


SINCE = {  # by commit; the summary of a kept run lists those that it `lacks`
    "947ae85": Change(
        "the pull is an exact proximal step",
        ("fedprox", "fedprox-ft", "ditto", "pfedme", "fedamp", "heurfedamp", "mocha"),
    ),
    "5488081": Change(
        "attention goes by trained parameters, no longer by BatchNorm's statistics", ("fedamp", "heurfedamp", "fedacs")
    ),
    "99aaa6f": Change(
        "of rounds that are level on validation data the one with the lowest loss is picked",
        scores=("val_picked", "picked_round"),
    ),
    "6ef6bb6": Change("a candidate's temperature takes more rows to lie below 1", ("stack",)),
    "7c46559": Change(
        "with momentum the pull is no stronger in the first steps of a round than in its last",
        ("fedprox", "fedprox-ft", "ditto", "mr-mtl", "fedamp", "heurfedamp", "mocha"),
    ),
}


def changed_since(table: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """What the code does otherwise since a kept run was made, and of which of its methods."""
    found = []
    for commit in summary.get("lacks", ()):
        change = SINCE[commit]
        methods = [label for label in table["methods"] if change.of(table, label)]
        if methods:
            found.append(f"{change.what} ({', '.join([*(methods if change.methods else ()), commit])})")
    return found


def differences(table: Mapping[str, Any], ran: Collection[str] = ()) -> list[str]:
    """What a run had otherwise than the built-in study has it; `ran` are methods that other runs of its cell have."""
    wanted = built_in(table)
    if not wanted:
        return []
    found, missing = [], [method for method in wanted["methods"] if method not in table["methods"]]
    if nowhere := [method for method in missing if method not in ran]:
        found.append(f"without {', '.join(nowhere)}")
    ours, theirs = toml.flat(table), toml.flat(wanted)
    for key in sorted(ours.keys() | theirs.keys()):
        known = key.split(".")
        where = known[0] == "engine" and known[-1] != "precision"  # on which alone of these results depend
        if where or known[-1] in NO_DIFFERENCE or known[0].startswith("published") or known[:2][-1] in missing:
            continue
        mine, built = ours.get(key), theirs.get(key)
        if key not in ours and (name := key if key in LATER else known[-1]) in LATER:
            idle = name == "first" and f"{'.'.join(known[:-1])}.budget" not in ours
            mine = built if LATER[name] is None or idle else LATER[name]
        if key == "train.schedule_rounds":  # 0 is as many as there are, which is nothing where no schedule is
            mine, built = mine or ours["train.rounds"], built or theirs["train.rounds"]
            mine = built if ours.get("train.schedule") == "constant" else mine
        if mine != built:
            found.append(f"{key} = {'none' if mine is None else mine} (study: {'none' if built is None else built})")
    return found
