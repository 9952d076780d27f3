"""kill -9 of everything that can be killed, in the middle of a run."""

import contextlib
import os
import signal
import time
from collections import Counter

import pandas as pd
import pytest
import torch
from real import Real, by_silo, processes_of, really, simulated, when
from safetensors.torch import load_file

from coterie.deploy.ledger import Ledger

pytest.importorskip("flwr")
pytestmark = really


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


class Watched:
    """What silos write down from here on."""

    def __init__(self, fed: Real) -> None:
        self.fed = fed
        self.seen = {name: len(self.events(name)) for name in fed.names}

    def events(self, name: str) -> str:
        path = self.fed.folder / "silos" / name / "events.log"
        return path.read_text() if path.exists() else ""

    def nothing_lost(self, rounds: int, missed: str = "") -> None:
        """Every silo answered every round once, with a whole ledger and no state given up."""
        run = self.fed.latest().name
        assert not by_silo(pd.read_parquet(self.fed.latest() / "results.parquet")).index.has_duplicates
        for name in self.fed.names:
            said = self.events(name)[self.seen[name] :]
            assert "refused" not in said and "failed" not in said, said
            entries = Ledger(self.fed.folder / "silos" / name).entries()
            trained = [e for e in entries if e["kind"] == "train" and e["run"].startswith(run)]
            per = Counter((e["round"], e["attempt"], e["field"]) for e in trained)
            assert set(per.values()) == {1}
            if name != missed:
                assert {e["round"] for e in trained} == set(range(rounds))
        # SCAFFOLD's c is the mean of all c_i only if each upload that counted, and no other, is in its silo's state.
        (checkpoint,) = (self.fed.latest() / ".checkpoints").glob("*/ended-*.safetensors")
        method_run = f"{self.fed.latest().name}-scaffold-1"
        kept = [self.fed.folder / "silos" / name / "state" / method_run for name in self.fed.names]
        own = torch.cat([load_file(folder / "committed.safetensors")["c"] for folder in kept])
        assert own.abs().max() > 1e-3
        torch.testing.assert_close(load_file(checkpoint)["server.c"], own.mean(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("victim", ["training process", "SuperLink", "coordinator's app"])
def test_a_killed_process_costs_time_and_nothing_else(victim: str, fed: Real) -> None:
    watched = Watched(fed)
    running = fed.begin(fed.study(["scaffold"]))
    in_round(fed, 1)
    if victim == "training process":
        found = training_process(fed, "south")
        time.sleep(0.25)  # for it to read its message: who dies before that is in test_real_wedged.py
        kill(found)
    elif victim == "SuperLink":
        kill(fed.coordinator.program("SuperLink"))
    else:
        training_process(fed, "south")
        kill(fed.progress()["pid"])
    shown, _ = running.communicate(timeout=600)
    assert running.returncode == 0, shown
    found = by_silo(pd.read_parquet(fed.latest() / "results.parquet"))
    pd.testing.assert_series_equal(found, simulated(fed, ["scaffold"]), atol=1e-4, rtol=0)
    watched.nothing_lost(3)


def test_a_silo_whose_supernode_is_killed_comes_back_under_its_name(fed: Real) -> None:
    watched = Watched(fed)
    rounds = 14
    running = fed.begin(fed.study(["scaffold"], rounds=rounds, measure_every=rounds))
    in_round(fed, 1)
    training_process(fed, "south")
    kill(fed.silos["south"].program("SuperNode"))
    shown, _ = running.communicate(timeout=900)
    assert running.returncode == 0, shown
    results = pd.read_parquet(fed.latest() / "results.parquet")
    assert results["round"].max() == rounds
    assert set(results[results["round"] == rounds]["silo"]) == set(fed.names)
    watched.nothing_lost(rounds, missed="south")
    entries = Ledger(fed.folder / "silos" / "south").entries()
    ours = {e["round"] for e in entries if e["kind"] == "train" and e["run"].startswith(fed.latest().name)}
    assert max(ours) == rounds - 1
    # A silo that held the message when it died is asked again, and misses nothing; another one misses rounds, and
    # whoever watches sees who is missing, and why.
    assert len(ours) == rounds or "south: " in shown
