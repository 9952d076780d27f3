"""Is a stack as good as the best of its members? Every member alone and the stack, on federations of several kinds.

python bench/stack.py --out FILE [--on digits-groups,tables-clusters,…] [--seeds 3] [--rounds 20]: every method's
learning rate is searched for on the first seed's validation data, the stack takes its members' rates; then all train on
every seed and are judged on test data at the round that validation data pick. FILE gets a line of JSON for each result
as it comes, and a run that is started again goes on after the last. --page PAGE writes the tables of FILE as Markdown,
below what `words/` beside PAGE has of the same name.
Fashion-MNIST, CIFAR-10 and OrganAMNIST (--on fashion-mnist-groups,fashion-mnist-pathological,fashion-mnist-iid,
cifar10-pathological,organamnist-pathological) need their files, and better a GPU.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom
from verdict import KINDS, federation

from coterie.data.silo import Part, Silo
from coterie.engine.rounds import Outcome
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.measure.measures import log_loss
from coterie.methods import make
from coterie.methods.stack import MEMBERS, Stack
from coterie.models import build
from coterie.run.assembly import Assembly
from coterie.run.experiment import prepare
from coterie.run.tuning import search, validation_loss
from coterie.studies.study import check

NAMED: dict[str, dict[str, Any]] = {
    "digits-groups": {"data": {"name": "digits", "split": "groups"}, "model": {"name": "mlp"}},
    "digits-pathological": {"data": {"name": "digits", "split": "pathological", "silos": 10}, "model": {"name": "mlp"}},
    "digits-iid": {"data": {"name": "digits", "split": "iid", "silos": 10}, "model": {"name": "mlp"}},
    "synthetic": {"data": {"name": "synthetic", "silos": 30}, "model": {"name": "linear"}},
}
LARGE: dict[str, dict[str, Any]] = {
    f"{name}-{split}": {"data": {"name": name, "split": split}, "model": {"name": "cnn"}}
    for name, splits in {
        "fashion-mnist": ("groups", "pathological", "iid"),
        "cifar10": ("pathological",),
        "organamnist": ("pathological",),
    }.items()
    for split in splits
}
TABLES = tuple(f"tables-{kind}" for kind in KINDS if kind not in ("rare", "numbers", "wide"))
DEFAULT = (*NAMED, *TABLES)
FRESH = 1000  # test rows of each silo of a made table
Line = dict[str, Any]
ABOUT = """# Stack against each of its members

