"""A method and a model of an installed package, between real Flower processes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import plugin
import pytest
import real
from real import Real, by_silo, digits, really, simulated

from coterie.deploy.home import EVENTS
from coterie.deploy.policy import FILE

pytest.importorskip("flwr")
pytestmark = really


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory, toy_folder: Path) -> Iterator[Real]:
    """Three silos and a coordinator that have the toy package; the silos' policies name its method."""
    with pytest.MonkeyPatch.context() as patch:
        plugin.use(toy_folder, patch)
        patch.setattr(real, "MODEL", {"name": "tanh"})
        made = Real(tmp_path_factory.mktemp("plugin") / "fed", digits(["north", "south", "east"]))
        for name in made.names:
            allow(made.folder / "silos" / name / FILE)
        try:
            made.started()
            yield made
        finally:
            made.stop()
    plugin.forget()


def allow(policy: Path) -> None:
    """Name the package's method in a policy, which did not without being asked."""
    text = policy.read_text("utf-8")
    assert "shrunk" not in text
    policy.write_text(text.replace("methods = [", 'methods = [\n    "shrunk",'), "utf-8")


def test_three_silos_train_a_packages_method_and_model_as_a_simulation_does(toys: Real) -> None:
    study = toys.study(["shrunk"])
    study.write_text(study.read_text() + '\n[measure]\nby = "kappa"\n')
    run, shown = toys.run(study)
    assert "3 of 3 silos replied" in shown
    found = by_silo(pd.read_parquet(run / "results.parquet"))
    pd.testing.assert_series_equal(found, simulated(toys, ["shrunk"]), atol=1e-4, rtol=0)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["versions"]["toy"] == "1.0" and summary["verdict"]["measure"] == "kappa"
    assert set(pd.read_parquet(run / "results.parquet")["measure"]) >= {"kappa", "kappa_error"}


def test_a_silo_with_another_version_of_the_package_refuses_and_the_others_go_on(toys: Real, tmp_path: Path) -> None:
    newer = plugin.install_toy(tmp_path / "newer", "2.0")
    (west,) = digits(["west"])
    toys.added(west, PYTHONPATH=f"{newer}:{real.environment()['PYTHONPATH']}")
    allow(toys.folder / "silos" / "west" / FILE)
    run, _ = toys.run(toys.study(["shrunk"], rounds=1, measure_every=1))
    said = (toys.folder / "silos" / "west" / EVENTS).read_text("utf-8")
    assert "the coordinator runs toy 1.0, this silo 2.0; install the same" in said
    assert json.loads((run / "summary.json").read_text())["methods"]["shrunk"]["missing"] > 0
