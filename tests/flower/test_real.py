"""Real Flower processes on loopback: TLS, registered keys, nginx before them."""

import json
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pandas as pd
import pytest
from real import by_silo, coterie, digits, nginx, real, really, simulated, when

from coterie.engine.flower.own import save_silo

pytest.importorskip("flwr")
pytestmark = really

METHODS = ["fedavg", "scaffold", "fedamp", "apple", "fedem"]


@nginx
def test_three_silos_get_what_a_simulation_gives_them_and_nothing_else_is_published(tmp_path: Path) -> None:
    with real(tmp_path / "fed", digits(["north", "south", "east"]), proxy=True) as fed:
        refused_at_the_door(fed.folder)
        run, shown = fed.run(fed.study(METHODS), timeout=900)
        assert "3 of 3 silos replied" in shown
        found = by_silo(pd.read_parquet(run / "results.parquet"))
        pd.testing.assert_series_equal(found, simulated(fed, METHODS), atol=1e-4, rtol=0)
        assert (run / "report.html").exists()
        assert list(json.loads((run / "summary.json").read_text())["methods"]) == METHODS
        for name in fed.names:
            home = fed.folder / "silos" / name
            for method in METHODS:
                assert list((home / "models" / f"{run.name}-{method}-1").glob("*.safetensors"))
            assert "the chain is whole" in coterie("silo", "ledger", str(home)).stdout
        assert not list((fed.folder / "coordinator").rglob("*north*.safetensors"))


@nginx
def test_a_run_that_is_stopped_goes_on_and_serves_a_silo_that_was_added(tmp_path: Path) -> None:
    with real(tmp_path / "fed", digits(["north", "south"]), proxy=True) as fed:
        refused_at_the_door(fed.folder)
        running = fed.begin(fed.study(["scaffold"]))
        when(lambda: fed.progress().get("round") == 1, 240)
        running.send_signal(signal.SIGINT)
        shown, _ = running.communicate(timeout=60)
        assert running.returncode == 130 and f"--resume {fed.latest().name}" in shown
        coterie("federation", "add", str(fed.folder), "west")
        save_silo(digits(["north", "south", "west"])[2], fed.folder / "silos" / "west" / "data.npz")
        fed.silos["west"] = fed.silo("west")
        fed.started()
        coterie("federation", "run", str(fed.folder), "--resume", fed.latest().name, timeout=400)
        results = pd.read_parquet(fed.latest() / "results.parquet")
        unseen = results["measure"].str.endswith("_unseen")
        pd.testing.assert_series_equal(by_silo(results[~unseen]), simulated(fed, ["scaffold"]), atol=1e-4, rtol=0)
        assert set(results[unseen]["silo"]) == {"west"}
        assert list((fed.folder / "silos" / "west" / "models").rglob("west.safetensors"))


def refused_at_the_door(folder: Path) -> None:
    """Whoever holds only the CA's certificate can neither register a key nor start a run."""
    own = json.loads((folder / "coordinator" / "settings.json").read_text())
    context = ssl.create_default_context(cafile=str(folder / "silos" / "north" / "ca.crt"))
    closed = [
        "/v1/control/register-node",
        "/v1/control/start-run",
        "/v1/control/list-nodes",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "//v1/control/start-run",
        "/",
        "/docs",
        "/openapi.json",
    ]
    for path in closed:
        request = urllib.request.Request(f"https://127.0.0.1:{own['port']}{path}", data=b"", method="POST")
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, context=context, timeout=10)
        assert error.value.code == 403, path
    # What silos need is open, but says nothing to one without a registered key.
    request = urllib.request.Request(f"https://127.0.0.1:{own['port']}/v1/fleet/pull-messages", data=b"", method="POST")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, context=context, timeout=10)
    assert error.value.code in (400, 401, 415, 422), error.value.read()