Test accuracy in percent at the round that validation data pick, mean over silos, then over seeds. The rate of every
method was searched for in the same way on the first seed's validation data, and the stack takes its members' rates. The
best single method is the best in hindsight, by test data; beside it the one that validation accuracy picks. ± is half
of a 95% interval over silos and seeds. A silo is worse off than alone by a sign test of its test rows at 5%, Bonferroni
over all silos and seeds. CPU time is the stack's by the sum of its members'.
"""


def assembled(name: str, seed: int) -> Assembly:
    """The federation of that name."""
    if name in TABLES:
        return _made(name.removeprefix("tables-"), seed)
    table = {"name": name, "seeds": [seed], "methods": {"separate": {}}}
    return prepare(check(table | (NAMED | LARGE)[name]), seed)[1]


def _made(kind: str, seed: int) -> Assembly:
    """Silos whose rows are drawn; of those that a silo has, a quarter validates, and fresh ones test."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    makers, sizes = federation(kind, rng)

    def part(draw: Any, rows: int) -> Part:
        frame = draw(rows, rng)
        wards = frame.pop("ward").to_numpy()[:, None] == np.array(["a", "b", "c"])
        y = (frame.pop("y") == "yes").to_numpy(np.int64)
        return Part(np.concatenate([frame.to_numpy(), wards], 1).astype(np.float32), y)

    silos = [
        Silo(name, part(draw, size * 3 // 4), part(draw, size // 4), part(draw, FRESH))
        for (name, draw), size in zip(makers.items(), sizes, strict=True)
    ]
    return Assembly(silos, build({"name": "linear"}, silos[0].train.x.shape[1:], 2)[0], 2, Training(), seed)


def results(name: str, seeds: int, rounds: int, done: list[Line]) -> Iterator[Line]:
    """What is not done yet of one federation: the methods' rates, then each method on each seed."""
    known = [line for line in done if line["federation"] == name]
    training = Training(rounds=rounds, local_epochs=2, batch_size=32, measure=("validation", "test"))
    rates = {line["method"]: line["lr"] for line in known if "lr" in line}
    here = assembled(name, 0)
    for method in MEMBERS:
        if method not in rates:
            given = (make(method, {}), training, ("lr",), validation_loss, lambda progress: None)
            rates[method] = search(here, *given)[0]["lr"]
            yield {"federation": name, "method": method, "lr": rates[method]}
    methods = {method: (make(method, {}), replace(training, lr=rates[method])) for method in MEMBERS}
    methods["stack"] = Stack().with_training([{"lr": rates[method]} for method in MEMBERS]), training
    for seed in range(seeds):
        here = here if seed == 0 else assembled(name, seed)
        for label, (method, own) in methods.items():
            if not any((line.get("seed"), line["method"]) == (seed, label) for line in known):
                began = time.process_time()
                outcome = here.train(method, training=own)
                spent = time.process_time() - began
                yield {"federation": name, "method": label, "seed": seed, "cpu": spent, **scores(outcome, here)}


def scores(outcome: Outcome, silos: Assembly) -> Line:
    """Of every silo at the picked round: which test rows are right, and the log-loss; of validation rows the means."""
    assert outcome.picked is not None
    found: Line = {"round": outcome.picked.round}
    for split in ("test", "validation"):
        given = outcome.picked.outputs[split]
        pairs = [(getattr(silo, split).y, given[silo.name]) for silo in silos.members if silo.name in given]
        found[split] = {
            "right": ["".join(map(str, (p.argmax(1) == y).astype(int))) for y, p in pairs],
            "log_loss": [log_loss(y, p) for y, p in pairs],
        }
    return found


class Compared:
    """All methods on one federation, over seeds."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = [line for line in lines if "seed" in line]
        self.seeds = sorted({line["seed"] for line in self.lines})
        self.accuracy = {m: 100 * np.array([_share(r) for r in self._right(m)]) for m in (*MEMBERS, "stack")}
        self.best = max(MEMBERS, key=lambda method: self.accuracy[method].mean())
        self.picked = max(MEMBERS, key=lambda method: self._mean(method, "validation"))

    def _of(self, method: str) -> list[Line]:
        return [line for line in self.lines if line["method"] == method]

    def _right(self, method: str, split: str = "test") -> list[str]:
        return [right for line in self._of(method) for right in line[split]["right"]]

    def _mean(self, method: str, split: str) -> float:
        return float(np.mean([_share(right) for right in self._right(method, split)]))

    def log_loss(self, method: str, split: str = "test") -> float:
        """The mean over silos and seeds."""
        return float(np.mean([loss for line in self._of(method) for loss in line[split]["log_loss"]]))

    def decile(self, method: str) -> float:
        """The bottom decile of the silos, mean over seeds."""
        silos = len(self.accuracy[method]) // len(self.seeds)
        return float(np.quantile(self.accuracy[method].reshape(-1, silos), 0.1, axis=1).mean())

    def gain(self) -> tuple[float, float]:
        """The stack over the best single method in hindsight, and half of a 95% interval over silos."""
        off = self.accuracy["stack"] - self.accuracy[self.best]
        return float(off.mean()), float(1.96 * off.std(ddof=1) / np.sqrt(len(off)))

    def worse(self) -> tuple[int, int]:
        """Silos (of a seed) that are worse off than alone by a test at 5% over all of them, and how many there are."""
        found = []
        for mine, alone in zip(self._right("stack"), self._right("separate"), strict=True):
            won, lost = (sum(a + b == pair for a, b in zip(mine, alone, strict=True)) for pair in ("10", "01"))
            found.append(float(binom.sf(lost - 1, won + lost, 0.5)) if lost else 1.0)
        return sum(p < 0.05 / len(found) for p in found), len(found)

    def cost(self) -> float:
        """The stack's CPU time by that of its members together."""
        spent = {m: sum(line["cpu"] for line in self._of(m)) for m in (*MEMBERS, "stack")}
        return spent.pop("stack") / sum(spent.values())


def _share(right: str) -> float:
    return right.count("1") / max(len(right), 1)


def page(lines: list[Line]) -> str:
    """The tables: of each federation the best single method beside the stack, then every method with its log-loss."""
    run = Counter((line["federation"], line["seed"]) for line in lines if "seed" in line)
    whole = [line for line in lines if run[line["federation"], line.get("seed")] == len(MEMBERS) + 1]
    names = list(dict.fromkeys(line["federation"] for line in whole))
    found = {name: Compared([line for line in whole if line["federation"] == name]) for name in names}
    columns = "federation | best single | stack | difference | picked by validation | bottom decile, best / stack"
    rows = [f"| {columns} | log-loss, best / stack | worse off than alone | CPU time |", "|---" * 9 + "|"]
    for name, each in found.items():
        (gain, reach), (worse, silos), best = each.gain(), each.worse(), each.best
        rows.append(
            f"| {name} | {best} {each.accuracy[best].mean():.2f} | {each.accuracy['stack'].mean():.2f} "
            f"| {gain:+.2f} ± {reach:.2f} | {each.picked} {each.accuracy[each.picked].mean():.2f} "
            f"| {each.decile(best):.1f} / {each.decile('stack'):.1f} "
            f"| {each.log_loss(best):.3f} / {each.log_loss('stack'):.3f} | {worse} of {silos} | {each.cost():.2f} |"
        )
    rows += ["", "Every method: accuracy (log-loss).", ""]
    rows += ["| federation | " + " | ".join((*MEMBERS, "stack")) + " |", "|---" * (len(MEMBERS) + 2) + "|"]
    for name, each in found.items():
        cells = (f"{each.accuracy[m].mean():.2f} ({each.log_loss(m):.3f})" for m in (*MEMBERS, "stack"))
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default=",".join(DEFAULT))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    for name in given.on.split(","):
        if name not in (*DEFAULT, *LARGE):
            raise BadInput(f"--on {name}: known are {', '.join((*DEFAULT, *LARGE))}")
        for line in results(name, given.seeds, given.rounds, _read(given.out)):
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print({key: value for key, value in line.items() if key not in ("test", "validation")}, flush=True)
    if given.page is not None:
        words = given.page.parent / "words" / given.page.name
        above = "\n" + words.read_text("utf-8") if words.exists() else ""
        given.page.write_text(f"{ABOUT}{above}\n{page(_read(given.out))}", "utf-8")


def _read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
