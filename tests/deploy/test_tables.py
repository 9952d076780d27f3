"""Silos that hold tables: what they tell of them, and that all encode alike, as in a simulation."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from command import call
from loop import NAMES, Loop, job, settle
from safetensors import safe_open
from test_drive import by_silo, federated

from coterie.codec import decode, encode
from coterie.data.own.agree import agree
from coterie.data.own.gather import from_frame, gather
from coterie.data.own.ready import OwnData, ready
from coterie.data.own.statistics import Statistics, description_of
from coterie.deploy.home import EVENTS
from coterie.deploy.ledger import Ledger
from coterie.deploy.look import main as look
from coterie.deploy.messages import Answer, Declared, Measured, Request
from coterie.deploy.own import Raw, SiloSource, own_silo, read_source
from coterie.deploy.policy import FILE, policy_text
from coterie.deploy.remote import Remote, declarations
from coterie.deploy.silo import SiloSide, declared
from coterie.engine.exchange import Failure
from coterie.engine.method import Cohort
from coterie.errors import BadInput
from coterie.models import build
from coterie.personal.file import load_model
from coterie.run.assembly import Assembly

TABLE = {
    "name": "tables",
    "seeds": [1],
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"rounds": 2, "batch_size": 16, "lr": 0.1, "measure_every": 2},
    "methods": {"fedamp": {}},
}


def patients(place: int, rows: int = 40) -> pd.DataFrame:
    """A small table: ages that differ by silo, a ward that only some have, an identifier."""
    draw = np.random.default_rng(place)
    age = draw.normal(40 + 10 * place, 5, rows).round(1)
    ward = draw.choice(["a", "b", "c"][: 2 + (place == 1)], rows)
    outcome = np.where(age + 4 * (ward == "a") + draw.normal(0, 3, rows) > 40 + 10 * place, "well", "ill")
    return pd.DataFrame({"id": [f"p{i}" for i in range(rows)], "age": age, "ward": ward, "outcome": outcome})


def settled(folder: Path, policy: str = "") -> dict[str, SiloSide]:
    sides = {}
    for place, name in enumerate(NAMES):
        home = folder / name
        home.mkdir(parents=True)
        (home / FILE).write_text(policy or policy_text("all"))
        patients(place).to_csv(home / "patients.csv", index=False)
        source = SiloSource(home / "patients.csv", "outcome", ("id",))
        sides[name] = SiloSide(name, home, source, "cpu")
    return sides


@pytest.mark.parametrize("standardize", ["federation", "silo"])
def test_tables_end_as_in_a_simulation_of_them(standardize: str, tmp_path: Path) -> None:
    policy = 'approve = "all"\nstatistics = false\n' if standardize == "silo" else ""
    finished = federated(tmp_path / "run", Loop(settled(tmp_path, policy)), TABLE).run("")
    options = OwnData(label="outcome", drop=("id",), standardize=standardize)
    holdings = [from_frame(name, patients(NAMES.index(name)), "outcome", ("id",), name) for name in sorted(NAMES)]
    data = ready(holdings, options, 0)
    factory, _ = build(TABLE["model"], data.silos[0].train.x.shape[1:], data.classes)
    outcome = Assembly(data.silos, factory, data.classes, finished.study.training, 1, "cpu", 1).train(
        finished.study.methods["fedamp"]
    )
    expected = pd.concat(outcome.results).assign(method="fedamp")
    pd.testing.assert_series_equal(by_silo(finished.results), by_silo(expected), atol=1e-4, rtol=0)


def test_means_leave_only_where_the_policy_lets_them(tmp_path: Path) -> None:
    sides = settled(tmp_path)
    (sides["east"].folder / FILE).write_text('approve = "all"\nstatistics = false\n')
    federated(tmp_path / "run", Loop(sides), TABLE).run("")
    for name, numbers in (("north", 1), ("east", 0)):
        left = {e["field"]: e["shape"] for e in Ledger(sides[name].folder).entries() if e["kind"] == "describe"}
        assert left.keys() == {"count", "mean", "scatter", "target", "table"}
        assert left["mean"] == [1, numbers]  # of the only column of numbers


def test_of_a_column_with_few_values_no_statistics_leave(tmp_path: Path) -> None:
    """Of two values count, mean and spread are both of them, and nobody has approved anything yet."""
    sides = settled(tmp_path)
    for name, side in sides.items():
        frame, train = pd.read_csv(side.source.path), Raw(name, side.source).split.train
        for column, many in (("lab", 4), ("dose", 5), ("rare", 2)):
            frame.loc[train[: many if name == "north" or column == "rare" else 20], column] = np.arange(20.0)[
                : many if name == "north" or column == "rare" else 20
            ]
        frame.to_csv(side.source.path, index=False)
    answer = sides["north"].answer(Request("describe", "north", "run", 0))
    told = decode(Statistics, answer.body, rows=1)
    assert torch.cat([told.count, told.mean, told.scatter])[:, 1:].tolist() == [[0, 5, 0], [0, 2.0, 0], [0, 10.0, 0]]
    federated(tmp_path / "run", Loop(sides), TABLE).run("")
    agreed = {each["name"]: each for each in json.loads((tmp_path / "run" / "schema.json").read_text())["columns"]}
    assert agreed.keys() == {"age", "ward", "lab", "dose"} and agreed["lab"]["mean"] == 9.5
    told_of = json.loads((tmp_path / "run" / "differences.json").read_text())
    assert ("rare", "every silo", "too few values: left out") in [
        (each["column"], each["silo"], each["what"]) for each in told_of
    ]


@pytest.mark.parametrize(("rows", "left"), [(1, False), (2, False), (4, False), (5, True)])
def test_of_few_labels_that_are_numbers_no_statistics_leave(rows: int, left: bool, tmp_path: Path) -> None:
    """Those of two are both of them, and a label that is a number is none that a policy keeps."""
    frame = pd.DataFrame({"age": np.arange(12.0), "cost": 100.5 + np.arange(12.0) ** 2})
    for name, part in (("train", frame[:rows]), ("validation", frame[5:8]), ("test", frame[8:])):
        (tmp_path / "data").mkdir(exist_ok=True)
        part.to_csv(tmp_path / "data" / f"{name}.csv", index=False)
    told = Raw("north", SiloSource(tmp_path / "data", "cost")).statistics()
    values = frame["cost"][:rows]
    expected = [rows, values.mean(), ((values - values.mean()) ** 2).sum()] if left else [0, 0, 0]
    assert told.target[0].tolist() == pytest.approx(expected)


def test_a_label_of_few_whole_numbers_leaves_as_classes_only_where_its_owner_says_they_are(tmp_path: Path) -> None:
    """Named as classes, the days that each of twelve patients had stayed left before anybody approved anything."""
    days = [13, 34, 35, 52, 58, 62, 63, 65, 75, 78, 85, 13]
    pd.DataFrame({"age": np.arange(12.0), "days": days}).to_csv(tmp_path / "a.csv", index=False)
    source = SiloSource(tmp_path / "a.csv", "days")
    with pytest.raises(BadInput, match=r"11 different whole numbers in 12 rows.*--task regression"):
        Raw("north", source).statistics()
    assert description_of(Raw("north", replace(source, task="regression")).statistics()).classes is None
    assert len(description_of(Raw("north", replace(source, task="classification")).statistics()).classes or ()) == 11
    pd.DataFrame({"age": np.arange(12.0), "days": [0, 1] * 6}).to_csv(source.path, index=False)
    assert description_of(Raw("north", source).statistics()).classes == ("0", "1")


def test_a_table_that_cannot_be_described_is_refused_before_a_silo_connects(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its coordinator's people would only read that the data cannot be used, once they start a run."""
    side = settled(tmp_path)["north"]
    (side.folder / "settings.json").write_text(json.dumps({"name": "north", "host": "127.0.0.1", "port": 9443}))
    with pytest.raises(SystemExit, match=r"'id': 40 different texts in 40 rows look like an identifier"):
        look(side.folder, replace(side.source, drop=()))
    rows = patients(0).assign(id=np.arange(40), weight=np.random.default_rng(0).normal(size=40))
    pd.concat([rows] * 3).to_csv(side.source.path, index=False)
    look(side.folder, side.source)
    found = json.loads(capfd.readouterr().out)
    assert found["samples"] == 77 and found["remarks"][1].startswith(
        "column 'id': looks like an identifier that repeats"
    )


