"""Kill runs at random moments with SIGKILL, resume them, and hold them against one that nobody killed.

    python bench/kill.py --runs 100

Every run is a process of its own that runs the `coterie` command. A round counts as completed once it is reported to
the progress bar; of those none may be trained again.
"""

import argparse
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import safetensors.numpy
import sklearn.datasets  # noqa: F401  (these imports, done once here, are not done again by every run)
import torch

import coterie.run.experiment  # noqa: F401
from coterie.commands import main as cli
from coterie.report import page  # noqa: F401
from coterie.run import progress

STUDY = """
name = "killed"
[data]
name = "digits"
silos = 4
groups = 2
sizes = [16]
test = 8
[model]
name = "linear"
[train]
rounds = 6
local_epochs = 1
batch_size = 8
lr = 0.1
participation = 0.75
[engine]
device = "cpu"
rows = "all"
[methods.fedamp]
[methods.fedem]
[methods.scaffold]
"""
Line = tuple[str, int]  # a method, and how many of its rounds are completed


class Run:
    """A `coterie` command in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.began = time.perf_counter()
        self.pipe, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            _command(arguments, writing)
        os.close(writing)
        self.text = b""

    def reported(self, timeout: float | None = None) -> bool:
        """Wait for its next report; False once it has ended, or nothing came in time."""
        if not select.select([self.pipe], [], [], timeout)[0]:
            return False
        more = os.read(self.pipe, 4096)
        self.text += more
        return bool(more)

    def lines(self) -> list[Line]:
        """What it has reported so far."""
        reports = [line.split() for line in self.text.decode().split("\n")[:-1]]
        return [(method, int(done)) for method, done in reports]

    def end(self) -> int:
        """Read it to its end; its exit code, or minus the signal that ended it."""
        while self.reported():
            pass
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _command(arguments: tuple[str, ...], pipe: int) -> None:
    @contextmanager
    def shown(study, console, quiet):  # type: ignore[no-untyped-def]
        yield lambda method, seed, report: os.write(pipe, f"{method} {report.round}\n".encode())

    progress.shown = shown
    sys.argv = ["coterie", *arguments]
    torch.set_num_threads(1)
    code = 1
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def kill(run: Run, stretches: list[float], draw: random.Random) -> int:
    """Kill a run in a stretch between two of its reports, at a moment of that; how it ended: it may have before."""
    before = draw.randrange(len(stretches))
    while len(run.lines()) < before and run.reported():
        pass
    until = time.perf_counter() + draw.uniform(0, stretches[before])
    while (left := until - time.perf_counter()) > 0 and run.reported(left):
        pass
    os.kill(run.pid, signal.SIGKILL)
    return run.end()


def bits(out: Path) -> dict[str, bytes]:
    """All that a run leaves behind, but for how long it took."""
    found = {name: (out / name).read_bytes() for name in ("results.parquet", "study.toml")}
    for path in sorted(out.glob("collaboration/*")):
        with np.load(path, allow_pickle=False) as arrays:
            found |= {f"{path.name} {name}": arrays[name].tobytes() for name in arrays}
    for path in sorted(out.glob("models/*/*")):
        tensors = safetensors.numpy.load_file(path)
        found |= {f"{path.parent.name}/{path.name} {name}": tensors[name].tobytes() for name in tensors}
    return found


def main() -> int:
    """Exit code 0 if every run ended like the unbroken one and no completed round was trained again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    folder = Path(tempfile.mkdtemp())
    try:
        return measured(folder, asked.runs, draw)
    finally:
        shutil.rmtree(folder)


def measured(folder: Path, runs: int, draw: random.Random) -> int:
    """Run, kill, resume and compare."""
    (folder / "study.toml").write_text(STUDY, "utf-8")
    arguments = ("run", str(folder / "study.toml"), "--quiet", "--out")
    assert Run(*arguments, str(folder / "warm")).end() == 0
    unbroken = Run(*arguments, str(folder / "unbroken"))
    moments = [unbroken.began]
    while unbroken.reported():
        moments += [time.perf_counter()] * (len(unbroken.lines()) + 1 - len(moments))
    assert unbroken.end() == 0
    stretches = np.diff([*moments, time.perf_counter()]).tolist()
    whole = bits(folder / "unbroken")
    print(f"unbroken: {sum(stretches):.2f} s, {len(moments) - 1} reports of a round, {len(whole)} things to compare")

    killed = kills = identical = lost = 0
    where = Counter[str]()
    while killed < runs:
        out, completed, code = folder / "out", dict[str, int](), -signal.SIGKILL
        run, before = Run(*arguments, str(out)), kills
        while code == -signal.SIGKILL:
            left_alone = kills > before and draw.random() < 0.5
            code = run.end() if left_alone else kill(run, stretches, draw)
            reports = run.lines()
            for method in dict(reports):
                rounds = [done for each, done in reports if each == method]
                lost += max(0, completed.get(method, 0) - rounds[0])
                completed[method] = max(completed.get(method, 0), *rounds)
            if code == -signal.SIGKILL:
                kills += 1
                where[" ".join(map(str, reports[-1])) if reports else "nothing"] += 1
                if (out / ".unfinished").exists():
                    run = Run("run", "--resume", str(out), "--quiet")
                elif not (out / "results.parquet").exists():
                    run = Run(*arguments, str(out))  # killed before it had made its folder
                else:
                    break  # killed after it had written its last file
        same = not (out / ".unfinished").exists() and bits(out) == whole
        shutil.rmtree(out)
        if kills > before:
            killed += 1
            identical += same
            print(f"{killed} of {runs}: {'identical' if same else 'DIFFERENT'}", flush=True)
    print(f"{runs} runs, {kills} kills: {lost} completed rounds lost, {identical} of {runs} results identical")
    print("last report before the kill: " + ", ".join(f"{last} ({count})" for last, count in sorted(where.items())))
    return 0 if identical == runs and lost == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
