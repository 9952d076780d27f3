"""The cells of the papers' tables that no kept run has at full length: which they are, what they cost, and run them.

    python bench/missing.py --data fashion-mnist=PATH --data cifar10=PATH
    python bench/missing.py --data fashion-mnist=PATH --study acs-figure1 --out runs/missing --device cuda --minutes 25

Without --out it lists what is missing, a part of a cell (some of its methods) in a line, with the seconds that it takes
by itself if it is as fast as the fastest kept run of its model on a GPU. With --out it runs that list from its top,
--jobs at once, each part as a folder of its own, until the minutes are over; what is not done by then is stopped, and
the same command goes on with it. --pack FILE puts what pages need of all parts that ended into one archive. On a GPU
several processes at once gain most where NVIDIA's MPS runs (`nvidia-cuda-mps-control -d`).
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from pathlib import Path
from statistics import median

from finished_runs import Cell, read
from keep import keep
from results import RUNS
from run_coverage import SAME_RUNS, Runs, all_wanted

from coterie.errors import BadInput
from coterie.runs.folder import UNFINISHED
from coterie.studies import study as studies
from coterie.studies.cost import client_steps
from coterie.studies.study import Study, check

GPU = "cuda"  # how the device of a kept run begins, where it was a GPU
PATIENCE = 20.0  # seconds that a run has to end when it is stopped


@dataclass(frozen=True)
class Part:
    """Some methods of a cell with one seed, as one run."""

    study: str
    cell: str
    methods: tuple[str, ...]
    seed: int
    seconds: float  # that it is likely to take by itself

    @property
    def name(self) -> str:
        """That of its folder."""
        return f"{self.study}-{self.cell}-{'-'.join(self.methods)}-seed{self.seed}"

    def command(self, out: Path, paths: Mapping[str, str], device: str, precision: str) -> list[str]:
        """What runs it, or goes on with it."""
        start = [sys.executable, "-m", "coterie", "run"]
        if (out / UNFINISHED).exists():
            return [*start, "--resume", str(out), "--quiet"]
        given = [self.study, "--data", self.cell, "--methods", ",".join(self.methods), "--seeds", str(self.seed)]
        path = paths.get(built(self.study, self.cell).data["name"])
        settings = {"engine.precision": precision, "engine.models": "false"} | ({"data.path": path} if path else {})
        return [
            *(*start, *given, "--device", device, "--out", str(out), "--quiet"),
            *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
        ]


def built(study: str, cell: str) -> Study:
    """A cell of a built-in study."""
    return check(studies.select(studies.read(study), cell))


def missing(found: Runs, names: Iterable[str], seed: int, at_once: float) -> list[Part]:
    """What is to be run of the studies of these names (of none: of all), in parts of about so many seconds at most."""
    chosen, rates = set(names), seconds_per_step(found)
    lacking: dict[tuple[str, str], list[str]] = {}
    for each in all_wanted(found):
        cell = found.get(each.study, {}).get(each.cell)
        done = each.full and cell is not None and seed in cell.seeds(each.method)
        if each.at_hand and each.study not in SAME_RUNS and not done and (not chosen or each.study in chosen):
            lacking.setdefault((each.study, each.cell), []).append(each.method)
    return [part for cell, methods in lacking.items() for part in parts(*cell, methods, seed, rates, at_once)]


def parts(
    study: str, cell: str, methods: Sequence[str], seed: int, rates: Mapping[str, float], at_once: float
) -> Iterator[Part]:
    """The methods of a cell, as few runs as there can be of about so many seconds at most."""
    whole = built(study, cell)
    rate = rates.get(str(whole.model["name"]), rates[""])
    together, seconds = list[str](), 0.0
    for method in methods:
        own = rate * steps_of(whole, method)
        if together and seconds + own > at_once:
            yield Part(study, cell, tuple(together), seed, seconds)
            together, seconds = [], 0.0
        together.append(method)
        seconds += own
    if together:
        yield Part(study, cell, tuple(together), seed, seconds)


def steps_of(study: Study, method: str) -> int:
    """A method's mini-batches."""
    return client_steps(replace(study, methods={method: study.methods[method]}))