def test_a_model_carries_how_its_silo_encodes_rows(tmp_path: Path) -> None:
    federated(tmp_path / "run", Loop(settled(tmp_path)), TABLE).run("")
    path = next((tmp_path / "south" / "models").rglob("*.safetensors"))
    with safe_open(path, "pt") as file:
        schema = json.loads(file.metadata()["schema"])
        assert json.loads(file.metadata()["classes"]) == 2
    assert schema["classes"] == ["ill", "well"]
    assert [column["name"] for column in schema["columns"]] == ["age", "ward"]
    assert schema["columns"][1]["levels"] == ["a", "b", "c"]  # though only one silo has the third


def test_silos_whose_tables_differ_are_told_apart_by_name(tmp_path: Path) -> None:
    sides = settled(tmp_path)
    path = sides["east"].source.path
    pd.read_csv(path).drop(columns="age").to_csv(path, index=False)
    with pytest.raises(BadInput, match="'age' of east: missing"):
        federated(tmp_path / "run", Loop(sides), TABLE).run("")


def test_a_wild_value_is_told_to_its_owner_and_only_counted_elsewhere(tmp_path: Path) -> None:
    sides = settled(tmp_path)
    path = sides["east"].source.path
    frame = pd.read_csv(path)
    frame.loc[Raw("east", sides["east"].source).split.train[3], "age"] = 987654321.5
    frame.to_csv(path, index=False)
    federated(tmp_path / "run", Loop(sides), TABLE).run("")
    told = json.loads((tmp_path / "run" / "differences.json").read_text())
    assert ("age", "east", "far from the others, so taken as nearer: 1") in [
        (each["column"], each["silo"], each["what"]) for each in told
    ]
    assert "9.87654e+08 in row" in (sides["east"].folder / EVENTS).read_text()
    left = "".join(file.read_text() for file in (tmp_path / "run").rglob("*.json"))
    assert "9.876" not in left and "98765" not in left


