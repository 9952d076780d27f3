"""A training process that is killed before it has read its message, in a federation of real Flower processes."""

import os
from pathlib import Path

import pandas as pd
import pytest
from real import Real, digits, really, when

from coterie.deploy.ledger import Ledger

pytest.importorskip("flwr")
pytestmark = really

# Python runs it at every start: the next process that is forked while the file is there takes its task, and dies
# before it reads the message. (For one that dies before it has taken its task Flower starts another.)
DEADLY = """
import os, signal, sys
fork, armed = os.fork, {armed!r}
def forked():
    child = fork()
    if child == 0 and os.path.exists(armed):
        os.unlink(armed)
        flower = sys.modules["flwr.supernode.runtime.run_clientapp"]
        flower.RuntimeHttpClient.PullMessages = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
    return child
os.fork = forked
"""


def test_a_silo_whose_process_died_before_it_read_its_message_gets_up_again(tmp_path: Path) -> None:
    rounds, armed = 60, tmp_path / "armed"  # of half a second each: a SuperNode takes twelve to start again
    (tmp_path / "deadly").mkdir()
    (tmp_path / "deadly" / "sitecustomize.py").write_text(DEADLY.format(armed=str(armed)))
    made = Real(tmp_path / "fed", digits(["north", "south"]))
    try:
        made.silos["south"].stop()
        path = f"{tmp_path / 'deadly'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        made.silos["south"] = made.silo("south", PYTHONPATH=path)
        made.started()
        running = made.begin(made.study(["scaffold"], rounds=rounds, measure_every=rounds))
        when(lambda: made.progress().get("state") == "training" and made.progress().get("round") == 1, 240)
        armed.touch()
        when(lambda: not armed.exists(), 120)
        when(lambda: made.progress().get("waiting") == ["south"], 60)
        shown, _ = running.communicate(timeout=500)
        assert running.returncode == 0, shown
        assert "no process works on" in made.silos["south"].said()
        assert "no answer yet from south" in shown  # whoever watches sees who is silent
        results = pd.read_parquet(made.latest() / "results.parquet")
        assert set(results[results["round"] == rounds]["silo"]) == {"north", "south"}
        entries = Ledger(made.folder / "silos" / "south").entries()
        assert max(e["round"] for e in entries if e["kind"] == "train") == rounds - 1
    finally:
        made.stop()
