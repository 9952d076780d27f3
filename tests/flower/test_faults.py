"""kill -9 of everything that can be killed, in the middle of a run."""

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from real import Real, by_silo, digits, processes_of, real, really, simulated, when

from coterie.engine.flower.ledger import Ledger

pytest.importorskip("flwr")
pytestmark = really
NAMES = ["north", "south", "east"]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def in_round(fed: Real, round: int) -> None:
    when(lambda: fed.progress().get("state") == "training" and fed.progress().get("round") == round, 240)


def training_process(fed: Real, silo: str) -> int:
    found = list[int]()

    def seen() -> bool:
        found[:] = processes_of(fed.silos[silo].program("SuperNode"), "flwr-clientapp")
        return bool(found)

    when(seen, 60)
    return found[0]


def nothing_lost(fed: Real, rounds: int, missed: str = "") -> None:
    """Every silo answered every round once, with a whole ledger and no state given up."""
    for name in fed.names:
        home = fed.folder / "silos" / name
        said = (home / "events.log").read_text()
        assert "refused" not in said and "failed" not in said, said
        trained = [e for e in Ledger(home).entries() if e["kind"] == "train"]
        per = Counter((e["round"], e["attempt"], e["field"]) for e in trained)
        assert set(per.values()) == {1}
        if name != missed:
            assert {e["round"] for e in trained} == set(range(rounds))


@pytest.mark.parametrize("victim", ["training process", "SuperLink", "coordinator's app"])
def test_a_killed_process_costs_time_and_nothing_else(victim: str, tmp_path: Path) -> None:
    with real(tmp_path / "fed", digits(NAMES)) as fed:
        running = fed.begin(fed.study(["scaffold"]))
        in_round(fed, 1)
        if victim == "training process":
            kill(training_process(fed, "south"))
        elif victim == "SuperLink":
            kill(fed.coordinator.program("SuperLink"))
        else:
            training_process(fed, "south")
            kill(fed.progress()["pid"])
        shown, _ = running.communicate(timeout=420)
        assert running.returncode == 0, shown
        found = by_silo(pd.read_parquet(fed.latest() / "results.parquet"))
        pd.testing.assert_series_equal(found, simulated(fed, ["scaffold"]), atol=1e-4, rtol=0)
        nothing_lost(fed, 3)


def test_a_silo_whose_supernode_is_killed_is_missed_and_comes_back_under_its_name(tmp_path: Path) -> None:
    with real(tmp_path / "fed", digits(NAMES)) as fed:
        running = fed.begin(fed.study(["scaffold"], rounds=12, measure_every=12))
        in_round(fed, 1)
        training_process(fed, "south")
        kill(fed.silos["south"].program("SuperNode"))
        shown, _ = running.communicate(timeout=540)
        assert running.returncode == 0, shown
        assert "south: " in shown  # whoever watches sees who is missing, and why
        results = pd.read_parquet(fed.latest() / "results.parquet")
        assert results["round"].max() == 12
        assert set(results[results["round"] == 12]["silo"]) == set(NAMES)
        nothing_lost(fed, 12, missed="south")
        trained = {e["round"] for e in Ledger(fed.folder / "silos" / "south").entries() if e["kind"] == "train"}
        assert max(trained) == 11