class Liar(Loop):
    """A silo that declares other statistics than its rows have."""

    def __init__(self, sides: dict[str, SiloSide], kind: str, lie: Callable[[Any], Any]) -> None:
        super().__init__(sides)
        self.kind, self.lie = kind, lie

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        found = super().exchange(requests, timeout)
        for name, each in requests.items():
            answer = found[name]
            if name == "east" and each.kind == self.kind and isinstance(answer, Answer):
                record = {"describe": Statistics, "declare": Declared, "measure": Measured}[self.kind]
                told = decode(record, answer.body, rows=1)
                found[name] = replace(answer, body=encode(self.lie(told)))
        return found


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda told: told.replace(scatter=told.scatter + 1e30), "'age': mean 60"),
        (lambda told: told.replace(count=told.count * 0 + 1e9), "'age': its count of 1e+09"),
        (lambda told: told.replace(mean=told.mean * torch.nan), "'age': its count of"),
        (lambda told: told.replace(count=told.count[:, :0], mean=told.mean[:, :0], scatter=told.scatter[:, :0]), ""),
        (lambda told: told.replace(**{k: torch.ones(1, 3) for k in ("count", "mean", "scatter")}), "3 statistics of 1"),
    ],
    ids=["scatter", "count", "nan", "none", "shape"],
)
def test_statistics_that_no_rows_can_have_leave_their_silo_out(
    lie: Callable[[Any], Any], said: str, tmp_path: Path
) -> None:
    federated(tmp_path / "run", Liar(settled(tmp_path), "describe", lie), TABLE).run("")
    members = json.loads((tmp_path / "run" / "members.json").read_text())
    absent = json.loads((tmp_path / "run" / "progress.json").read_text())["absent"]
    assert set(members) == ({"north", "south"} if said else {*NAMES})
    assert said in absent.get("east", "") if said else not absent


