"""How fast beside other libraries: `python bench/peers/compare.py [--work NAME] [--device cuda] [--repeat N]`.

Every library does the same work (work.py) in an environment of its own; all take turns, so that a busy machine is busy
to all. What is timed is a round: sending, local training of all clients, taking in. Start-up, the first round and
evaluation are not.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import peak
import work
from install import HERE, python
from rich.console import Console
from rich.table import Table

OURS = "coterie"
HERE_TOO = (OURS, "vmap")  # run in this environment
ALONE = (*HERE_TOO, "fluke", "fl4health")  # in one process, whose seconds of the processor can be counted
METHODS = {
    "fedavg": (OURS, "vmap", "fluke", "pfl", "flower", "nvflare", "fl4health"),
    "fedamp": (OURS, "vmap", "fluke"),
    "ditto": (OURS, "vmap", "fluke", "nvflare", "fl4health"),
}
PULL = "pulled along the gradient, where ours takes an exact proximal step"
# Why a library's loss is not ours. Any other that differs has not done the same steps.
OTHERWISE = {
    ("fluke", "fedamp"): f"clients go on from their own models, where ours start from the cloud model; {PULL}",
    **{(peer, "ditto"): PULL for peer in ("fluke", "nvflare", "fl4health")},
}
ROUNDING = 1e-4  # of a loss; a last digit is another where sums are taken in another order

Result = dict[str, object]


def processes(clients: int, cores: int, device: str) -> int:
    """How many pfl is started with: each must get as many clients. On a GPU one: its NCCL wants a GPU for each."""
    return 1 if device == "cuda" else max(n for n in range(1, cores + 1) if clients % n == 0)


def once(peer: str, method: str, path: Path, clients: int, rounds: int, device: str, patience: float) -> Result | str:
    """One run of one library in its environment: its result, or why there is none."""
    interpreter = Path(sys.executable) if peer in HERE_TOO else python(peer)
    if not interpreter.exists():
        return f"skipped: not installed; run `python bench/peers/install.py {peer}`"
    launcher = []
    if peer == "pfl":
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", processes(clients, os.cpu_count(), device)]
    command = [interpreter, *launcher, HERE / f"{peer}_runner.py", path, method, rounds, device]
    # One thread for each process: the matrices are small, and threads on a busy machine wait for each other.
    done = peak.run(command, os.environ | {"OMP_NUM_THREADS": "1"}, patience, device)
    if done.code is None:
        return f"failed: took more than {patience:g} s"
    results = [line for line in done.out.splitlines() if line.startswith('{"seconds"')]
    if done.code == 0 and results:
        return json.loads(results[-1]) | {"memory": done.memory, "gpu": done.gpu}
    return f"failed: {(done.err.strip() or 'it printed nothing').splitlines()[-1]}"


def summary(name: str, size: work.Size, peer: str, method: str, runs: list[Result]) -> Result:
    """The median over all rounds of all runs but each run's first, as ms for a mini-batch of a client."""
    each = [1e3 * s / (size.clients * size.steps) for run in runs for s in run["seconds"][1:]]
    gpu = [run["gpu"] for run in runs if run["gpu"] is not None]
    return {
        "work": name,
        "peer": peer,
        "method": method,
        "ms": statistics.median(each),
        "ms_low": min(each),
        "ms_high": max(each),
        "client_steps_per_second": 1e3 / statistics.median(each),
        "loss": statistics.median(run["loss"] for run in runs),
        "memory_mb": max(run["memory"] for run in runs) / 2**20,
        "gpu_mb": max(gpu) / 2**20 if gpu else None,
        "rounds": len(each),
    }


