"""What own data cost and promise: a search for rates, splits by patient and by time, wide tables made ready.

    python bench/own_data.py rates      # six learning rates as rows of the same calls, beside six runs
    python bench/own_data.py splits     # reported accuracy beside that on new patients, and on the next quarter
    python bench/own_data.py wild       # one value of 9.9e8 in one silo: what it does to the errors of the others
    python bench/own_data.py starts     # the verdict on README's hospitals from other rounds and seeds
    python bench/own_data.py ready      # 4 silos x 100 rows x 2,000 columns, from files to tensors
    python bench/own_data.py edges      # rates beyond those that a search tries, on README's hospitals
    python bench/own_data.py large      # the default comparison where one silo has 1.5 million rows x 30 columns
    python bench/own_data.py large --sizes 500000,500000,500000 [--set train.round_samples=0 …]

Seconds are those of the processor, so that a busy machine tells the same; `large` prints those of the clock, too.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd

import coterie as co
from coterie.api import Experiment
from coterie.data.own.gather import from_frame
from coterie.data.own.ready import OwnData, split
from coterie.engine.rounds import Progress
from coterie.methods import make
from coterie.run import tuning
from coterie.run.experiment import prepare, run_into
from coterie.run.tuning import GRID, Simulated, search
from coterie.studies.own import OWN, on_folder
from coterie.studies.study import check, override

EXAMPLE = Path(__file__).parents[1] / "examples" / "hospitals"
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
ROUNDS = 20
WILD = 9.9e8
DRAWS = 5  # of the data that are split
Made = Callable[[int], pd.DataFrame]  # a silo's table, by its seed


def rates() -> None:
    """FedAvg on the example's hospitals for 20 rounds."""
    study = check(on_folder(None, EXAMPLE, {"label": "outcome", "drop": ["patient", "cost"]}))
    _, federation = prepare(study, 0)

    def seconds(*groups: tuple[float, ...]) -> float:
        began = time.process_time()
        for group in groups:
            heat = Simulated(federation, make("fedavg", {}), federation.training, group)
            for round in range(ROUNDS):
                heat.advance(round)
        return time.process_time() - began

    seconds((0.1,))  # a first call compiles and allocates
    together, apart = seconds(RATES), seconds(*((rate,) for rate in RATES))
    print(f"six rates, {ROUNDS} rounds: {together:.2f} s together, {apart:.2f} s one by one ({apart / together:.1f}x)")


def patients(seed: int, count: int, each: int) -> pd.DataFrame:
    """Patients that come several times: their visits are alike, and what they have hardly depends on what is seen."""
    rng = np.random.default_rng(seed)
    who, body = np.repeat(np.arange(count), each), rng.normal(size=(count, 20))
    ill = body[:, 0] + 2 * rng.normal(size=count) > 0
    frame = pd.DataFrame(body[who] + 0.05 * rng.normal(size=(len(who), 20)), columns=[f"x{i}" for i in range(20)])
    return frame.assign(patient=who, ill=np.where(ill[who], "yes", "no"))


def quarters(seed: int, when: range, each: int) -> pd.DataFrame:
    """A rule that turns from quarter to quarter of a year."""
    rng = np.random.default_rng([seed, when[0]])
    quarter = np.repeat(np.array(when), each)
    x, turn = rng.normal(size=(len(quarter), 2)), quarter * np.pi / 32
    y = np.where(x[:, 0] * np.cos(turn) + x[:, 1] * np.sin(turn) + 0.3 * rng.normal(size=len(x)) > 0, "up", "down")
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "quarter": quarter, "ill": y})


def splits() -> None:
    """Six silos that train alone, split at random and as the use is, for several draws of their data."""
    for name, options in {"at random": {"drop": ["patient"]}, "--group patient": {"group": "patient"}}.items():
        _report(
            f"repeated patients, {name}", options, lambda s: patients(s, 800, 3), lambda s: patients(s + 7, 2000, 1)
        )
    for name, options in {"at random": {"drop": ["quarter"]}, "--time quarter": {"time": "quarter"}}.items():
        _report(
            f"drift, {name}", options, lambda s: quarters(s, range(8), 200), lambda s: quarters(s, range(8, 9), 2000)
        )


