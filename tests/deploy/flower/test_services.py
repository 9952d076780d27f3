"""What a silo makes of a coordinator that does not take it yet."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from coterie.deploy.flower import commands, services
from coterie.errors import BadInput


@pytest.mark.parametrize("known", [False, True])
def test_a_silo_waits_until_a_coordinator_of_many_silos_has_registered_its_key(known: bool) -> None:
    refused: Any = SimpleNamespace(name="SuperNode", logged=lambda: "Exit Code: 305")
    said = list[str]()
    services._judge_end(refused, time.monotonic() - 120, known, said.append)  # Flower takes two seconds a key
    assert said == ["not accepted yet; trying again"]
    with pytest.raises(BadInput, match="refuses this silo's key"):
        services._judge_end(refused, time.monotonic() - 200, known, said.append)


def test_flowers_command_line_is_found_where_it_is_not_beside_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's own Python has its programs in another folder: a coordinator in such a container ended at once."""
    program = tmp_path / "bin" / "flwr"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho \'{"success": true, "runs": []}\'\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert commands.run_status(tmp_path, "1") == commands.UNKNOWN
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="flwr is not installed"):
        commands.run_status(tmp_path, "1")
