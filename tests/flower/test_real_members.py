"""Who joins, who leaves, who is refused, in a federation of real Flower processes."""

import os
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from real import COMMAND, Real, by_silo, coterie, digits, environment, really, simulated, when

pytest.importorskip("flwr")
from coterie.engine.flower import parties
from coterie.engine.flower.home import settings
from coterie.engine.flower.own import save_silo

pytestmark = really


def test_a_run_that_is_stopped_goes_on_and_serves_a_silo_that_was_added(fed: Real) -> None:
    running = fed.begin(fed.study(["scaffold"]))
    when(lambda: fed.progress().get("round") == 1, 240)
    running.send_signal(signal.SIGINT)
    shown, _ = running.communicate(timeout=120)
    run = fed.latest()
    assert running.returncode == 130 and f"--resume {run.name}" in shown
    assert "Traceback" not in shown
    fed.added(digits([*fed.names, "west"])[3])
    coterie("federation", "run", str(fed.folder), "--resume", run.name, timeout=600)
    fed.gone("west")
    results = pd.read_parquet(run / "results.parquet")
    unseen = results["measure"].str.endswith("_unseen")
    pd.testing.assert_series_equal(by_silo(results[~unseen]), simulated(fed, ["scaffold"]), atol=1e-4, rtol=0)
    assert set(results[unseen]["silo"]) == {"west"}
    assert list((fed.folder / "silos" / "west" / "models").rglob("west.safetensors"))


def test_a_silo_whose_key_is_not_registered_is_told_so_and_ends(fed: Real, tmp_path: Path) -> None:
    port = settings(fed.folder / "coordinator")["port"]
    parties.new_federation(tmp_path / "other", ["stranger"], "127.0.0.1", port, None)
    stranger = tmp_path / "other" / "silos" / "stranger"
    (stranger / "ca.crt").write_bytes((fed.folder / "coordinator" / "ca.crt").read_bytes())
    save_silo(digits(["stranger"])[0], stranger / "data.npz")
    done = coterie("silo", str(stranger), check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "coterie: the coordinator refuses this silo's key: it is not registered there; ask the coordinator"
    ]


def test_a_silo_with_another_version_of_coterie_is_left_out_and_both_sides_read_why(fed: Real, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import coterie\ncoterie.__version__ = '9.9'\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ahead = fed.added(digits([*fed.names, "ahead"])[3], PYTHONPATH=path)
    run, shown = fed.run(fed.study(["fedavg"], rounds=1, measure_every=1))
    fed.gone("ahead")
    reason = "this silo 9.9; install the same"
    told = [line for line in ahead.said().splitlines() if reason in line]
    assert told and all(" refused " in line and "the coordinator runs coterie" in line for line in told)
    assert "ahead: refused: the coordinator runs coterie" in shown and reason in shown
    assert set(pd.read_parquet(run / "results.parquet")["silo"]) == set(fed.names)


def test_without_tls_a_silo_is_known_by_its_name_all_the_same(tmp_path: Path) -> None:
    made = Real(tmp_path / "fed", digits(["north", "south"]), insecure=True)
    try:
        made.started()
        first = made.silos["north"].process.pid
        made.silos["north"].stop()
        made.silos["north"].start()
        assert made.silos["north"].process.pid != first
        made.started()
        run, _ = made.run(made.study(["scaffold"], rounds=2, measure_every=2))
        found = by_silo(pd.read_parquet(run / "results.parquet"))
        expected = simulated(made, ["scaffold"], rounds=2, measure_every=2)
        pd.testing.assert_series_equal(found, expected, atol=1e-4, rtol=0)
    finally:
        made.stop()


def test_watching_shows_silos_and_run_and_ends_with_ctrl_c(fed: Real) -> None:
    words = [*COMMAND, "federation", "status", str(fed.folder), "--watch"]
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    lines = [watching.stdout.readline() for _ in fed.names]
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    assert any(line.startswith("north: online") for line in lines), lines
    assert (watching.returncode, errors) == (0, "")
