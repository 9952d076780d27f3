"""What privacy of records costs: silos of 2,000 rows at ε = 1, 3 and 8, beside the same without noise and beside alone.

python bench/record_privacy.py [--path FOLDER] [--seeds 0,1,2] [--methods fedavg,fedavg-local] [--epsilons 1,3,8]
[--out FILE]: Fashion-MNIST (its files in FOLDER, or fetched before), five silos of 2,000 training rows in five groups
with two dominating classes each, a linear model, 10 rounds of 2 epochs on batches of 100. Of every setting it prints
the mean over silos of test accuracy at the round that validation data pick, by seed, and the ε that was spent, at
δ = 1e-5.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from coterie.methods import make
from coterie.methods.wrappers.spent import spent
from coterie.run.experiment import prepare
from coterie.studies.study import check

DATA = {"name": "fmnist", "split": "groups", "silos": 5, "groups": 5, "sizes": [2000], "test": 1000, "dominant": 0.6}
TRAIN = {"rounds": 10, "local_epochs": 2, "batch_size": 100, "measure": ["validation", "test"]}
RATES = {"plain": 0.1, "private": 0.5}  # the best of three on another seed; clipped gradients are short
CLIP = 1.0


def settings(methods: list[str], epsilons: list[float]) -> dict[str, tuple[str, dict[str, Any]]]:
    """What is compared: by label the method and its options."""
    found: dict[str, tuple[str, dict[str, Any]]] = {"separate": ("separate", {})}
    for method in methods:
        found[method] = (method, {})
        for epsilon in epsilons:
            privacy = {"level": "record", "clip": CLIP, "epsilon": epsilon}
            found[f"{method}, ε = {epsilon:g}"] = (method, {"privacy": privacy})
    return found


def accuracy(data: dict[str, Any], seed: int, method: str, options: dict[str, Any]) -> dict[str, Any]:
    """One setting on one seed."""
    rate = RATES["private" if options else "plain"]
    table = {"name": "record", "seeds": [seed], "data": data, "model": {"name": "linear"}, "methods": {"separate": {}}}
    study, silos = prepare(check(table | {"train": TRAIN | {"lr": rate}}), seed)
    made, began = make(method, options), time.process_time()
    outcome = silos.train(made, training=study.training)
    assert outcome.picked is not None
    right = [float((outcome.picked.outputs["test"][s.name].argmax(1) == s.test.y).mean()) for s in silos.members]
    sizes = {silo.name: len(silo.train) for silo in silos.members}
    about = spent({"it": made}, {"it": study.training}, {seed: sizes}).get("it", {})
    cpu = time.process_time() - began
    return {"accuracy": 100 * sum(right) / len(right), "rows": sizes, "cpu_seconds": cpu} | about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", default="")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default="fedavg,fedavg-local")
    parser.add_argument("--epsilons", default="1,3,8")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    data = DATA | ({"path": given.path} if given.path else {})
    found = dict[str, list[dict[str, Any]]]()
    for label, (method, options) in settings(
        given.methods.split(","), [float(each) for each in given.epsilons.split(",")]
    ).items():
        found[label] = [accuracy(data, int(seed), method, options) for seed in given.seeds.split(",")]
        each, first = [run["accuracy"] for run in found[label]], found[label][0]
        shown = {"setting": label, "accuracy": round(sum(each) / len(each), 2), "seeds": [round(a, 2) for a in each]}
        shown |= {key: first[key] for key in ("noise", "epsilon") if key in first}
        shown |= {"cpu_seconds": round(first["cpu_seconds"], 1)}
        print(json.dumps(shown, ensure_ascii=False), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
