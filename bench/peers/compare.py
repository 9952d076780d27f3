"""How fast beside other libraries: `python bench/peers/compare.py [--rounds N] [--repeat N]`.

Every library does the same work (work.py) in an environment of its own; all take turns, so that a busy machine is busy
to all. What is timed is a round: sending, local training of all clients, taking in. Start-up, the first round and
evaluation are not.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import work
from install import HERE, python
from rich.console import Console
from rich.progress import track
from rich.table import Table

OURS = "coterie"
METHODS = {"fedavg": (OURS, "fluke", "pfl", "flower"), "fedamp": (OURS, "fluke")}
RUNS = [(peer, method) for method, peers in METHODS.items() for peer in peers]
PATIENCE = 600  # seconds for one run of one library


def once(peer: str, method: str, path: Path, rounds: int) -> dict[str, object] | str:
    """One run of one library in its environment: its result, or why there is none."""
    interpreter = Path(sys.executable) if peer == OURS else python(peer)
    if not interpreter.exists():
        return f"skipped: not installed; run `python bench/peers/install.py {peer}`"
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(os.cpu_count())] if peer == "pfl" else []
    command = [interpreter, *launcher, HERE / f"{peer}_runner.py", path, method, str(rounds)]
    # One thread for each process: the matrices are small, and threads on a busy machine wait for each other.
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=alone, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return f"failed: took more than {PATIENCE} s"
    results = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if done.returncode == 0 and results:
        return json.loads(results[-1])
    return f"failed: {(done.stderr.strip() or 'it printed nothing').splitlines()[-1]}"


def summary(peer: str, method: str, runs: list[dict[str, object]]) -> dict[str, object]:
    """The median over all rounds of all runs but each run's first, as ms for a mini-batch of a client."""
    each = [1e3 * s / (work.CLIENTS * work.STEPS) for run in runs for s in run["seconds"][1:]]
    losses = [run["loss"] for run in runs]
    return {
        "peer": peer,
        "method": method,
        "ms": statistics.median(each),
        "ms_low": min(each),
        "ms_high": max(each),
        "client_steps_per_second": 1e3 / statistics.median(each),
        "loss": statistics.median(losses),
        "rounds": len(each),
    }


def main() -> None:
    """Print the table and write it to bench/out/peers.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of one run; the first does not count")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each library")
    parser.add_argument("--out", type=Path, default=HERE.parent / "out")
    given = parser.parse_args()
    console = Console(width=110)
    results: dict[tuple[str, str], list[dict[str, object]]] = {run: [] for run in RUNS}
    silent: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work.npz"
        work.write(path, seed=0)
        for peer, method in track(RUNS * given.repeat, "libraries in turn", console=console, transient=True):
            if (peer, method) in silent:
                continue
            found = once(peer, method, path, given.rounds)
            if isinstance(found, str):
                silent[peer, method] = found
            else:
                results[peer, method].append(found)
    lines = [summary(*run, runs) for run, runs in results.items() if runs and run not in silent]
    ours = {line["method"]: line["ms"] for line in lines if line["peer"] == OURS}
    lines = [line | {"ratio": line["ms"] / ours[line["method"]] if line["method"] in ours else None} for line in lines]
    table = Table(title="One mini-batch of one client (ms), and how many times ours")
    for heading in ("method", "library", "ms (spread)", "times ours", "client-steps / s", "loss at the end", "rounds"):
        table.add_column(heading, justify="left" if heading in ("method", "library") else "right")
    for line in lines:
        times = "" if line["ratio"] is None else f"{line['ratio']:.1f}"
        table.add_row(
            line["method"], line["peer"], f"{line['ms']:.3f} ({line['ms_low']:.3f}–{line['ms_high']:.3f})", times,
            f"{line['client_steps_per_second']:.0f}", f"{line['loss']:.4f}", str(line["rounds"]),
        )  # fmt: skip
    console.print(table)
    for (peer, method), reason in silent.items():
        console.print(f"{peer}, {method}: {reason}", markup=False, highlight=False)
    given.out.mkdir(parents=True, exist_ok=True)
    silence = [{"peer": peer, "method": method, "reason": reason} for (peer, method), reason in silent.items()]
    (given.out / "peers.json").write_text(json.dumps({"results": lines, "silent": silence}, indent=1) + "\n")


if __name__ == "__main__":
    main()
