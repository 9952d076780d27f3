"""Silos with tables of their own, between real Flower processes that reach nothing but this machine."""

import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from own_silos import NAMES, hospital
from real import Real, by_silo, coterie, offline, really

from coterie import toml
from coterie.personal.file import load_model
from coterie.personal.model import PersonalModel

pytest.importorskip("flwr")
pytestmark = really

SILOS, METHODS = NAMES[:3], ["fedavg", "fedamp"]
TABLE = ["--label", "outcome", "--drop", "patient,cost"]
STUDY = {
    "name": "hospitals",
    "seeds": [0],  # of a simulation also the seed of the splits; a real silo has but one split, that of 0
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"rounds": 2, "batch_size": 16, "lr": 0.1, "measure_every": 2},
    "methods": {name: {} for name in METHODS},
}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Three of them, each with its own file."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "hospitals").mkdir()
    for place, name in enumerate(SILOS):
        hospital(place).to_csv(folder / "hospitals" / f"{name}.csv", index=False)
    tables = {name: ["--data", str(folder / "hospitals" / f"{name}.csv"), *TABLE] for name in SILOS}
    with offline() as within:
        made = Real(folder / "fed", tables=tables, within=within)
        try:
            made.started()
            yield made
        finally:
            made.stop()


def test_three_tables_end_as_in_a_simulation_and_each_silo_predicts_for_new_rows(hospitals: Real) -> None:
    here = hospitals.folder.parent
    (here / "study.toml").write_text(toml.dumps(STUDY))
    run, shown = hospitals.run(here / "study.toml")
    assert "3 of 3 silos replied" in shown
    words = ["run", str(here / "study.toml"), "--silos", str(here / "hospitals"), *TABLE, "--quiet"]
    coterie(*words, "--out", str(here / "simulated"))
    found, expected = (pd.read_parquet(folder / "results.parquet") for folder in (run, here / "simulated"))
    pd.testing.assert_series_equal(by_silo(found), by_silo(expected), atol=1e-4, rtol=0)

    new = hospital(4).drop(columns=["outcome", "cost"]).head(3)
    new.loc[0, "age"], new.loc[1, "ward"] = np.nan, "a ward that no silo has"
    new.to_csv(here / "new.csv", index=False)
    for name in SILOS:
        kept = hospitals.folder / "silos" / name / "models" / f"{run.name}-fedamp-0" / f"{name}.safetensors"
        answer = pd.read_csv(io.StringIO(coterie("predict", str(kept), "--data", str(here / "new.csv")).stdout))
        assert set(answer["prediction"]) <= {"healthy", "ill", "severe"}
        (alike,) = (here / "simulated").rglob(f"fedamp*/**/{name}.safetensors")
        simulated = load_model(alike).predict(new)
        assert list(answer["prediction"]) == list(simulated["prediction"])
        ours, theirs = raw(answer, load_model(kept)), raw(simulated, load_model(alike))
        pd.testing.assert_frame_equal(ours[theirs.columns], theirs, atol=1e-4, rtol=0, check_dtype=False)
    assert not list((hospitals.folder / "coordinator").rglob("*.csv"))


def raw(answer: pd.DataFrame, model: PersonalModel) -> pd.DataFrame:
    """Probabilities before tempering: a silo tempers its model by its own rows, a simulation by all silos' too."""
    given = answer.filter(like="probability_") ** float(model.about["temperature"])
    return given.div(given.sum(axis=1), axis=0)


def test_what_a_silo_uses_today_is_mixed_in_there_and_nothing_of_it_leaves(hospitals: Real) -> None:
    here, homes = hospitals.folder.parent, {name: hospitals.folder / "silos" / name for name in SILOS}
    policy = homes["north"] / "silo.toml"
    before = policy.read_text("utf-8")
    assert before.count('incumbent = ""') == 1
    policy.write_text(before.replace('incumbent = ""', 'incumbent = "trees"'), "utf-8")
    table = STUDY | {"methods": {"stack": {"of": ["separate", "fedavg"], "incumbent": True, "fit_every": 1}}}
    (here / "stack.toml").write_text(toml.dumps(table))
    try:
        run, shown = hospitals.run(here / "stack.toml")
    finally:
        policy.write_text(before, "utf-8")
    assert "3 of 3 silos replied" in shown
    left = {}
    for name, home in homes.items():
        model = load_model(home / "models" / f"{run.name}-stack-0" / f"{name}.safetensors")
        shares = dict(zip(json.loads(model.about["candidates"]), model.module.core.weights.tolist(), strict=True))
        assert (shares["incumbent"] > 0) == (name == "north")
        assert len(model.predict(hospital(4).drop(columns=["outcome", "cost"]).head(3))) == 3
        lines = map(json.loads, (home / "ledger.jsonl").read_text("utf-8").splitlines())
        left[name] = [
            (e["kind"], e["field"], e["shape"])
            for e in lines
            if e["run"].startswith(run.name) and e["kind"] not in ("describe", "finish")
        ]
    assert left["north"] == left["coast"] == left["st-mary"]
    sums = {field: shape for kind, field, shape in left["north"] if kind == "train" and "." not in field}
    assert sums == {"curves": [1, 3, 9], "counts": [1, 3], "fits": [1, 6]}


def test_ctrl_c_ends_every_party_and_all_of_its_programs(hospitals: Real) -> None:
    for party in [*hospitals.silos.values(), hospitals.coordinator]:
        party.process.send_signal(signal.SIGINT)
    for party in [*hospitals.silos.values(), hospitals.coordinator]:
        assert party.process.wait(40) == 130
        assert "Traceback" not in party.said()
    left = [path for path in Path("/proc").glob("[0-9]*") if belongs(path, hospitals.folder)]
    assert left == []


def belongs(process: Path, folder: Path) -> bool:
    """Whether a process has to do with a federation."""
    try:
        return str(folder).encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False
