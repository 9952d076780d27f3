"""Is a stack as good as the best of its members? Every member alone and the stack, on federations of several kinds.

python bench/stack.py --out FOLDER [--on digits-groups,tables-clusters,…] [--seeds 0,1,2] [--rounds 20]: every method's
learning rate is searched for on the first seed's validation data, and the stack takes its members' rates. A stack is
trained on every seed; its members train in it as in runs of their own (a test holds that), so what each of them gives
in every round is noted there. All are judged on test data at the round that validation data pick.
FOLDER gets a file of lines for each federation, a line as each result comes, and a run that is started again goes on
after the last; --keep also writes what every candidate gave in every round, for a study of the mixing without training.
--cost trains every member and the stack by themselves and notes their CPU time.
--kept FILE has a line for each federation and seed, and those of FOLDER in place of its own of the same federation.
--page PAGE writes the tables of these lines as Markdown, below what `words/` beside PAGE has of the same name: `--on ""
--kept docs/results/stack.jsonl --page docs/results/stack.md` makes the page again.
Fashion-MNIST, CIFAR-10 and OrganAMNIST (--on fashion-mnist-groups,fashion-mnist-pathological,fashion-mnist-iid,
cifar10-pathological,organamnist-shards) need their files (fetched, or --data fashion-mnist=PATH): the convolutional
network a GPU too (--device cuda); an MLP (-mlp after the name) trains on a CPU, on 10 or 12 silos and, but for groups,
8% of the pictures. Real centres need their packages.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom
from verdict import KINDS, federation

from coterie.data.silo import Part, Silo
from coterie.engine.method import Deployable, Task
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.measure.distributions import student_quantile
from coterie.measure.measures import log_loss
from coterie.measure.metrics import Rank, pick_of
from coterie.methods import make
from coterie.methods.stack import MEMBERS, Stack
from coterie.models import build
from coterie.run.assembly import Assembly
from coterie.run.experiment import prepare
from coterie.run.tuning import search
from coterie.studies.study import check
from coterie.version import commit

NAMED: dict[str, dict[str, Any]] = {
    "digits-groups": {"data": {"name": "digits", "split": "groups"}, "model": {"name": "mlp"}},
    "digits-pathological": {"data": {"name": "digits", "split": "pathological", "silos": 10}, "model": {"name": "mlp"}},
    "digits-iid": {"data": {"name": "digits", "split": "iid", "silos": 10}, "model": {"name": "mlp"}},
    "synthetic": {"data": {"name": "synthetic", "silos": 30}, "model": {"name": "linear"}},
}
CENTRES = {
    name: {"data": {"name": name}, "model": {"name": "auto"}}
    for name in ("flights", "heart-procedures", "dialysis", "mortality", "store")
}
SMALLER = {"sizes": [400, 350, 300, 250, 200], "groups": 5, "dominating": "even", "test": 150}
FEW = {"silos": 10, "test_share": 0.4, "subsample": 0.08}  # that an MLP of 32 units trains on a CPU in minutes
LARGE: dict[str, dict[str, Any]] = {
    f"{name}-{split}{end}": {"data": {"name": name, "split": split, **options}, "model": model}
    for end, model, silos, few in (("", {"name": "cnn"}, 20, {}), ("-mlp", {"name": "mlp", "hidden": [32]}, 10, FEW))
    for name, split, options in (
        ("fashion-mnist", "groups", {**SMALLER, "silos": silos}),
        ("fashion-mnist", "pathological", {"silos": silos, **few}),
        ("fashion-mnist", "iid", {"silos": silos, **few}),
        ("cifar10", "pathological", {"silos": silos, **few}),
        ("organamnist", "shards", {**few, "silos": 12}),
    )
}
TABLES = tuple(f"tables-{kind}" for kind in ("clusters", "banks", "alike", "apart", "clinics", "tested"))
DEFAULT = (*NAMED, *TABLES, *CENTRES)
SPLITS = ("validation", "test")
METHODS = (*MEMBERS, "stack")
BOTH = ("stack", "separate")
TRAINED = (
    "separate",
    "fedamp",
    "ditto",
    "fedem",
)  # of the members; Ditto trains FedAvg's model, for its other copies too
NO_FILES: Mapping[str, str] = {}
FRESH = 1000  # test rows of each silo of a made table
Line = dict[str, Any]
Given = dict[tuple[str, str], np.ndarray]  # by split and silo what a model gives: (n, classes)
ABOUT = """# Stack against each of its members