def _report(what: str, options: dict[str, Any], seen: Made, new: Made) -> None:
    found = []
    for draw in range(DRAWS):
        seeds = {f"silo-{i}": 100 * draw + i for i in range(6)}
        silos = co.silos({name: seen(seed) for name, seed in seeds.items()}, label="ill", **options)
        result = co.Federation(silos, "mlp", seeds=[0]).train(
            "separate", rounds=30, lr=0.3, optimizer="sgd", weight_decay=0.0, patience=0, quiet=True
        )
        frames = {name: new(seed) for name, seed in seeds.items()}
        later = np.mean([result[name].score(frame, frame["ill"]) for name, frame in frames.items()])
        found.append((100 * result.table()["accuracy"].mean(), 100 * later))
    reported, follows = np.array(found).T
    print(
        f"{what}: reported {reported.mean():.1f}%, on what follows {follows.mean():.1f}%, "
        f"apart by {np.abs(reported - follows).max():.1f} points at most in {DRAWS} draws"
    )


def costs(seed: int) -> pd.DataFrame:
    """A number to predict from three others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(300, 3))
    y = 1000 + 100 * (x @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=300))
    return pd.DataFrame({"age": 50 + 15 * x[:, 0], "dose": 0.1 * x[:, 1], "score": x[:, 2], "cost": y})


def wild() -> None:
    """Five silos, the default comparison, one training row of one silo with a wild feature and a wild label.

    Rates are those that were found without it, so that no second search adds what two searches differ by anyway. Beside
    it an ordinary row of another draw in the same place.
    """
    ratios = dict[str, list[pd.DataFrame]](wild=[], ordinary=[])
    with tempfile.TemporaryDirectory() as folder:
        for draw in range(DRAWS):
            tables = {f"silo-{i}": costs(100 * draw + i) for i in range(5)}
            row = split(from_frame("silo-2", tables["silo-2"], "cost", (), "silo-2"), OwnData(label="cost"), 0).train[0]
            spoilt, other = tables["silo-2"].copy(), tables["silo-2"].copy()
            spoilt.loc[row, ["age", "cost"]] = WILD
            other.loc[row] = costs(100 * draw + 50).loc[row]
            plain, found = _errors(Path(folder, f"{draw}"), tables, {**OWN, "seeds": [0]})
            for name, table in (("wild", spoilt), ("ordinary", other)):
                made, _ = _errors(Path(folder, f"{draw}-{name}"), tables | {"silo-2": table}, found)
                ratios[name].append((made / plain).drop(index="silo-2"))
    for name, each in ratios.items():
        every, mean = pd.concat(each), sum(each[1:], each[0]) / len(each)
        print(
            f"{name}: rmse of the other four silos {every.min().min():.3f} to {every.max().max():.3f} of what it is "
            f"without, in the mean of {DRAWS} draws {mean.min().min():.3f} to {mean.max().max():.3f}; "
            f"{every.shape[1]} methods"
        )
        print(mean.round(3).to_string())


def _errors(
    folder: Path, tables: dict[str, pd.DataFrame], study: dict[str, Any]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rmse of silos by method, and the study with all that was found."""
    folder.mkdir()
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    data = study.get("data", {}) | {"name": "own", "path": str(folder), "label": "cost"}
    result = Experiment(check({**study, "data": data})).run(quiet=True)
    return result.per_silo(), result.run.study


def starts() -> None:
    """README's hospitals by the default comparison: most rounds and the seeds that a user may begin with."""
    data = {"name": "own", "path": str(EXAMPLE), "label": "outcome", "drop": ["patient", "cost"]}
    for rounds, seeds in product(("auto", 40, 100), ("auto", [3, 4, 5], [6, 7, 8])):
        table = {**OWN, "data": data, "train": {**OWN["train"], "rounds": rounds}, "seeds": seeds}
        verdict = Experiment(check(table)).run(quiet=True).run.verdict
        outcomes = Counter(each["outcome"] for each in verdict["silos"])
        of = verdict["methods"][verdict["judged"]]
        found = ", ".join(f"{many} {outcome}" for outcome, many in sorted(outcomes.items()))
        print(
            f"rounds {rounds}, seeds {seeds}: {verdict['chosen']}, gain {of['gain']:.1f} [{of['gain_low']:.1f}, "
            f"{of['gain_high']:.1f}], {found}",
            flush=True,
        )