def with_words(**changes: Any) -> Callable[[Any], Any]:
    """A declaration with other text in it."""

    def lie(told: Any) -> Any:
        words = json.loads(told.table[0].numpy().tobytes()) | changes
        return told.replace(table=torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)[None])

    return lie


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (with_words(categories={"ward": [f"w{i}" for i in range(90)]}), "'ward': 90 levels are of no rows it has"),
        (with_words(classes=[f"c{i}" for i in range(50_000)]), "'label': 50000 classes are of no rows it has"),
    ],
    ids=["levels", "classes"],
)
def test_levels_and_classes_that_no_rows_can_have_leave_their_silo_out(
    lie: Callable[[Any], Any], said: str, tmp_path: Path
) -> None:
    found, absent = gathered(tmp_path, Liar(settled(tmp_path), "describe", lie))
    assert set(found) == {"north", "south"} and said in absent["east"]


def test_a_description_that_cannot_be_read_leaves_its_silo_out(tmp_path: Path) -> None:
    cut = Liar(settled(tmp_path), "describe", lambda told: told.replace(table=told.table[:, :-1]))
    found, absent = gathered(tmp_path, cut)
    assert set(found) == {"north", "south"} and "arrived damaged" in absent["east"]


def test_a_silo_by_which_a_column_has_too_many_levels_is_named(tmp_path: Path) -> None:
    told = {name: Raw(name, side.source).statistics() for name, side in settled(tmp_path).items()}
    told["east"] = with_words(categories={"ward": [f"w{i}" for i in range(99)]})(told["east"])
    with pytest.raises(BadInput, match="column 'ward': 102 different texts over all silos, 99 of them in east"):
        agree(told, "label", "auto")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": torch.tensor([10**9])}, "1000000000 classes"),
        ({"sample": torch.tensor([[10**6, 10**6]])}, "samples of shape (1000000, 1000000)"),
        ({"outputs": torch.tensor([10**7])}, "10000000 outputs"),
    ],
)
def test_arrays_that_no_model_fits_leave_their_silo_out(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    loop = Liar(settle(tmp_path), "declare", lambda told: told.replace(**change))
    found, failures = declarations(loop, "run", list(NAMES), 1)
    assert set(found) == {"north", "south"} and said in failures["east"].reason


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([10**9, 6, 8], "it declares 1000000000, 6 and 8 samples"),
        ([-1, 6, 8], "it declares -1, 6 and 8 samples"),
        ([26, -6, 8], "it declares 26, -6 and 8 samples"),
        ([0, 6, 8], "it declares 0, 6 and 8 samples"),
        ([60_000, 6, 8], "it declares 60014 samples, over 1000 times as many as the others' median"),
        ([30_000, 6, 8], ""),
    ],
    ids=str,
)
def test_a_size_that_no_silo_has_leaves_it_out_by_name(sizes: list[int], said: str, tmp_path: Path) -> None:
    liar = Liar(settled(tmp_path), "declare", lambda told: told.replace(sizes=torch.tensor([sizes])))
    found, absent = gathered(tmp_path, liar)
    assert set(found) == ({"north", "south"} if said else {*NAMES})
    assert said in absent.get("east", "") if said else not absent


def test_the_coordinator_may_say_how_large_a_silo_is_at_most(tmp_path: Path) -> None:
    liar = Liar(settled(tmp_path), "declare", lambda told: told.replace(sizes=torch.tensor([[60_000, 6, 8]])))
    assert "east" in gathered(tmp_path, liar, largest_silo=100_000)[0]
    (tmp_path / "again").mkdir()
    found, absent = gathered(tmp_path / "again", liar, largest_silo=50_000)
    assert "east" not in found and "more than --largest-silo 50000" in absent["east"]
    (tmp_path / "last").mkdir()
    with pytest.raises(BadInput, match=r"no silo takes part .*north: it declares 40 samples"):
        gathered(tmp_path / "last", liar, largest_silo=1)


