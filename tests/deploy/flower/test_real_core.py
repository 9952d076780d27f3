"""Real Flower processes on loopback: TLS, registered keys, nginx before them. What CI always runs."""

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pandas as pd
import pytest
from real import NGINX, Real, by_silo, coterie, really, simulated

from coterie.deploy.home import LARGEST_DOWNLOAD

pytest.importorskip("flwr")
pytestmark = really

METHODS = ["fedavg", "scaffold", "fedamp", "apple", "fedem"]


def test_three_silos_get_what_a_simulation_gives_them(fed: Real) -> None:
    run, shown = fed.run(fed.study(METHODS))
    assert all(said in shown for said in ("round 3/3", "accuracy ", "3 of 3 silos replied"))
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


@pytest.mark.skipif(not NGINX, reason="needs Debian's nginx")
def test_whoever_holds_only_the_cas_certificate_can_neither_register_a_key_nor_start_a_run(fed: Real) -> None:
    refused_at_the_door(fed.folder)


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


def test_a_silo_drops_a_request_that_is_larger_than_it_allows_and_the_others_go_on(fed: Real) -> None:
    home = fed.folder / "silos" / "north"
    policy, events = (home / "silo.toml").read_text(), home / "events.log"
    before = len(events.read_text()) if events.exists() else 0
    lowered = policy.replace(f"largest_download = {LARGEST_DOWNLOAD}", "largest_download = 3000")
    assert lowered != policy
    (home / "silo.toml").write_text(lowered)
    try:
        _, shown = fed.run(fed.study(["fedavg"], model={"name": "mlp", "hidden": [32]}, rounds=1, measure_every=1))
    finally:
        (home / "silo.toml").write_text(policy)
    why = "a request has more bytes than largest_download in silo.toml allows"
    assert f"refused: {why}" in events.read_text()[before:]
    assert f"north: refused: {why}" in " ".join(shown.split()), shown
    _, shown = fed.run(fed.study(["fedavg"], rounds=1, measure_every=1))
    assert "3 of 3 silos replied" in shown
