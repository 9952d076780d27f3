"""What a run waits for before its first round: nothing that only its report or its tests of significance need."""

import subprocess
import sys

import numpy as np
import pandas as pd

UNTIL_ROUND_1 = """
import os, sys
from coterie.run import experiment
run_into = experiment.run_into

def until_round_1(study, out, command, watch, say, *more):
    def first(method, seed, progress):
        if progress.round == 1:
            print(*{name.split(".")[0] for name in sys.modules}, flush=True)
            os._exit(0)
    return run_into(study, out, command, first, say, *more)

experiment.run_into = until_round_1
from coterie.commands.main import main
main()
"""


def test_the_first_round_comes_before_the_libraries_that_it_does_not_need(tmp_path):
    for silo in range(3):
        x = np.random.default_rng(silo).normal(size=(30, 3))
        (tmp_path / "own").mkdir(exist_ok=True)
        frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(outcome=(x[:, 0] > 0).astype(int))
        frame.to_csv(tmp_path / "own" / f"{silo}.csv", index=False)
    words = ["run", "--silos", tmp_path / "own", "--label", "outcome", "--out", tmp_path / "run", "--tune", "off"]
    ended = subprocess.run(
        [sys.executable, "-c", UNTIL_ROUND_1, *map(str, words), "--quiet"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not {"scipy", "sympy", "sklearn", "plotly"} & set(ended.stdout.split())


def test_threads_that_wait_sleep_unless_the_user_says_otherwise(monkeypatch):
    ask = [sys.executable, "-c", "import coterie, os; print(os.environ['OMP_WAIT_POLICY'])"]
    for chosen, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if chosen:
            monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
        ended = subprocess.run(ask, capture_output=True, text=True, timeout=300, check=True)
        assert ended.stdout.split() == [expected]
