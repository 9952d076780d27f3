"""What own data cost and promise: a search for rates, splits by patient and by time, wide tables made ready.

    python bench/own_data.py rates      # six learning rates as rows of the same calls, beside six runs
    python bench/own_data.py splits     # reported accuracy beside that on new patients, and on the next quarter
    python bench/own_data.py wild       # one value of 9.9e8 in one silo: what it does to the errors of the others
    python bench/own_data.py ready      # 4 silos x 100 rows x 2,000 columns, from files to tensors

Seconds are those of the processor, so that a busy machine tells the same.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import coterie as co
from coterie.data.own.gather import from_frame
from coterie.data.own.ready import OwnData, split
from coterie.methods import make
from coterie.run.experiment import prepare
from coterie.run.tuning import Simulated
from coterie.studies.own import OWN, on_folder
from coterie.studies.study import check

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
    """Five silos, the default comparison, one training row of one silo with a wild feature and a wild label."""
    tables = {f"silo-{i}": costs(i) for i in range(5)}
    spoilt = tables["silo-2"].copy()
    row = split(from_frame("silo-2", spoilt, "cost", (), "silo-2"), OwnData(label="cost"), 0).train[0]
    spoilt.loc[row, ["age", "cost"]] = WILD
    errors = [
        co.Federation(co.silos(each, label="cost"), seeds=[0]).compare(quiet=True).per_silo().drop(index="silo-2")
        for each in (tables, tables | {"silo-2": spoilt})
    ]
    ratio = errors[1] / errors[0]
    print(
        f"{WILD:.1e} as a feature and as the label of one row: rmse of the other four silos {ratio.min().min():.3f} to "
        f"{ratio.max().max():.3f} of what it is without, over {ratio.shape[1]} methods"
    )
    print(ratio.round(3).to_string())


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


PARTS = {"rates": rates, "splits": splits, "wild": wild, "ready": ready}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    PARTS[parser.parse_args().part]()
