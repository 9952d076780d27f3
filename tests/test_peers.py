"""The comparison with other libraries, where none of them is installed."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parent.parent / "bench" / "peers"


@pytest.mark.slow
def test_ours_is_measured_and_absent_libraries_are_skipped_with_a_line(tmp_path):
    here = shutil.copytree(PEERS, tmp_path / "peers", ignore=shutil.ignore_patterns(".venv-*", "__pycache__"))
    command = [sys.executable, here / "compare.py", "--rounds", "3", "--repeat", "1", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for absent in ("fluke, fedavg", "pfl, fedavg", "flower, fedavg", "fluke, fedamp"):
        assert f"{absent}: skipped: not installed; run `python bench/peers/install.py" in done.stdout
    found = json.loads((tmp_path / "peers.json").read_text())
    assert [(line["peer"], line["method"]) for line in found["results"]] == [
        ("coterie", "fedavg"),
        ("coterie", "fedamp"),
    ]
    assert all(line["ratio"] == 1 and line["rounds"] == 2 for line in found["results"])
    assert all(line["loss"] < math.log(10) for line in found["results"])  # better than guessing: it trained
    assert len(found["silent"]) == 4
