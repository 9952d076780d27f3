"""No object that a user can get hold of shows or pickles a row of data, and no refusal carries one away."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_silos import NAMES, hospital
from rich.pretty import pretty_repr

import coterie as co
from coterie.data.own.gather import from_frame
from coterie.data.own.ready import OwnData, ready, split
from coterie.data.own.schema import Schema
from coterie.data.silo import Pool
from coterie.deploy.home import EVENTS
from coterie.deploy.messages import Request
from coterie.deploy.own import Raw, SiloSource
from coterie.deploy.policy import FILE, policy_text
from coterie.deploy.silo import SiloSide
from coterie.errors import BadInput

NUMBER, TEXT = 61.73, "Mrs Sentinel"
MARKS = ("61.73", "Sentinel")


def patients(place: int) -> pd.DataFrame:
    return hospital(place).assign(age=NUMBER, ward=[TEXT, "er"] * (len(hospital(place)) // 2), cost=NUMBER)


def batch_of(fed: co.Federation) -> co.Batch:
    """What a method's step is handed."""
    seen = list[co.Batch]()

    def look(task: co.Task, state: co.Weights, batch: co.Batch) -> co.Weights:
        seen.append(batch)
        return state

    engine = fed._assembly.engine(co.FedAvg())
    task = engine.task(torch.arange(1), 0)
    w = task.start()
    task.run(look, co.Weights(w=w, opt=task.optimizer.init(w)), "look", epochs=1)
    return seen[0]


@pytest.fixture(scope="module")
def objects():
    frames = {name: hospital(i) for i, name in enumerate(NAMES)}
    for frame in frames.values():
        frame.loc[frame.index[:20], ["age", "ward"]] = [NUMBER, TEXT]
        frame.loc[frame.index[:20], "cost"] = NUMBER
    silos = co.silos(frames, label="outcome", drop=["patient"])
    fed = co.Federation(silos, model="linear", rows="all")
    comparison = fed.compare(["separate", "fedavg"], rounds=1, quiet=True)
    holding = from_frame("north", frames["north"], "outcome", ("patient",), "north")
    data = ready(silos.holdings, OwnData(label="outcome", drop=("patient",)), 0)
    regression = split(from_frame("north", frames["north"], "cost", ("patient",), "north"), OwnData(label="cost"), 0)
    return {
        "silos": silos,
        "federation": fed,
        "comparison": comparison,
        "result": comparison["fedavg"],
        "run": comparison.run,
        "experiment": co.study("digits"),
        "study": fed._study,
        "assembly": fed._assembly,
        "store": fed._assembly.store,
        "ragged": fed._assembly.store["train"],
        "batch": batch_of(fed),
        "holding": holding,
        "federated": data,
        "silo": data.silos[0],
        "part": data.silos[0].train,
        "split": regression,
        "label": regression.label,
        "pool": Pool("p", np.full((3, 2), NUMBER), np.full(3, NUMBER), 0),
        "model": comparison["fedavg"]["north"],
        "schema": data.schemas["north"],
    }  # fmt: skip


HELD = (
    "silos", "federation", "comparison", "result", "study", "assembly", "holding", "federated", "silo", "part",
    "split", "label", "pool",
)  # fmt: skip


@pytest.mark.parametrize("name", [*HELD, "run", "experiment", "store", "model", "schema"])
def test_it_is_shown_without_a_row(name, objects):
    each = objects[name]
    for shown in (repr(each), str(each), f"{[each]}", pretty_repr(each)):
        assert not any(mark in shown for mark in MARKS) and len(shown) < 2000


@pytest.mark.parametrize("name", HELD)
def test_it_is_not_pickled_and_says_what_to_do_instead(name, objects):
    with pytest.raises(BadInput, match=r"holds data and is not pickled; keep a result with result\.save\(folder\)"):
        pickle.dumps(objects[name])


def test_a_model_is_not_pickled_for_it_may_remember_rows(objects):
    with pytest.raises(BadInput, match=r"may hold a silo's rows and is not pickled; keep .*coterie\.load_model"):
        pickle.dumps(objects["model"])


def test_what_is_shown_says_what_it_is(objects):
    names = "st-mary, north, coast, east, …"
    assert repr(objects["silos"]) == f"Silos(5 silos: {names}; label 'outcome')"
    assert repr(objects["federation"]) == f"Federation(5 silos: {names}; model linear)"
    assert repr(objects["result"]) == "Result(fedavg on 5 silos, 1 round)"
    assert repr(objects["comparison"]) == "Comparison(2 methods on 5 silos: separate, fedavg)"
    assert repr(objects["model"]) == "PersonalModel(north: fedavg, 10 inputs, 3 classes)"
    assert repr(objects["silo"]) == "Silo(st-mary: 38 to train, 10 to validate, 12 to test)"


def test_a_result_does_not_hold_what_the_silos_hold(objects):
    assert set(vars(objects["comparison"])) == {"run", "folder", "code", "kept"}  # what is read from the run's folder


def spoil_value(home: Path) -> SiloSource:
    frame = patients(0).assign(pressure=[TEXT, *map(str, range(59))])
    return table(home, frame)


def spoil_size(home: Path) -> SiloSource:
    return table(home, patients(0).assign(pressure=[6173e200, *range(59)]))


def spoil_line(home: Path) -> SiloSource:
    path = table(home, patients(0)).path
    path.write_text(path.read_text() + f"{NUMBER},{TEXT}\n")
    return SiloSource(path, "outcome")


def spoil_archive(home: Path) -> SiloSource:
    np.savez(home / "a.npz", x=np.zeros((20, 2), np.float32), y=np.full(20, -6173))
    return SiloSource(home / "a.npz")


def spoil_picture(home: Path) -> SiloSource:
    (home / "pictures" / "cat").mkdir(parents=True)
    (home / "pictures" / "cat" / f"{TEXT}.png").write_bytes(b"61.73")
    return SiloSource(home / "pictures")


def table(home: Path, frame: pd.DataFrame) -> SiloSource:
    frame.to_csv(home / "patients.csv", index=False)
    return SiloSource(home / "patients.csv", "outcome", ("patient",))


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("describe", spoil_value),
        ("declare", spoil_size),
        ("describe", spoil_size),
        ("declare", spoil_line),
        ("declare", spoil_archive),
        ("declare", spoil_picture),
    ],
)
def test_no_value_of_a_row_leaves_in_a_refusal(kind: Any, spoil: Callable[[Path], SiloSource], tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(policy_text())
    answer = SiloSide("north", tmp_path, spoil(tmp_path), "cpu").answer(Request(kind, "north", "run", 0))
    assert answer.refusal == "its data cannot be used; the silo's own log says why"
    told = (tmp_path / EVENTS).read_text()
    assert any(mark in told for mark in (*MARKS, "6173", "6.173"))  # where its owner looks


def test_a_class_that_nobody_declared_stays_at_home(tmp_path: Path) -> None:
    raw = Raw("north", table(tmp_path, patients(0).assign(outcome=[TEXT, "well"] * 30)))
    with pytest.raises(BadInput, match=TEXT) as told:
        raw.encoded(Schema("outcome", ("ill", "well")))
    assert TEXT not in told.value.public