def compared(lines: list[Result]) -> list[Result]:
    """Beside ours of the same work and method: how many times the time, and why the loss is another, if it is."""
    ours = {(line["work"], line["method"]): line for line in lines if line["peer"] == OURS}
    found = []
    for line in lines:
        mine = ours.get((line["work"], line["method"]))
        apart = mine is not None and abs(line["loss"] - mine["loss"]) > ROUNDING * mine["loss"]
        why = OTHERWISE.get((line["peer"], line["method"]), "not the same steps: do not compare its time")
        found.append(line | {"ratio": line["ms"] / mine["ms"] if mine else None, "otherwise": why if apart else None})
    return found


def table(title: str, lines: list[Result]) -> Table:
    """A line for each library and method."""
    made = Table(title=title)
    headings = [
        "method",
        "library",
        "ms (spread)",
        "times ours",
        "client-steps / s",
        "MB",
        "GPU MB",
        "loss at the end",
        "rounds",
    ]
    gpu = any(line["gpu_mb"] is not None for line in lines)
    for heading in headings:
        if gpu or heading != "GPU MB":
            made.add_column(heading, justify="left" if heading in ("method", "library") else "right")
    for line in lines:
        taken = [f"{line['gpu_mb']:.0f}"] if gpu else []
        loss = f"{line['loss']:.4f}{'*' if line['otherwise'] else ''}"
        made.add_row(
            line["method"], line["peer"], f"{line['ms']:.3f} ({line['ms_low']:.3f}–{line['ms_high']:.3f})",
            "" if line["ratio"] is None else f"{line['ratio']:.1f}", f"{line['client_steps_per_second']:.0f}",
            f"{line['memory_mb']:.0f}", *taken, loss, str(line["rounds"]),
        )  # fmt: skip
    return made


def main() -> None:
    """Print a table for each work and write them to bench/out/peers.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", nargs="+", choices=list(work.SHAPES), default=list(work.SHAPES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--clients", type=int, help="as many as the work says, if not given")
    parser.add_argument("--rounds", type=int, default=3, help="of one run; the first does not count")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each library")
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: on a busy machine")
    parser.add_argument("--patience", type=float, default=90, help="seconds for one run of one library")
    parser.add_argument("--out", type=Path, default=HERE.parent / "out")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("--rounds: at least 2; the first does not count")
    if given.clock == "cpu":
        os.environ["PEERS_CLOCK"] = "cpu"
    console = Console(width=130)
    lines: list[Result] = []
    silent: list[Result] = []
    for name in given.work:
        size = work.SIZES[given.device][name]
        size = replace(size, clients=given.clients or size.clients)
        runs: dict[tuple[str, str], list[Result]] = {(p, m): [] for m, peers in METHODS.items() for p in peers}
        failed: dict[tuple[str, str], str] = {}
        if given.clock == "cpu":
            failed = {run: "skipped: its processes cannot be counted as one" for run in runs if run[0] not in ALONE}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "work.npz"
            work.write(path, name, size, seed=0)
            for turn in range(given.repeat):
                for run in [run for run in runs if run not in failed]:
                    print(f"{name}, {', '.join(run)}, run {turn + 1} of {given.repeat}", file=sys.stderr, flush=True)
                    found = once(*run, path, size.clients, given.rounds, given.device, given.patience)
                    if isinstance(found, str):
                        failed[run] = found
                    else:
                        runs[run].append(found)
        here = compared([summary(name, size, *run, done) for run, done in runs.items() if done and run not in failed])
        what = f"{size.clients} clients, {size.steps} mini-batches of {size.batch}"
        console.print(table(f"{name}, {what}: one mini-batch of one client (ms), and how many times ours", here))
        notes = [(line["peer"], line["method"], f"* {line['otherwise']}") for line in here if line["otherwise"]]
        for peer, method, reason in notes + [(*run, reason) for run, reason in failed.items()]:
            console.print(f"{peer}, {method}: {reason}", markup=False, highlight=False, soft_wrap=True)
        lines += here
        silent += [{"work": name, "peer": run[0], "method": run[1], "reason": why} for run, why in failed.items()]
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "peers.json").write_text(json.dumps({"results": lines, "silent": silent}, indent=1) + "\n")


if __name__ == "__main__":
    main()
