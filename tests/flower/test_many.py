"""Twenty silos on one machine, four of them killed on the way."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pandas as pd
import pytest
from real import digits, real, really, when

pytest.importorskip("flwr")
pytestmark = really
NAMES = [f"silo-{i:02d}" for i in range(20)]


def memory(of: list[int]) -> float:
    """Resident megabytes of these sessions and keepers."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session in of or int(entry.name) in of:
                    total += int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
    return total


def test_twenty_silos_of_which_four_are_killed_finish_five_rounds(tmp_path: Path) -> None:
    with real(tmp_path / "fed", digits(NAMES)) as fed:
        running = fed.begin(fed.study(["fedamp"], rounds=5, measure_every=5))
        sessions = [party.process.pid for party in fed.silos.values()] + [fed.coordinator.process.pid]
        sessions += [party.program("SuperNode") for party in fed.silos.values()]
        sessions += [fed.coordinator.program(name) for name in ("SuperLink", "SuperExec")]
        peak = [memory(sessions)]
        when(lambda: peak.append(memory(sessions)) or fed.progress().get("round", 0) >= 1, 400)
        for name in NAMES[:4]:
            os.kill(fed.silos[name].program("SuperNode"), signal.SIGKILL)
        when(lambda: peak.append(memory(sessions)) or running.poll() is not None, 900)
        shown = running.communicate()[0]
        assert running.returncode == 0, shown
        results = pd.read_parquet(fed.latest() / "results.parquet")
        assert results["round"].max() == 5
        last = results[results["round"] == 5]
        assert set(last["silo"]) >= set(NAMES[4:])
        seconds = pd.read_json(fed.latest() / "summary.json")["methods"]["fedamp"]
        sys.stdout.write(f"\n{shown}\npeak {max(peak):.0f} MB; {seconds}\n")
