"""Keys that are removed, and a database that is lost, in a federation of real Flower processes."""

from pathlib import Path

import pandas as pd
import pytest
from real import Real, coterie, digits, really, when

pytest.importorskip("flwr")
from coterie.deploy.home import nodes

pytestmark = really


def test_a_silo_whose_key_is_removed_is_locked_out_at_once_and_a_lost_database_locks_out_nobody(tmp_path: Path) -> None:
    made = Real(tmp_path / "fed", digits(["north", "south", "east"]))
    folder = made.folder / "coordinator"
    try:
        made.started()
        (folder / "members" / "east.pub").unlink()
        when(lambda: "locked out east" in made.coordinator.said(), 60)
        when(lambda: "not accepted yet" in made.silos["east"].said(), 60)  # though it was connected
        assert set(states(made)) == {"north", "south"} == set(nodes(folder))
        before = nodes(folder)
        made.coordinator.stop()
        for path in (folder / "state").glob("superlink.db*"):
            path.unlink()
        made.coordinator.start()
        when(lambda: set(states(made).values()) == {"online"}, 240)
        assert set(nodes(folder)) == {"north", "south"} and not set(nodes(folder).values()) & set(before.values())
        run, _ = made.run(made.study(["scaffold"], rounds=1, measure_every=1))
        assert set(pd.read_parquet(run / "results.parquet")["silo"]) == {"north", "south"}
        assert made.silos["east"].process.wait(300) == 2  # it was told and gave up
        assert "refuses this silo's key" in made.silos["east"].said()
    finally:
        made.stop()


def states(made: Real) -> dict[str, str]:
    """What `coterie federation status` says of each silo."""
    shown = coterie("federation", "status", str(made.folder), check=False).stdout
    return dict(line.split()[:2] for line in shown.splitlines() if line.split()[:1] and line.split()[0] in made.names)