def ready() -> None:
    """Tables wider than they are long."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for silo in range(4):
            table = pd.DataFrame(rng.normal(size=(100, 2000)).round(4), columns=[f"x{i}" for i in range(2000)])
            table.assign(y=rng.choice(["yes", "no"], 100)).to_csv(Path(folder, f"silo-{silo}.csv"), index=False)
        began = time.process_time()
        prepare(check({**OWN, "data": {"name": "own", "path": folder, "label": "y"}}), 0)
        print(f"4 silos x 100 rows x 2,000 columns: ready in {time.process_time() - began:.1f} s")


def edges() -> None:
    """README's hospitals with sgd's rates 30 and 100 among those that are tried: what each is worth by round."""
    study = check(on_folder(None, EXAMPLE, {"label": "outcome", "drop": ["patient", "cost"]}))
    study, federation = prepare(study, 0)
    wider = {**GRID, "sgd": (*GRID["sgd"], 30.0, 100.0)}
    with patch.object(tuning, "GRID", wider):
        for label in study.methods:
            if keys := study.searched(label):
                method, training = study.methods[label], study.training_of(label)
                best, tried = search(federation, method, training, keys, lambda progress: None)
                high = tried[(tried["optimizer"] == "sgd") & (tried["lr"] >= 3)]
                print(f"{label}: takes {best['optimizer']} {best['lr']:g}; minus the mean validation loss by round:")
                print(high.pivot_table(index="lr", columns="round", values="score").round(3).to_string())


def large(sizes: Sequence[int], changes: Sequence[str]) -> None:
    """The default comparison on large silos: seconds of each phase, and the accuracy of methods and plain models."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as out:
        rng, rule = np.random.default_rng(0), np.random.default_rng(1).normal(size=30) * 0.4
        for i, rows in enumerate(sizes):
            _table(rng, rows, rule).to_parquet(Path(folder, f"silo-{i}.parquet"))
        phases = [Phase.now("reading")]

        def begins(name: str) -> None:
            before, after = phases[-1], Phase.now(name)
            clock, worked = after.clock - before.clock, after.worked - before.worked
            print(f"{before.name}: {clock:.0f} s, {worked:.0f} s of the processor", flush=True)
            phases.append(after)

        def watch(method: str, seed: int, progress: Progress) -> None:
            name = "search" if progress.tuning else "rounds"
            if phases[-1].name != name:
                begins(name)
            if not progress.tuning and progress.round == progress.rounds:
                ended[method, seed] = progress.round
                if len(ended) == len(study.methods):
                    begins("baselines, verdict, report")

        ended = dict[tuple[str, int], int]()
        table = override(on_folder(None, Path(folder), {"label": "y"}) | {"seeds": [0]}, changes)
        study = check(table)
        finished = run_into(study, Path(out, "run"), "", watch, print)
        begins("end")
        each = {**finished.summary["baselines"], **finished.summary["methods"]}
        for name, found in each.items():
            shown = ", ".join(f"{m} {found['measures'][m]['test']:.4f}" for m in ("accuracy", "log_loss"))
            print(f"{name}: {shown}; rounds {ended.get((name, 0), '-')}")


class Phase(NamedTuple):
    """A part of a run that begins now."""

    name: str
    clock: float
    worked: float  # seconds of the processor, also of processes that have ended

    @classmethod
    def now(cls, name: str) -> "Phase":
        times = os.times()
        return cls(name, times.elapsed, times.user + times.system + times.children_user + times.children_system)


def _table(rng: np.random.Generator, rows: int, rule: np.ndarray) -> pd.DataFrame:
    """30 numbers and a label that depends on them, on two of them together, and a little on the silo."""
    x, own = rng.normal(size=(rows, 30)).astype(np.float32), 0.3 * rng.normal(size=5)
    signal = x @ rule + 0.8 * x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + x[:, :5] @ own
    table = pd.DataFrame(x, columns=[f"x{i}" for i in range(30)])
    return table.assign(y=np.where(rng.random(rows) < 1 / (1 + np.exp(-signal)), "yes", "no"))


PARTS = {"rates": rates, "splits": splits, "wild": wild, "starts": starts, "ready": ready, "edges": edges}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "large"])
    parser.add_argument("--sizes", default="1500000,20000,5000", help="of large: rows of each silo")
    parser.add_argument("--set", action="append", default=[], help="of large: key.path=value of the study")
    given = parser.parse_args()
    if given.part == "large":
        large([int(size) for size in given.sizes.split(",")], given.set)
    else:
        PARTS[given.part]()
