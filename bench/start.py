"""How long until something happens: the help, the import, and the first round on one's own tables.

    python bench/start.py [--repeat N]

Seconds are those of the processor, in a process of its own, so that a busy machine gives the same; the median and the
range of several. `run, round 1` is `coterie run --tune off` on five CSVs of 500
rows until its first round has ended.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

HELP = "import sys; sys.argv = ['coterie', 'run', '--help']\nfrom coterie.commands.main import main\nmain()"
IMPORT = "import coterie"
TORCH = "import torch"
ROUND = """
import os, sys
from coterie.run import experiment
run_into = experiment.run_into

def until_round_1(study, out, command, watch, say, *more):
    def first(method, seed, progress):
        if progress.round == 1 and not progress.tuning:
            os._exit(0)
    return run_into(study, out, command, first, say, *more)

experiment.run_into = until_round_1
from coterie.commands.main import main
main()
"""
LIMITS = {"run --help": 0.5, "import coterie": 0.3, "import torch": None, "run, round 1": 3.0}


def tables(folder: Path) -> None:
    """Five silos of 500 rows and ten columns."""
    rng = np.random.default_rng(0)
    for silo in range(5):
        x = rng.normal(size=(500, 10))
        frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(10)])
        frame.assign(outcome=(x[:, 0] + 0.5 * rng.normal(size=500) > 0).astype(int)).to_csv(
            folder / f"silo-{silo}.csv", index=False
        )


def seconds(code: str, *words: str) -> float:
    """The processor's seconds of a process that runs this."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.DEVNULL, env={**os.environ})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print each beside its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as name:
        own = Path(name) / "own"
        own.mkdir()
        tables(own)
        found: dict[str, list[float]] = {what: [] for what in LIMITS}
        for turn in range(repeat + 1):
            words = ("run", "--silos", str(own), "--label", "outcome", "--out", str(Path(name) / f"run-{turn}"))
            each = [
                seconds(HELP),
                seconds(IMPORT),
                seconds(TORCH),
                seconds(ROUND, *words, "--tune", "off", "--quiet"),
            ]
            if turn:  # the first writes bytecode and fills the disk's cache
                for kept, value in zip(found.values(), each, strict=True):
                    kept.append(value)
    for what, limit in LIMITS.items():
        values = found[what]
        beside = "" if limit is None else f", limit {limit:g}"
        print(f"{what:16} {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f}{beside})")


if __name__ == "__main__":
    main()
