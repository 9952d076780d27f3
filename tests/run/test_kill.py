"""Runs that are killed at random moments; `python bench/kill.py` does it a hundred times."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "kill.py"


@pytest.mark.slow
def test_killed_runs_lose_no_completed_round_and_end_with_the_same_bits():
    done = subprocess.run([sys.executable, BENCH, "--runs", "5"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 completed rounds lost, 5 of 5 results identical" in done.stdout