def seconds_per_step(found: Runs) -> dict[str, float]:
    """The least that a mini-batch of a silo took on a GPU, by the name of the model; under "" the median of all."""
    seen: dict[str, list[float]] = {}
    for cell in (cell for cells in found.values() for cell in cells.values()):
        for name, seconds in timed(cell):
            seen.setdefault(name, []).append(seconds)
    if not seen:
        raise BadInput("no run on a GPU is kept, of which costs could be known")
    return {"": median(chain(*seen.values()))} | {name: min(every) for name, every in seen.items()}


def timed(cell: Cell) -> Iterator[tuple[str, float]]:
    """The model of each method that was trained on a GPU, and its seconds for a mini-batch of a silo."""
    for table, summary in zip(cell.tables, cell.summaries, strict=True):
        if summary["device"].startswith(GPU) and table.get("scale") != "small":
            study = check(table)
            for method, scores in summary["methods"].items():
                seconds = median(seed["train_seconds"] for seed in scores["per_seed"])
                yield str(study.model["name"]), seconds / max(1, steps_of(study, method))


def run_all(todo: Sequence[Part], out: Path, commands: Mapping[str, list[str]], jobs: int, until: float) -> None:
    """Run the parts in their order, so many at once, until that time."""
    left, lock = iter(todo), threading.Lock()

    def work() -> None:
        while time.monotonic() < until:
            with lock:
                part = next(left, None)
            if part is None:
                return
            began, log = time.monotonic(), out / f"{part.name}.log"
            with log.open("w", encoding="utf-8") as lines:
                process = subprocess.Popen(commands[part.name], stdout=lines, stderr=subprocess.STDOUT)
                code = ended(process, until)
            how = {None: "stopped, to go on", 0: "done"}.get(code, f"failed ({code}): {log}")
            print(f"{part.name}: {how}, {time.monotonic() - began:.0f} s", flush=True)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def ended(process: "subprocess.Popen[bytes]", until: float) -> int | None:
    """How a process ended; None: it was stopped, because the time was over."""
    try:
        return process.wait(None if until == inf else max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def pack(runs: Iterable[Path], file: Path) -> None:
    """What pages need of these runs, in one archive."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(file, "w:gz") as archive:
        for run in runs:
            keep(run, Path(folder) / run.name)
            archive.add(Path(folder) / run.name, run.name)


def main() -> None:
    """List or run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", default=[], help="a data set that is here: NAME=PATH")
    parser.add_argument("--study", action="append", default=[], help="of these studies alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=float, default=150.0, help="seconds that a part takes by itself, at most")
    parser.add_argument("--out", type=Path, help="where runs go; without it they are listed")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--pack", type=Path, help="an archive of what pages need of the parts that ended")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    paths = dict(each.split("=", 1) for each in given.data)
    found = read(sorted(path for path in RUNS.iterdir() if path.is_dir()))
    here = [
        part
        for part in missing(found, given.study, given.seed, given.part)
        if built(part.study, part.cell).data["name"] in {*paths, "synthetic"}
    ]
    if given.out is None:
        for part in here:
            print(f"{part.seconds:6.0f} s  {part.study} {part.cell}: {', '.join(part.methods)}")
        print(f"{sum(len(part.methods) for part in here)} cells, {sum(part.seconds for part in here) / 60:.0f} minutes")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    todo = [part for part in here if not (given.out / part.name / "summary.json").exists()]
    commands = {p.name: p.command(given.out / p.name, paths, given.device, given.precision) for p in todo}
    run_all(todo, given.out, commands, given.jobs, until)
    if given.pack is not None:
        done = [given.out / part.name for part in here if (given.out / part.name / "summary.json").exists()]
        pack(done, given.pack)
        print(f"{given.pack}: {len(done)} runs")


if __name__ == "__main__":
    main()
