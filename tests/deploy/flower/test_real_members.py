"""Who joins, who leaves, who is refused, in a federation of real Flower processes."""

import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from real import COMMAND, Real, by_silo, coterie, digits, environment, really, simulated

pytest.importorskip("flwr")
from coterie.deploy import parties
from coterie.deploy.home import settings
from coterie.deploy.own import save_silo

pytestmark = really


@pytest.fixture(scope="module", autouse=True)
def stranger(fed: Real, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A silo whose key is not registered; it takes a while to give up, so it begins first."""
    folder = tmp_path_factory.mktemp("stranger") / "other"
    port = settings(fed.folder / "coordinator")["port"]
    parties.new_federation(folder, ["stranger"], "127.0.0.1", port, None)
    home = folder / "silos" / "stranger"
    (home / "ca.crt").write_bytes((fed.folder / "coordinator" / "ca.crt").read_bytes())
    save_silo(digits(["stranger"])[0], home / "data.npz")
    with begun("silo", str(home)) as process:
        yield process
        process.terminate()


def begun(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*COMMAND, *words], stdout=pipe, stderr=pipe, text=True, env=environment())


def test_a_run_is_watched_and_stopped_and_goes_on_and_serves_a_silo_that_was_added(fed: Real) -> None:
    watching = begun("federation", "status", str(fed.folder), "--watch")
    running = fed.begin(fed.study(["scaffold"]))
    seen = list(itertools.takewhile(lambda line: not re.search(r"round [12]/3 .*3 of 3", line), watching.stdout))
    running.send_signal(signal.SIGINT)
    watching.send_signal(signal.SIGINT)
    shown, _ = running.communicate(timeout=120)
    run = fed.latest()
    assert running.returncode == 130 and f"--resume {run.name}" in shown
    assert "Traceback" not in shown
    assert {f"{name}: online\n" for name in fed.names} <= {*seen}
    assert (watching.wait(60), watching.stderr.read()) == (0, "")
    fed.added(digits([*fed.names, "west"])[3])
    coterie("federation", "run", str(fed.folder), "--resume", run.name, timeout=600)
    fed.gone("west")
    results = pd.read_parquet(run / "results.parquet")
    unseen = results["measure"].str.endswith("_unseen")
    pd.testing.assert_series_equal(by_silo(results[~unseen]), simulated(fed, ["scaffold"]), atol=1e-4, rtol=0)
    assert set(results[unseen]["silo"]) == {"west"}
    assert list((fed.folder / "silos" / "west" / "models").rglob("west.safetensors"))


def test_a_silo_whose_key_is_not_registered_is_told_so_and_ends(stranger: subprocess.Popen[str]) -> None:
    _, errors = stranger.communicate(timeout=240)
    assert stranger.returncode == 2
    assert errors.splitlines() == [
        "coterie: the coordinator refuses this silo's key: it is not registered there; ask the coordinator"
    ]


def test_a_silo_with_another_version_of_coterie_is_left_out_and_both_sides_read_why(fed: Real, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("from coterie import version\nversion.VERSION = '9.9'\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ahead = fed.added(digits([*fed.names, "ahead"])[3], PYTHONPATH=path)
    run, shown = fed.run(fed.study(["fedavg"], rounds=1, measure_every=1))
    fed.gone("ahead")
    reason = "this silo 9.9+"
    told = [line for line in ahead.said().splitlines() if reason in line]
    assert told and all(" refused: the coordinator runs coterie" in line for line in told)
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
