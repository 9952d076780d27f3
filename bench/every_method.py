"""How long `coterie run --rounds 20` takes with every method that fits the embedded digits.

    python bench/every_method.py [--rounds N]

Methods that the digits or their model cannot take are left out and named. Seconds are those of the processor, of all
processes that the run starts, so that a busy machine gives the same; those on the wall stand beside them.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coterie.methods import METHODS
from coterie.run.experiment import prepare
from coterie.studies.study import check, read

LIMIT = 90  # so that it is no longer on the wall, even if nothing goes side by side


def fitting() -> tuple[list[str], list[str]]:
    """The methods that the study takes, and those that it does not."""
    study, federation = prepare(check(read("digits"), list(METHODS)), seed=0)
    fits = {
        name: method.refusal(federation.engine(method).roster, federation.model) is None
        for name, method in study.methods.items()
    }
    return [name for name in fits if fits[name]], [name for name in fits if not fits[name]]


def main() -> None:
    """Print the seconds beside the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    fits, others = fitting()
    with tempfile.TemporaryDirectory() as name:
        words = ["run", "--rounds", str(rounds), "--methods", ",".join(fits), "--out", str(Path(name) / "run")]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "coterie", *words], check=True, stdout=subprocess.DEVNULL)
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{len(fits)} methods, {rounds} rounds: {seconds:.1f} s of the processor (limit {LIMIT})")
    print(f"on the wall: {wall:.1f} s")
    print("left out: " + (", ".join(others) or "none"))


if __name__ == "__main__":
    main()