def gathered(folder: Path, loop: Loop, **limits: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Those who take part, and why others do not."""
    run = federated(folder / "run", loop, TABLE)
    run.patience = replace(run.patience, **limits)
    found = run.gathering.members()
    return found, json.loads((folder / "run" / "progress.json").read_text())["absent"]


@pytest.mark.parametrize(
    ("measure", "value"), [("accuracy", 7.5), ("accuracy", -0.1), ("loss", -1.0), ("r2", 1.5), ("rmse", -1.0)]
)
def test_a_measure_that_cannot_be_is_left_out_by_name(measure: str, value: float, tmp_path: Path) -> None:
    lie = {measure: torch.full((1, 2), value, dtype=torch.float64)}
    sides = settle(tmp_path)
    work = job("fedavg")
    method, model, roster = work.built()
    engine = Remote("run", work, method, model, Liar(sides, "measure", lambda told: told.replace(**lie)))
    everyone = Cohort.everyone(roster, model, 0)
    found = engine.measure(everyone, method.send(method.open(roster, model), everyone), ("validation", "test"))
    assert np.isnan(found.values["test", "loss"]).tolist() == [name == "east" for name in roster.names]
    assert engine.last["east"] == f"its {measure} of {value:g} cannot be" and not engine.last["north"]


def test_a_silo_refuses_to_drop_what_its_own_table_lacks(tmp_path: Path) -> None:
    side = settled(tmp_path)["east"]
    with pytest.raises(BadInput, match="--drop di: no table has such a column"):
        declared("east", replace(side.source, drop=("di",)))


def test_tables_and_arrays_do_not_go_together(tmp_path: Path) -> None:
    sides = settled(tmp_path)
    x, y = np.zeros((20, 2), np.float32), np.arange(20) % 2
    np.savez(tmp_path / "data.npz", x=x, y=y)
    east = sides["east"]
    sides["east"] = SiloSide("east", east.folder, SiloSource(tmp_path / "data.npz"), "cpu")
    with pytest.raises(BadInput, match="one holds arrays, the other a table or pictures"):
        federated(tmp_path / "run", Loop(sides), TABLE).run("")


@pytest.mark.parametrize(
    "y", [np.arange(50) % 3, np.arange(50) / 7, np.arange(50) % 2 == 0], ids=["int", "float", "bool"]
)
def test_an_archive_is_split_at_a_silo_as_in_a_simulation(y: np.ndarray, tmp_path: Path) -> None:
    x = np.arange(100, dtype=np.float32).reshape(50, 2)
    np.savez(tmp_path / "north.npz", x=x, y=y)
    simulated = ready(gather(tmp_path, ""), OwnData(), 0).silos[0]
    deployed, _ = own_silo("north", tmp_path / "north.npz")
    for each in ("train", "validation", "test"):
        assert np.array_equal(getattr(simulated, each).x, getattr(deployed, each).x)
    assert [len(deployed.train), len(deployed.validation), len(deployed.test)] == [32, 8, 10]
    assert np.array_equal(deployed.test.y, y[deployed.test.x[:, 0].astype(int) // 2].astype(deployed.test.y.dtype))


def test_labels_of_several_numbers_are_split_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((50, 4), np.int64), y=np.zeros((50, 4), np.int64))
    silo, _ = own_silo("a", tmp_path / "a.npz")
    assert [len(silo.train), len(silo.validation), len(silo.test)] == [32, 8, 10] and silo.test.y.shape == (10, 4)
    with pytest.raises(BadInput, match="one label for each sample"):
        gather(tmp_path, "")


def test_a_silos_own_model_predicts_for_raw_rows(tmp_path: Path) -> None:
    auto = TABLE | {"model": {"name": "auto"}}
    federated(tmp_path / "run", Loop(settled(tmp_path)), auto).run("")
    model = load_model(next((tmp_path / "south" / "models").rglob("*.safetensors")))
    found = model.predict(patients(NAMES.index("south")).drop(columns=["id", "outcome"]))
    assert set(found["prediction"]) == {"ill", "well"}
    np.testing.assert_allclose(found["probability_ill"] + found["probability_well"], 1, atol=1e-5)


def test_a_silo_splits_by_its_own_columns_as_a_simulation_does(tmp_path: Path) -> None:
    frame = patients(0).assign(id=np.arange(40) // 4, day=np.arange(40), fold=["train", "train", "val", "test"] * 10)
    frame.to_csv(tmp_path / "north.csv", index=False)
    for by in ({"group": "id"}, {"time": "day"}, {"split_column": "fold"}, {"group": "id", "time": "day"}):
        drop = tuple({"id", "day", "fold"} - {*by.values()})
        text = {"path": str(tmp_path / "north.csv"), "label": "outcome", "drop": drop, "task": "auto", "device": "cpu"}
        source, _ = read_source(json.dumps({"group": "", "time": "", "split_column": "", **text, **by}))
        own = Raw("north", source).split
        holdings = gather(tmp_path, "outcome", drop, tuple(by.values()))
        (silo,) = ready(holdings, OwnData(label="outcome", drop=drop, **by), 0).silos
        assert np.array_equal(own.rows[own.test], silo.test.rows) and np.array_equal(own.train, silo.train.rows)
        assert (own.units is None) == ("group" not in by)
    with pytest.raises(BadInput, match="has no column 'nope' for --group"):
        Raw("north", SiloSource(tmp_path / "north.csv", "outcome", ("id", "day", "fold"), group="nope"))


def test_an_archive_at_a_silo_knows_its_rows(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2)
    silo, _ = own_silo("a", tmp_path / "a.npz")
    assert silo.test.rows is not None and np.array_equal(silo.test.x, x[silo.test.rows])


def test_columns_to_split_by_are_of_tables(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flwr")
    assert call("silo", tmp_path, "--data", "a.npz", "--group", "patient") == 2
    assert "a.npz: is no table to split by a column; leave out --group" in capfd.readouterr().err


def test_what_may_flatter_a_score_is_for_the_owner_to_read(tmp_path: Path) -> None:
    frame = patients(0).assign(id=np.arange(40), weight=np.random.default_rng(0).normal(size=40))
    pd.concat([frame] * 3).to_csv(tmp_path / "north.csv", index=False)
    remarks = Raw("north", SiloSource(tmp_path / "north.csv", "outcome", ("id",))).remarks()
    copies, identifier = remarks
    assert copies.endswith("are exact copies of training rows; a score on them flatters: remove them or give --group")
    assert identifier == "column 'id': looks like an identifier that repeats: give --group id"
    assert Raw("north", SiloSource(tmp_path / "north.csv", "outcome", group="id")).remarks() == []


def rarely_ill(folder: Path, ill: Mapping[str, int]) -> dict[str, SiloSide]:
    """Tables in which so many of 40 rows are ill; of a silo with none or 40, the label has one class alone."""
    sides = settled(folder)
    for name, count in ill.items():
        path = sides[name].source.path
        pd.read_csv(path).assign(outcome=np.where(np.arange(40) < count, "ill", "well")).to_csv(path, index=False)
    return sides


@pytest.mark.parametrize(
    ("ill", "by", "positive"),
    [
        ({"north": 4, "south": 4, "east": 0}, "auroc", 0),
        ({"north": 36, "south": 36, "east": 40}, "auroc", 1),
        ({"north": 4, "south": 30, "east": 20}, "accuracy", 0),
    ],
)
def test_classes_are_counted_by_name_whichever_a_silo_has(
    ill: dict[str, int], by: str, positive: int, tmp_path: Path
) -> None:
    finished = federated(tmp_path / "run", Loop(rarely_ill(tmp_path, ill)), TABLE).run("")
    assert (finished.study.training.by, finished.study.training.positive) == (by, positive)
    assert finished.summary["data"]["note"] == "3 silos, each with its own data; 2 classes"


def test_shares_leave_in_hundredths_and_of_more_classes_or_numbers_none(tmp_path: Path) -> None:
    sides = rarely_ill(tmp_path, {"north": 5})
    assert declared("north", sides["north"].source).shares.tolist() == [[12, 88]]  # 3 of the 25 that train
    path = sides["south"].source.path
    for label in (np.arange(40) % 3, np.linspace(0.5, 9.7, 40)):
        pd.read_csv(path).assign(outcome=label).to_csv(path, index=False)
        assert declared("south", sides["south"].source).shares is None
