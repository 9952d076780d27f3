"""A thousand silos for two hundred rounds: how much memory the run holds as it goes.

    python bench/load.py --silos 1000 --rounds 200

Runs the command itself; what is measured is the process's resident memory (RSS) when a round is reported to the
progress bar. Linux only.
"""

import argparse
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from coterie.commands import main as cli
from coterie.run import progress
from coterie.runs.folder import partial_results

STUDY = """
name = "load"
[data]
name = "synthetic"
silos = {silos}
dimension = 20
largest = 100
[model]
name = "linear"
[train]
rounds = {rounds}
local_epochs = 1
batch_size = 32
[engine]
rows = "all"
[methods.{method}]
"""


def resident() -> float:
    """Megabytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Print the memory at some rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--method", default="fedamp")
    asked = parser.parse_args()
    printed = [10, 20, 50, 100, 150, asked.rounds]
    began = time.perf_counter()

    @contextmanager
    def shown(study, console, quiet):  # type: ignore[no-untyped-def]
        def watch(method: str, seed: int, report: progress.Report) -> None:
            if report.round in printed:
                print(f"round {report.round}: {resident():.0f} MB, {time.perf_counter() - began:.0f} s", flush=True)

        yield watch

    progress.shown = shown
    with tempfile.TemporaryDirectory() as folder:
        study, out = Path(folder) / "study.toml", Path(folder) / "out"
        study.write_text(STUDY.format(silos=asked.silos, rounds=asked.rounds, method=asked.method), "utf-8")
        sys.argv = ["coterie", "run", str(study), "--quiet", "--out", str(out)]
        cli.main()
        print(f"at the end, table and report written: {resident():.0f} MB, {time.perf_counter() - began:.0f} s")
        print(f"{len(partial_results(out)):,} rows in results.parquet")


if __name__ == "__main__":
    main()
