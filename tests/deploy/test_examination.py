"""A silo finds out how its model may run over rows once, and not for every message."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from loop import NAMES, Loop, job, settle, silos
from test_drive import TABLE, by_silo, federated

from coterie.deploy import examination
from coterie.deploy.examination import FILE, probe
from coterie.engine import rows
from coterie.engine.store import Store

TWO = TABLE | {"methods": {"fedavg": {}, "fedem": {}}}


@pytest.fixture
def examinations(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a model was examined."""
    found, examine = Counter[str](), rows.examine

    def counted(*given: object) -> object:
        found["all"] += 1
        return examine(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(rows, "examine", counted)
    return found


@pytest.mark.slow
def test_a_model_is_examined_for_the_first_message_only_and_results_are_the_same(
    tmp_path: Path, examinations: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = federated(tmp_path / "run", Loop(settle(tmp_path)), TWO).run("").results
    assert examinations["all"] == len(NAMES)
    monkeypatch.setattr(examination, "recalled", lambda *given: {}["nothing"])
    anew = federated(tmp_path / "again" / "run", Loop(settle(tmp_path / "again")), TWO).run("").results
    assert examinations["all"] > 10 * len(NAMES)
    pd.testing.assert_series_equal(by_silo(kept), by_silo(anew), atol=0, rtol=0)


def probed(folder: Path, hidden: int) -> None:
    """What a process that answers a message does first."""
    made = replace(job("fedavg"), model={"name": "mlp", "hidden": [hidden]})
    _, model, _ = made.built()
    probe(folder, made, model, Store(silos()[:1], model.device, model.dtype)["train"].x[:2])
    assert model.output == (3,)


def test_another_model_or_a_damaged_file_is_examined_again(tmp_path: Path, examinations: Counter[str]) -> None:
    for _ in range(2):
        probed(tmp_path, 4)
    assert examinations["all"] == 1
    probed(tmp_path, 5)
    assert examinations["all"] == 2
    path = tmp_path / FILE
    good = json.loads(path.read_text())
    for spoiled in ("", "[]", "{", json.dumps(good | {"found": {}}), json.dumps(good | {"found": 3})):
        path.write_text(spoiled)
        before = examinations["all"]
        probed(tmp_path, 5)
        assert examinations["all"] == before + 1 and json.loads(path.read_text()) == good