Test accuracy in percent at the round that validation data pick, mean over silos, then over seeds. The rate of every
method was searched for in the same way on the first seed's validation data, and the stack takes its members' rates. The
best single method is the best in hindsight, by test data. What chance alone adds to the best of six shows where each
seed takes the method that is best on all other seeds; beside it the one that validation accuracy picks. ± is half of a
95% interval over silos and seeds; of bottom deciles (of each seed's silos, interpolated) over seeds.
A silo is worse or better off than alone by a sign test of its test rows at 5%, Bonferroni over all silos and seeds. CPU
time is the stack's by that of all six members one by one, and by that of what it trains: four of them.
"""


def assembled(name: str, seed: int, device: str = "cpu", paths: Mapping[str, str] = NO_FILES) -> Assembly:
    """The federation of that name, of the files in `paths` where its data set is one of them."""
    if name in TABLES:
        return _made(name.removeprefix("tables-"), seed)
    table = {"name": name, "seeds": [seed], "engine": {"device": device}, "methods": {"separate": {}}}
    table |= (NAMED | CENTRES | LARGE)[name]
    if path := paths.get(table["data"]["name"]):
        table["data"] = table["data"] | {"path": path}
    return prepare(check(table), seed)[1]


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


@dataclass(frozen=True)
class Noted(Stack):
    """A stack that notes what it and each candidate give for held-out rows, whenever it is measured."""

    notes: dict[tuple[str, int], Given] = field(default_factory=dict, compare=False)  # by method and round

    def personal(self, task: Task, down: Any, private: Any) -> Deployable:
        mixture = super().personal(task, down, private)
        models = dict(zip((each.name for each in self.candidates), mixture.parts, strict=True)) | {"stack": mixture}
        for name, model in models.items():
            for split in SPLITS:
                outputs = task.outcomes(model, split)["outputs"].float().cpu().numpy()
                for silo, own, n in zip(task.names, outputs, task.counts(split).tolist(), strict=True):
                    self.notes.setdefault((name, task.round + 1), {})[split, silo] = own[:n]
        return mixture


def results(
    name: str,
    seeds: list[int],
    rounds: int,
    done: list[Line],
    device: str,
    keep: Path | None,
    paths: Mapping[str, str] = NO_FILES,
) -> Iterator[Line]:
    """What is not done yet of one federation: the methods' rates, then all methods on each seed."""
    training = Training(rounds=rounds, local_epochs=2, batch_size=32, measure=SPLITS)
    rates = {line["method"]: line["lr"] for line in done if "lr" in line}
    here = assembled(name, seeds[0], device, paths)
    for method in MEMBERS:
        if method not in rates:
            given = (make(method, {}), training, ("lr",), lambda progress: None)
            rates[method] = search(here, *given)[0]["lr"]
            yield {"federation": name, "method": method, "lr": rates[method]}
    for seed in seeds:
        missing = [m for m in METHODS if not any((x.get("seed"), x["method"]) == (seed, m) for x in done)]
        if not missing:
            continue
        here = here if seed == seeds[0] else assembled(name, seed, device, paths)
        stack = Noted().with_training([{"lr": rates[method]} for method in MEMBERS])
        assert isinstance(stack, Noted)
        here.train(stack, training=training, models=False)
        if keep is not None:
            _keep(keep / f"{name}-{seed}.npz", stack.notes, here)
        for method in missing:
            rounds_of = {after: given for (of, after), given in stack.notes.items() if of == method}
            yield {"federation": name, "method": method, "seed": seed, **scores(rounds_of, here)}


def scores(rounds: dict[int, Given], silos: Assembly) -> Line:
    """Of every silo at the round that validation data pick: which rows are right, and the log-loss."""

    def judged(split: str, given: Given) -> Line:
        every = ((silo, getattr(silo, split).y) for silo in silos.members)
        pairs = [(y, given[split, silo.name]) for silo, y in every if len(y)]
        right = ["".join(map(str, (p.argmax(1) == y).astype(int))) for y, p in pairs]
        return {"right": right, "log_loss": [log_loss(y, p) for y, p in pairs]}

    validated = {after: judged("validation", given) for after, given in rounds.items()}
    ranks = {after: _rank(found) for after, found in validated.items()}
    best = pick_of(ranks).round
    return {"round": best, "validation": validated[best], "test": judged("test", rounds[best])}


def _rank(validated: Line) -> Rank:
    """What a round is picked by, as in a run."""
    shares = {str(i): _share(right) for i, right in enumerate(validated["right"])}
    score, loss = np.round(np.mean([*shares.values()]), 12), np.mean(validated["log_loss"])
    return Rank(0, len(shares), float(score), -float(loss), shares)


def costs(name: str, rounds: int, file: Path, device: str, paths: Mapping[str, str]) -> Iterator[Line]:
    """The CPU seconds of each member by itself, and of the stack: measured every round, and at the end alone."""
    done = _read(file)
    rates = {line["method"]: line["lr"] for line in done if "lr" in line}
    here = assembled(name, 0, device, paths)
    training = Training(rounds=rounds, local_epochs=2, batch_size=32, measure=SPLITS)
    methods = {method: (make(method, {}), {"lr": rates[method]}) for method in MEMBERS}
    methods["stack"] = Stack().with_training([{"lr": rates[method]} for method in MEMBERS]), {}
    for (label, (method, own)), every in product(methods.items(), (1, rounds)):
        if not any((line["method"], line.get("measured")) == (label, every) for line in done):
            began = time.process_time()
            here.train(method, training=replace(training, **own, measure_every=every))
            spent = time.process_time() - began
            yield {"federation": name, "method": label, "measured": every, "cpu": spent}


def _keep(file: Path, notes: dict[tuple[str, int], Given], silos: Assembly) -> None:
    """What all candidates gave, as logarithms in half precision: by split and silo (rounds, candidates, n, classes)."""
    names, rounds = ([*dict.fromkeys(part)] for part in zip(*notes, strict=True))
    found: dict[str, Any] = {"names": np.array(names), "rounds": np.array(rounds)}
    for split in SPLITS:
        for i, silo in enumerate(silos.members):
            every = np.stack([[notes[name, round][split, silo.name] for name in names] for round in rounds])
            found[f"{split}-{i}"] = np.log(np.clip(every, 1e-7, 1)).astype(np.float16)
            found[f"{split}-{i}-y"] = getattr(silo, split).y
    np.savez_compressed(file, **found)


def summed(lines: list[Line]) -> list[Line]:
    """What the page needs of the lines of one federation: a line for each whole seed, and one of CPU time."""
    found, rates = [], {line["method"]: line["lr"] for line in lines if "lr" in line}
    for seed in sorted({line["seed"] for line in lines if "seed" in line}):
        of = {line["method"]: line for line in lines if line.get("seed") == seed}
        if of.keys() != {*METHODS}:
            continue
        pairs = [list(zip(*both, strict=True)) for both in zip(*(of[m]["test"]["right"] for m in BOTH), strict=True)]
        found.append({
            "federation": of["stack"]["federation"], "seed": seed, "commit": of["stack"].get("commit"), "lr": rates,
            "round": {m: of[m]["round"] for m in METHODS},
            "rows": [len(right) for right in of["stack"]["test"]["right"]],
            "right": {m: [right.count("1") for right in of[m]["test"]["right"]] for m in METHODS},
            "log_loss": {m: round(float(np.mean(of[m]["test"]["log_loss"])), 5) for m in METHODS},
            "validation": {m: round(float(np.mean([*map(_share, of[m]["validation"]["right"])])), 5) for m in METHODS},
            "won": [each.count(("1", "0")) for each in pairs], "lost": [each.count(("0", "1")) for each in pairs],
        })  # fmt: skip
    spent: dict[str, dict[str, float]] = {}
    for line in lines:
        if "cpu" in line:
            measured = "every" if line["measured"] == 1 else "last"
            spent.setdefault(measured, {})[line["method"]] = round(line["cpu"], 2)
            about = {"federation": line["federation"], "commit": line.get("commit")}
    return [*found, {**about, "cpu": spent}] if spent else found


def cost(cpu: Mapping[str, float]) -> str:
    """The stack's CPU time by that of all its members, one by one, and by that of what it trains alone."""
    return " / ".join(f"{cpu['stack'] / sum(cpu[m] for m in of):.2f}" for of in (MEMBERS, TRAINED))


class Compared:
    """All methods on one federation, over seeds, from kept lines."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = [line for line in lines if "seed" in line]
        self.cpu = next((line["cpu"] for line in lines if "cpu" in line), {})
        self.accuracy = {m: np.concatenate([self._shares(line, m) for line in self.lines]) for m in METHODS}
        self.best = max(MEMBERS, key=lambda method: self.accuracy[method].mean())
        self.picked = max(MEMBERS, key=lambda method: self._mean("validation", method))

    def _shares(self, line: Line, method: str) -> np.ndarray:
        return 100 * np.array(line["right"][method]) / np.maximum(line["rows"], 1)

    def _mean(self, what: str, method: str) -> float:
        return float(np.mean([line[what][method] for line in self.lines]))

    def log_loss(self, method: str) -> float:
        """The mean over silos and seeds."""
        return self._mean("log_loss", method)

    def deciles(self, method: str) -> np.ndarray:
        """The bottom decile of the silos, of each seed."""
        return np.array([np.quantile(self._shares(line, method), 0.1) for line in self.lines])

    def decile(self, method: str) -> float:
        """The bottom decile of the silos, mean over seeds."""
        return float(self.deciles(method).mean())

    def decile_gain(self) -> tuple[float, float]:
        """The stack's bottom decile over the best single method's, and half of a 95% interval over seeds."""
        off, n = self.deciles("stack") - self.deciles(self.best), len(self.lines)
        spread = off.std(ddof=1) / np.sqrt(n) if n > 1 else float("nan")
        return float(off.mean()), student_quantile(0.975, n - 1) * float(spread)

    def beforehand(self) -> float:
        """What the best single method by all other seeds' test data is worth, mean over seeds; NaN of one seed."""
        if len(self.lines) == 1:
            return float("nan")
        by_seed = {m: np.array([self._shares(line, m).mean() for line in self.lines]) for m in MEMBERS}
        others = {m: each.sum() - each for m, each in by_seed.items()}
        return float(np.mean([by_seed[max(MEMBERS, key=lambda m: others[m][i])][i] for i in range(len(self.lines))]))

    def gain(self) -> tuple[float, float]:
        """The stack over the best single method in hindsight, and half of a 95% interval over silos."""
        off = self.accuracy["stack"] - self.accuracy[self.best]
        return float(off.mean()), float(1.96 * off.std(ddof=1) / np.sqrt(len(off)))

    def p_values(self) -> np.ndarray:
        """Of each silo (of a seed) the sign test's one-sided p of being worse off than alone, and of being better."""
        won, lost = (np.concatenate([line[key] for line in self.lines]) for key in ("won", "lost"))
        return np.stack([binom.sf(lost - 1, won + lost, 0.5), binom.sf(won - 1, won + lost, 0.5)])

    def beside_alone(self) -> tuple[int, int, int]:
        """Silos (of a seed) that are worse and better off than alone by a test at 5% over all of them, of how many."""
        p = self.p_values()
        worse, better = (p < 0.05 / p.shape[1]).sum(1)
        return int(worse), int(better), p.shape[1]

    def cost(self) -> str:
        """The stack's CPU time by its members', where it was taken."""
        return cost(self.cpu["every"]) if self.cpu else "-"


def _share(right: str) -> float:
    return right.count("1") / max(len(right), 1)


def page(lines: list[Line]) -> str:
    """The tables: of each federation the best single method beside the stack, then every method with its log-loss."""
    names = list(dict.fromkeys(line["federation"] for line in lines if "seed" in line))
    found = {name: Compared([line for line in lines if line["federation"] == name]) for name in names}
    columns = "federation | seeds | best single | stack | difference | best by other seeds | picked by validation"
    others = "bottom decile, best / stack | difference there | log-loss, best / stack"
    last = "worse off than alone | better off | CPU time"
    rows = [f"| {columns} | {others} | {last} |", "|---" * 13 + "|"]
    for name, each in found.items():
        (gain, reach), (lower, wide), best = each.gain(), each.decile_gain(), each.best
        worse, better, silos = each.beside_alone()
        rows.append(
            f"| {name} | {len(each.lines)} | {best} {each.accuracy[best].mean():.2f} "
            f"| {each.accuracy['stack'].mean():.2f} | {gain:+.2f} ± {reach:.2f} | {each.beforehand():.2f} "
            f"| {each.picked} {each.accuracy[each.picked].mean():.2f} "
            f"| {each.decile(best):.1f} / {each.decile('stack'):.1f} | {lower:+.1f} ± {wide:.1f} "
            f"| {each.log_loss(best):.3f} / {each.log_loss('stack'):.3f} "
            f"| {worse} of {silos} | {better} | {each.cost()} |"
        )
    rows += ["", "Every method: accuracy (log-loss).", ""]
    rows += ["| federation | " + " | ".join(METHODS) + " |", "|---" * (len(MEMBERS) + 2) + "|"]
    for name, each in found.items():
        cells = (f"{each.accuracy[m].mean():.2f} ({each.log_loss(m):.3f})" for m in METHODS)
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    silos = sum(each.p_values().shape[1] for each in found.values())
    worse, better = sum((each.p_values() < 0.05 / silos).sum(1) for each in found.values())
    rows += ["", f"At 5% over all {silos} silos (of a seed) of this table, {worse} are worse off than alone"]
    rows[-1] += f" and {better} better off."
    commits = (
        f"{name} {', '.join(sorted({str(line['commit'])[:7] for line in each.lines}))}" for name, each in found.items()
    )
    rows += ["", f"Commits: {'; '.join(commits)}."]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default=",".join(DEFAULT))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", action="append", default=[], help="a data set that is here: NAME=PATH")
    parser.add_argument("--out", type=Path, default=Path("stack-runs"))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.on:
        given.out.mkdir(parents=True, exist_ok=True)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    paths = dict(each.split("=", 1) for each in given.data)
    for name in filter(None, given.on.split(",")):
        if name not in (*DEFAULT, *LARGE):
            raise BadInput(f"--on {name}: known are {', '.join((*DEFAULT, *LARGE))}")
        file = given.out / f"{name}.jsonl"
        keep = given.out if given.keep else None
        found = results(name, seeds, given.rounds, _read(file), given.device, keep, paths)
        for line in chain(found, costs(name, given.rounds, file, given.device, paths) if given.cost else ()):
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line | {"commit": commit()}) + "\n")
            print({key: value for key, value in line.items() if key not in SPLITS}, flush=True)
    every = [line for file in sorted(given.out.glob("*.jsonl")) for line in summed(_read(file))]
    if given.kept is not None:
        again = {(line["federation"], "cpu" in line) for line in every}
        every += [line for line in _read(given.kept) if (line["federation"], "cpu" in line) not in again]
        every.sort(key=lambda line: (line["federation"], line.get("seed", -1)))
        given.kept.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in every), "utf-8")
    if given.page is not None:
        given.page.write_text(whole(every, given.page), "utf-8")


def whole(lines: list[Line], path: Path) -> str:
    """The page of these lines, with the words that are beside it."""
    words = path.parent / "words" / path.name
    above = "\n" + words.read_text("utf-8") if words.exists() else ""
    return f"{ABOUT}{above}\n{page(lines)}"


def _read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
