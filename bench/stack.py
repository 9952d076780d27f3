"""Is a stack as good as the best of its members? Every member alone and the stack, on federations of several kinds.

python bench/stack.py [--on digits-groups,tables-clusters,…] [--seeds 3] [--rounds 20] [--out FILE]: of each method
the mean over silos and seeds, and the bottom decile, of test accuracy and log-loss at the round that validation data
pick; and the stack less the best single method in hindsight, with a 95% interval over silos. All train at one learning
rate. Fashion-MNIST (--on fmnist-groups, fmnist-pathological, fmnist-iid) needs its files.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from verdict import KINDS, federation

import coterie as co
from coterie.engine.rounds import Outcome
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.measure.measures import log_loss
from coterie.methods import make
from coterie.methods.stack import MEMBERS
from coterie.run.assembly import Assembly
from coterie.run.experiment import prepare
from coterie.studies.study import Study, check

SINGLE = (*MEMBERS, "fedavg")
NAMED: dict[str, dict[str, Any]] = {
    "digits-groups": {"data": {"name": "digits", "split": "groups"}, "model": {"name": "mlp"}},
    "digits-iid": {"data": {"name": "digits", "split": "iid", "silos": 10}, "model": {"name": "mlp"}},
    "synthetic": {"data": {"name": "synthetic", "silos": 30}, "model": {"name": "linear"}},
    **{
        f"fmnist-{split}": {"data": {"name": "fmnist", "split": split}, "model": {"name": "cnn"}}
        for split in ("groups", "pathological", "iid")
    },
}
TABLES = tuple(f"tables-{kind}" for kind in KINDS if kind not in ("rare", "numbers", "wide"))


def assembled(name: str, seed: int) -> Assembly:
    """The federation of that name."""
    if name.startswith("tables-"):
        rng = np.random.default_rng([seed, KINDS.index(name.removeprefix("tables-"))])
        makers, sizes = federation(name.removeprefix("tables-"), rng)
        frames = {silo: draw(size, rng) for (silo, draw), size in zip(makers.items(), sizes, strict=True)}
        found: Assembly = co.Federation(co.silos(frames, label="y"), "linear", seeds=[seed])._assembly
        return found
    table = {"name": name, "seeds": [seed], "methods": {"separate": {}}}
    study: Study = check(table | NAMED[name])
    return prepare(study, seed)[1]


def scores(outcome: Outcome, silos: Assembly) -> tuple[list[float], list[float]]:
    """Test accuracy and log-loss of every silo at the picked round."""
    assert outcome.picked is not None
    pairs = [(silo.test.y, outcome.picked.outputs["test"][silo.name]) for silo in silos.members]
    return [float((p.argmax(1) == y).mean()) for y, p in pairs], [log_loss(y, p) for y, p in pairs]


def compared(name: str, seeds: int, rounds: int) -> dict[str, Any]:
    """All methods on one federation."""
    found: dict[str, list[list[list[float]]]] = {}
    for seed in range(seeds):
        silos = assembled(name, seed)
        training = Training(rounds=rounds, local_epochs=2, batch_size=32, lr=0.1)
        for method in (*SINGLE, "stack"):
            outcome = silos.train(make(method, {}), training=training)
            found.setdefault(method, []).append([*scores(outcome, silos)])
    by = {method: np.concatenate([np.array(each) for each in runs], 1) for method, runs in found.items()}  # (2, m)
    best = max(SINGLE, key=lambda method: by[method][0].mean())
    gain = by["stack"] - by[best]
    error = 1.96 * gain.std(1, ddof=1) / np.sqrt(gain.shape[1])
    over = np.stack([gain.mean(1), gain.mean(1) - error, gain.mean(1) + error], 1)  # mean, low, high
    return {
        "federation": name, "seeds": seeds, "rounds": rounds, "best": best,
        "accuracy": {method: 100 * float(each[0].mean()) for method, each in by.items()},
        "decile": {method: 100 * float(np.quantile(each[0], 0.1)) for method, each in by.items()},
        "log_loss": {method: float(each[1].mean()) for method, each in by.items()},
        "accuracy_over_best": (100 * over[0]).tolist(), "log_loss_over_best": over[1].tolist(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="digits-groups,digits-iid,synthetic," + ",".join(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = []
    for name in given.on.split(","):
        if name not in (*NAMED, *TABLES):
            raise BadInput(f"--on {name}: known are {', '.join((*NAMED, *TABLES))}")
        found.append(compared(name, given.seeds, given.rounds))
        print(json.dumps(found[-1]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
