"""Real Flower processes whose server cannot read models: keys made by the silos, as docs/secure.md has it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from real import Real, by_silo, coterie, digits, really, simulated, when

pytest.importorskip("flwr")
from coterie.deploy.group import group_of
from coterie.deploy.vault import PINNED
from coterie.secure.masks import subkey

pytestmark = really
NAMES = ["north", "south", "east"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Three silos that made their own keys, met each other, and joined one group; all by commands."""
    made = Real(tmp_path_factory.mktemp("secured") / "fed", digits(NAMES), own_keys=True)
    homes = {name: made.folder / "silos" / name for name in NAMES}
    keys = {name: str(home / "key.pub") for name, home in homes.items()}
    try:
        printed = coterie("silo", "group", str(homes["north"]), keys["south"], keys["east"]).stdout
        for name in ("south", "east"):
            sealed = homes["north"] / "group" / f"{name}.sealed"
            joined = coterie("silo", "join", str(homes[name]), str(sealed), keys["north"]).stdout
            assert joined.splitlines()[0] in printed  # the fingerprint that members compare
        for name, home in homes.items():
            met = coterie("silo", "meet", str(home), *(key for other, key in keys.items() if other != name)).stdout
            assert all(f"{other}: SHA256:" in met for other in NAMES if other != name)
        made.started()
        yield made
    finally:
        made.stop()


def demand(fed: Real, level: str) -> None:
    """Every silo demands the level, and approves any study that has it."""
    for name in NAMES:
        policy = fed.folder / "silos" / name / "silo.toml"
        lines = policy.read_text().splitlines()
        own = {"approve": "all", "secure": level}
        key = [line.partition(" = ")[0] for line in lines]
        policy.write_text("\n".join(f'{k} = "{own[k]}"' if k in own else x for k, x in zip(key, lines, strict=True)))


def study(fed: Real, method: str, level: str, **train: object) -> Path:
    path = fed.study([method], **train)
    path.write_text(f'{path.read_text()}\n[secure]\nlevel = "{level}"\n')
    return path


def test_a_plain_study_is_refused_where_silos_demand_a_level(secured: Real) -> None:
    demand(secured, "blind")
    done = coterie(*secured.words(secured.study(["fedamp"], rounds=1, measure_every=1)), check=False)
    assert done.returncode == 2
    assert "demands blind, and of method 'fedamp' the server learns every upload" in done.stdout + done.stderr


def test_blind_attention_ends_as_in_a_simulation_with_the_same_group_key(
    secured: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(secured, "blind")
    run, _ = secured.run(study(secured, "fedamp", "blind"))
    home = secured.folder / "silos" / "north"
    (state,) = (home / "state").glob(f"{run.name}-*")
    group = subkey(group_of(home, state.name), "job", (state / PINNED).read_text())
    monkeypatch.setattr("coterie.methods.wrappers.hidden.simulated", lambda task: group)
    expected = simulated(secured, ["fedamp"], options={"blind": {}})
    found = by_silo(pd.read_parquet(run / "results.parquet"))
    pd.testing.assert_series_equal(found, expected, atol=1e-4, rtol=0)
    lines = map(json.loads, (home / "ledger.jsonl").read_text().splitlines())
    left = {e["field"] for e in lines if e["kind"] == "train" and e["run"].startswith(run.name)}
    assert left == {"w", "nonce", "out_of_range", "sketch", "start_sketch"}


def test_sums_end_as_in_the_clear(secured: Real) -> None:
    demand(secured, "secagg")
    run, _ = secured.run(study(secured, "fedavg", "secagg"))
    found = by_silo(pd.read_parquet(run / "results.parquet"))
    pd.testing.assert_series_equal(found, simulated(secured, ["fedavg"]), atol=1e-4, rtol=0)


def test_sums_survive_a_silo_that_ends_in_the_middle_of_a_round(secured: Real) -> None:
    """Last, since the silo stays away: of three silos two are enough for a sum."""
    demand(secured, "secagg")
    running = secured.begin(study(secured, "fedavg", "secagg"))
    when(lambda: secured.progress().get("state") == "training" and secured.progress().get("round") == 1, 600)
    secured.gone("south")
    shown, _ = running.communicate(timeout=900)
    assert running.returncode == 0, shown
    assert "south: " in shown  # whoever watches sees who is missing, and why
    results = pd.read_parquet(secured.latest() / "results.parquet")
    assert {"north", "east"} <= set(results[results["round"] == 3]["silo"])
