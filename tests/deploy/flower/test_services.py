"""What a silo makes of a coordinator that does not take it yet."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from coterie.deploy.flower import services
from coterie.errors import BadInput


@pytest.mark.parametrize("known", [False, True])
def test_a_silo_waits_until_a_coordinator_of_many_silos_has_registered_its_key(known: bool) -> None:
    refused: Any = SimpleNamespace(name="SuperNode", logged=lambda: "Exit Code: 305")
    said = list[str]()
    services._judge_end(refused, time.monotonic() - 120, known, said.append)  # Flower takes two seconds a key
    assert said == ["not accepted yet; trying again"]
    with pytest.raises(BadInput, match="refuses this silo's key"):
        services._judge_end(refused, time.monotonic() - 200, known, said.append)
