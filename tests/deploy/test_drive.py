"""A study between silos: resumed where it broke, the same files as a simulation writes."""

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from loop import NAMES, Loop, settle, silos
from rich.console import Console
from safetensors import safe_open

from coterie.codec import decode, encode_up
from coterie.deploy.drive import RemoteRun, study_of
from coterie.deploy.ledger import Ledger
from coterie.deploy.messages import Answer, Declared, Done, Measured, Request
from coterie.deploy.patience import Patience
from coterie.deploy.silo import SiloSide
from coterie.engine.exchange import Failure
from coterie.engine.rounds import Outcome
from coterie.errors import BadInput
from coterie.measure.measures import measure_of
from coterie.measure.predictions import RAW
from coterie.measure.tempering import tempered
from coterie.methods.parts.averaging import ModelUp
from coterie.models import build
from coterie.personal.export import model_tensors
from coterie.personal.file import load_model
from coterie.report.notes import notes
from coterie.report.terminal import show_outcome
from coterie.run.assembly import Assembly
from coterie.run.experiment import run_into
from coterie.run.finished import calibrate
from coterie.studies.study import Study, check
from coterie.wire import described

QUICK = Patience(gather=0, reply=1, silence=0, pause=0)
TABLE = {
    "name": "three",
    "seeds": [1],
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"rounds": 3, "local_epochs": 2, "batch_size": 8, "lr": 0.1},
    "methods": {"fedavg": {}, "scaffold": {}, "fedamp": {}, "apple": {}, "fedem": {}, "stack": {}},
}


class Broken(Exception):
    """The coordinator's process ends here."""


class Breaking(Loop):
    """A transport under which the coordinator dies after so many answers have come back."""

    def __init__(self, loop: Loop, after: int) -> None:
        super().__init__(loop.sides)
        self.left = after

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        found = super().exchange(requests, timeout)
        self.left -= 1
        if self.left < 0:
            raise Broken
        return found


def federated(folder: Path, loop: Loop, table: dict = TABLE) -> RemoteRun:
    folder.mkdir(exist_ok=True)
    return RemoteRun(folder, study_of(table), loop, lambda: sorted(loop.sides), QUICK)


def by_silo(results: pd.DataFrame) -> pd.Series:
    # A deployed silo also reports the measures that a simulation takes of its predictions.
    common = results["measure"].str.fullmatch(r"(loss|accuracy|rmse|mae|r2)(_cloud)?(_unseen)?")
    return results[common].set_index(["method", "round", "silo", "split", "measure"])["value"].sort_index()


def test_a_round_takes_the_rows_of_a_large_silo_that_a_simulations_does(tmp_path: Path) -> None:
    table = TABLE | {"methods": {"fedavg": {}}, "train": TABLE["train"] | {"round_samples": 16, "rounds": 2}}
    finished = federated(tmp_path / "run", Loop(settle(tmp_path)), table).run("")
    study, members = finished.study, sorted(silos(), key=lambda silo: silo.name)
    assert study.training.round_samples == 16 < max(len(silo.train) for silo in members)
    factory, _ = build(study.model, (5,), 3)
    outcome = Assembly(members, factory, 3, study.training, 1, "cpu", 1).train(study.methods["fedavg"])
    simulated = pd.concat(outcome.results).assign(method="fedavg")
    pd.testing.assert_series_equal(by_silo(finished.results), by_silo(simulated), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_study_between_silos_ends_as_its_simulation_does(tmp_path: Path) -> None:
    finished = federated(tmp_path / "run", Loop(settle(tmp_path))).run("coterie federation run")
    study = finished.study
    parts = []
    for name, method in study.methods.items():
        factory, _ = build(study.model, (5,), 3)
        members = sorted(silos(), key=lambda silo: silo.name)
        outcome = Assembly(members, factory, 3, study.training, 1, "cpu", 1).train(method)
        parts.append(pd.concat(outcome.results).assign(method=name))
    pd.testing.assert_series_equal(by_silo(finished.results), by_silo(pd.concat(parts)), atol=1e-4, rtol=0)
    for file in ("summary.json", "report.html", "results.parquet", "study.toml"):
        assert (tmp_path / "run" / file).exists()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert list(summary["methods"]) == list(TABLE["methods"])


def test_the_files_are_those_of_a_simulation_but_for_how_labels_are_spread(tmp_path: Path) -> None:
    table = TABLE | {"methods": {"fedamp": {}}}
    federated(tmp_path / "run", Loop(settle(tmp_path)), table).run("")
    data = {"name": "digits", "split": "iid", "silos": 3}
    run_into(check(table | {"data": data}), tmp_path / "simulated", "", lambda *told: None)
    here, there = tmp_path / "run", tmp_path / "simulated"
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (here, there)]
    assert summaries[0].keys() == summaries[1].keys() | {"data"}
    ours, theirs = (set(summary["methods"]["fedamp"]) for summary in summaries)
    assert ours == theirs
    columns = [list(pd.read_parquet(folder / "results.parquet").columns) for folder in (here, there)]
    assert columns[0] == columns[1]
    assert (here / "collaboration" / "fedamp.npz").exists()
    spread = "The data of the silos"
    assert spread in (there / "report.html").read_text() and spread not in (here / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "apple", "fedem"])
def test_a_run_broken_after_any_exchange_goes_on_and_ends_the_same(method: str, tmp_path: Path) -> None:
    table = TABLE | {"methods": {method: {}}}
    whole = federated(tmp_path / "run", Loop(settle(tmp_path / "whole")), table).run("")
    for after in range(9):
        home = tmp_path / str(after)
        loop = Loop(settle(home))
        with pytest.raises(Broken):
            federated(home / "run", Breaking(loop, after), table).run("")
        again = federated(home / "run", loop, table).run("")
        pd.testing.assert_series_equal(by_silo(again.results), by_silo(whole.results), atol=1e-9, rtol=0)
        for name in NAMES:
            assert kept_model(home, name, method) == kept_model(tmp_path / "whole", name, method)


def kept_model(home: Path, silo: str, method: str) -> tuple[str, dict[str, bytes]]:
    """The round and the weights of the model that a silo has kept."""
    path = home / silo / "models" / f"run-{method}-1" / f"{silo}.safetensors"
    with safe_open(path, "pt") as file:
        return file.metadata()["round"], {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("method", ["fedavg", "fedamp", "fedem", "stack"])
def test_silos_end_with_the_model_of_the_picked_round_as_a_simulation_does(method: str, tmp_path: Path) -> None:
    table = TABLE | {"methods": {method: {}}, "train": {**TABLE["train"], "lr": 4.0}}
    finished = federated(tmp_path / "run", Loop(settle(tmp_path)), table).run("")
    scores, study = finished.summary["methods"][method], finished.study
    factory, _ = build(study.model, (5,), 3)
    members = sorted(silos(), key=lambda silo: silo.name)
    simulated = Assembly(members, factory, 3, study.training, 1, "cpu", 1)
    outcome = simulated.train(study.methods[method])
    assert outcome.picked is not None and outcome.models is not None
    assert outcome.picked.round == scores["picked_round"] < 3 and "kept" not in scores
    for row, silo in enumerate(members):
        round, weights = kept_model(tmp_path, silo.name, method)
        assert round == str(scores["picked_round"])
        for name, expected in model_tensors(simulated.model, outcome.models, row).items():
            np.testing.assert_allclose(np.frombuffer(weights[name], np.float32), expected.flatten(), atol=1e-5)
        assert len(list((tmp_path / silo.name / "state").glob("*/model-*"))) <= 2  # the others are gone


def test_a_silo_that_was_away_keeps_the_newest_model_before_and_everybody_is_told(tmp_path: Path) -> None:
    """Somebody is away after every round, so whichever is picked, one silo has no model of it."""
    loop = Loop(settle(tmp_path))
    away = {1: "east", 2: "south", 3: "north"}
    loop.deaf = lambda r: r.kind == "measure" and bool(r.hold) and away[r.hold[-1]] == r.silo
    table = TABLE | {"methods": {"fedavg": {}}, "train": {**TABLE["train"], "lr": 0.5}}
    finished = federated(tmp_path / "run", loop, table).run("")
    scores = finished.summary["methods"]["fedavg"]
    picked = scores["picked_round"]
    assert picked in (2, 3)
    gone = away[picked]
    assert scores["kept"] == [{"seed": 1, "silo": gone, "round": picked - 1}]
    for name in NAMES:
        assert kept_model(tmp_path, name, "fedavg")[0] == str(picked - 1 if name == gone else picked)
    assert f"{gone} (that of round {picked - 1})" in notes(finished.summary["methods"])[0]
    told = json.loads((tmp_path / "run" / "progress.json").read_text())
    assert told["silos"][gone] == f"keeps its model of round {picked - 1}"


class Rogue(Loop):
    """South sends numbers that are not finite."""

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        found = super().exchange(requests, timeout)
        for name, answer in found.items():
            if name == "south" and requests[name].kind == "train" and isinstance(answer, Answer):
                up = decode(ModelUp, answer.body, torch.float32)
                found[name] = replace(answer, body=encode_up(up.replace(w=up.w * torch.nan)))
        return found


def test_whoever_watches_a_run_sees_all_bytes_and_rejected_uploads_so_far(tmp_path: Path) -> None:
    table = TABLE | {"methods": {"fedavg": {}, "fedprox": {}}}
    finished = federated(tmp_path / "run", Rogue(settle(tmp_path)), table).run("")
    told = json.loads((tmp_path / "run" / "progress.json").read_text())
    outcomes = finished.summary["methods"].values()
    assert told["rejected"] == sum(len(each["rejected"]) for each in outcomes) == 6
    assert told["rejected_by_silo"] == {"south": 6}
    assert told["bytes_up"] == sum(each["bytes_up"] for each in outcomes) > 0
    assert told["bytes_down"] == sum(each["bytes_down"] for each in outcomes) > 0


class Counting(Loop):
    """Counts the models that silos are sent."""

    sent = 0

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        self.sent += sum(len(each.body) for each in requests.values())
        return super().exchange(requests, timeout)


def test_models_that_are_sent_to_be_measured_and_kept_count(tmp_path: Path) -> None:
    loop = Counting(settle(tmp_path))
    found = federated(tmp_path / "run", loop, TABLE | {"methods": {"fedavg": {}}}).run("").summary["methods"]["fedavg"]
    assert 0.9 * loop.sent < found["bytes_down"] <= loop.sent  # of training what models hold counts, without headings


def test_a_silo_that_was_never_measured_keeps_its_last_model(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    loop.deaf = lambda r: r.kind == "measure" and r.silo == "south"
    table = TABLE | {"methods": {"fedavg": {}}, "train": {**TABLE["train"], "lr": 3.0}}
    finished = federated(tmp_path / "run", loop, table).run("")
    assert finished.summary["methods"]["fedavg"]["picked_round"] < 3
    assert kept_model(tmp_path, "south", "fedavg")[0] == "3"
    assert finished.summary["methods"]["fedavg"]["kept"] == [{"seed": 1, "silo": "south", "round": 3}]


def test_a_silo_that_joins_late_is_served_after_training(tmp_path: Path) -> None:
    late = [silo.__class__("west", silo.train, silo.validation, silo.test) for silo in silos()[:1]]
    sides = settle(tmp_path, late)
    loop = Loop(sides)
    run = federated(tmp_path / "run", loop, TABLE | {"methods": {"fedamp": {}}})
    run.silos = lambda: sorted(sides) if any(r.kind == "keep" for r in loop.asked) else sorted(NAMES)
    table = run.run("").results
    assert set(table[table["measure"] == "accuracy_unseen"]["silo"]) == {"west"}


def test_silos_whose_data_differ_are_told_apart_before_training(tmp_path: Path) -> None:
    sides = settle(tmp_path)
    x, y = np.zeros((9, 2), np.float32), np.arange(9) % 3
    np.savez(tmp_path / "east" / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(BadInput, match=r"north's samples are \(5,\) and east's \(2,\)"):
        federated(tmp_path / "run", Loop(sides)).run("")


def test_a_run_that_every_silo_refuses_ends_with_the_reason(tmp_path: Path) -> None:
    sides = settle(tmp_path)
    for side in sides.values():
        (side.folder / "silo.toml").write_text('approve = "all"\nmethods = ["fedamp"]\n')
    with pytest.raises(BadInput, match="every silo refuses to train; east refused: method 'fedavg' is not among"):
        federated(tmp_path / "run", Loop(sides)).run("")


def of_two_classes(folder: Path, share: float, policy: str = "") -> Loop:
    """Silos whose second class has this share of the rows; the policy is east's."""
    sides = settle(folder)
    for place, (name, side) in enumerate(sides.items()):
        draw = np.random.default_rng(place)
        x = draw.normal(size=(60, 5)).astype(np.float32)
        y = (np.arange(60) < round(60 * share)).astype(np.int64)
        parts = {
            f"{axis}_{split}": each for split in ("train", "validation", "test") for axis, each in (("x", x), ("y", y))
        }
        np.savez(side.source.path, **parts)
        if policy and name == "east":
            (side.folder / "silo.toml").write_text('approve = "all"\n' + policy)
    return Loop(sides)


@pytest.mark.parametrize(
    ("share", "by", "positive"), [(0.1, "auroc", 1), (0.9, "auroc", 0), (0.4, "accuracy", 1), (0.0, "auroc", 1)]
)
def test_a_rare_class_is_judged_by_auroc_as_in_a_simulation(
    share: float, by: str, positive: int, tmp_path: Path
) -> None:
    loop = of_two_classes(tmp_path, share)
    if not share:  # one silo alone has the second class
        loop.sides["east"].source = of_two_classes(tmp_path / "more", 0.2).sides["east"].source
    finished = federated(tmp_path / "run", loop, TABLE | {"methods": {"fedavg": {}}}).run("")
    assert (finished.study.training.by, finished.study.training.positive) == (by, positive)
    assert finished.summary["verdict"]["measure"] == by


@pytest.mark.parametrize(
    "policy", ["statistics = false\n", 'fields = ["w", "loss", "accuracy", "sizes", "sample", "classes", "outputs"]\n']
)
def test_a_silo_may_keep_its_shares_and_the_summary_names_it(policy: str, tmp_path: Path) -> None:
    loop = of_two_classes(tmp_path, 0.1, policy)
    finished = federated(tmp_path / "run", loop, TABLE | {"methods": {"fedavg": {}}}).run("")
    assert finished.study.training.by == "accuracy"
    assert finished.summary["data"]["differences"] == [
        {
            "column": "label",
            "silo": "east",
            "what": "keeps the shares of its classes to itself: judged by accuracy",
            "stops": False,
            "flatters": False,
        }
    ]
    left = {e["field"] for e in Ledger(loop.sides["east"].folder).entries() if e["kind"] == "declare"}
    assert left == {"sizes", "sample", "classes", "outputs"}
    assert "keeps the shares of its classes" in (tmp_path / "run" / "report.html").read_text()


def test_tables_begin_with_what_the_verdict_goes_by_and_have_no_score_that_test_data_picked(tmp_path: Path) -> None:
    finished = federated(tmp_path / "run", Loop(settle(tmp_path)), TABLE | {"methods": {"fedavg": {}}}).run("")
    assert finished.summary["data"] == {"note": "3 silos, each with its own data; 3 classes", "differences": []}
    console = Console(width=200, record=True, file=io.StringIO())
    show_outcome(finished.summary, console)
    assert "BMTA" not in console.export_text() and "BMTA" not in (tmp_path / "run" / "report.html").read_text()


def calibration(home: Path, silo: str, method: str) -> dict[str, str]:
    """What the file of a silo's model has beside its weights."""
    with safe_open(home / silo / "models" / f"run-{method}-1" / f"{silo}.safetensors", "pt") as file:
        return dict(file.metadata())


def simulated(study: Study, without: str = "") -> Outcome:
    members = sorted(silos(), key=lambda silo: silo.name)
    outcome = Assembly(members, build(study.model, (5,), 3)[0], 3, study.training, 1, "cpu", 1).train(
        study.methods["fedamp"]
    )
    assert outcome.picked is not None
    calibrate(outcome, {silo.name: silo for silo in members if silo.name != without}, study.training.positive)
    return outcome


def simulated_temperatures(study: Study, without: str = "") -> dict[str, float]:
    return simulated(study, without).temperatures


FEDAMP = TABLE | {"methods": {"fedamp": {}}}


def test_a_silo_with_few_rows_follows_the_others_temperature_as_in_a_simulation(tmp_path: Path) -> None:
    finished = federated(tmp_path / "run", Loop(settle(tmp_path)), FEDAMP).run("")
    expected = simulated_temperatures(finished.study)
    assert finished.summary["methods"]["fedamp"]["temperatures"] == pytest.approx(expected, rel=1e-4)
    for name in NAMES:
        assert float(calibration(tmp_path, name, "fedamp")["temperature"]) == pytest.approx(expected[name], rel=1e-4)


def test_measures_of_probabilities_are_of_the_tempered_model_and_raw_beside(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    loop.deaf = lambda r: r.silo == "south" and r.kind == "keep"
    finished = federated(tmp_path / "run", loop, FEDAMP).run("")
    outcome, found = simulated(finished.study, "south"), finished.summary["methods"]["fedamp"]["measures"]
    assert outcome.picked is not None
    for silo in silos():
        p = outcome.picked.outputs["test"][silo.name].astype(float)
        for name in RAW:
            raw = measure_of(name).of(silo.test.y, p)
            if silo.name == "south":  # kept no model, so none is tempered
                assert silo.name not in found[name]["silos"]
            else:
                made = measure_of(name).of(silo.test.y, tempered(p, outcome.temperatures[silo.name]))
                assert found[name]["silos"][silo.name] == pytest.approx(made, rel=2e-5) != pytest.approx(raw, rel=2e-5)
            assert found[f"{name}_raw"]["silos"][silo.name] == pytest.approx(raw, rel=2e-5)
    assert {"validation", "test", "silos"} <= set(found["log_loss"]) & set(found["log_loss_raw"])


@pytest.mark.parametrize("by", ["sensitivity", "specificity"])
@pytest.mark.slow
def test_rounds_verdict_and_tables_call_the_positive_class_from_the_same_threshold_on(by: str, tmp_path: Path) -> None:
    loop, table = of_two_classes(tmp_path, 0.2), TABLE | {"methods": {"separate": {}, "fedavg": {}}}
    table |= {"measure": {"by": by}}
    finished = federated(tmp_path / "run", loop, table).run("")
    for name in ("separate", "fedavg"):
        scores, method = finished.summary["verdict"]["methods"][name], finished.summary["methods"][name]
        assert scores["test"] == pytest.approx(100 * method["measures"][by]["test"])
        for silo in NAMES:
            model = load_model(tmp_path / silo / "models" / f"run-{name}-1" / f"{silo}.safetensors")
            with np.load(loop.sides[silo].source.path) as held:
                called = model.predict(held["x_test"])["prediction"].to_numpy().astype(int)
                wanted = int(by == "sensitivity")
                right = float((called == held["y_test"])[held["y_test"] == wanted].mean())
            assert method["measures"][by]["silos"][silo] == pytest.approx(right, abs=1e-6)


def test_seeds_that_are_auto_are_written_as_those_that_ran(tmp_path: Path) -> None:
    finished = federated(tmp_path / "run", Loop(settle(tmp_path)), FEDAMP | {"seeds": "auto"}).run("")
    assert finished.study.as_table()["seeds"] == [0]
    assert "seeds = [0]" in (tmp_path / "run" / "study.toml").read_text("utf-8")


def test_a_silo_may_keep_its_curve_and_still_follows_the_others(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    allowed = ["w", *described(Measured), *described(Declared), "round"]
    (loop.sides["east"].folder / "silo.toml").write_text(f'approve = "all"\nfields = {json.dumps(allowed)}\n')
    finished = federated(tmp_path / "run", loop, FEDAMP).run("")
    found = finished.summary["methods"]["fedamp"]["temperatures"]
    expected = simulated_temperatures(finished.study, without="east")
    assert found == pytest.approx(expected, rel=1e-4) and "east" not in found
    assert 0.25 <= float(calibration(tmp_path, "east", "fedamp")["temperature"]) <= 10
    left = {e["field"] for e in Ledger(loop.sides["east"].folder).entries() if e["kind"] == "keep"}
    assert left == {"round"}


def test_a_silo_that_misses_the_second_request_keeps_its_own_temperature(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    loop.deaf = lambda r: r.silo == "south" and bool(r.pooled)
    finished = federated(tmp_path / "run", loop, FEDAMP).run("")
    assert set(finished.summary["methods"]["fedamp"]["temperatures"]) == {"east", "north"}
    assert "temperature" in calibration(tmp_path, "south", "fedamp")


@pytest.mark.parametrize("spoiled", [torch.nan, torch.inf, -1.0, 1e9])
def test_a_curve_that_cannot_be_is_left_out(spoiled: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SiloSide.answer

    def answer(self: SiloSide, request: Request) -> Answer:
        given = honest(self, request)
        if request.kind != "keep" or self.name != "east":
            return given
        done = decode(Done, given.body)
        assert done.curve is not None
        return replace(given, body=encode_up(done.replace(curve=torch.full_like(done.curve, spoiled))))

    monkeypatch.setattr(SiloSide, "answer", answer)
    finished = federated(tmp_path / "run", Loop(settle(tmp_path)), FEDAMP).run("")
    expected = simulated_temperatures(finished.study, without="east")
    assert finished.summary["methods"]["fedamp"]["temperatures"] == pytest.approx(expected, rel=1e-4)


def test_a_silo_that_holds_back_a_measure_is_measured_by_the_rest(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    allowed = ["w", "loss", "accuracy", *described(Declared), "round", "curve"]
    (loop.sides["east"].folder / "silo.toml").write_text(f'approve = "all"\nfields = {json.dumps(allowed)}\n')
    finished = federated(tmp_path / "run", loop, TABLE | {"methods": {"fedavg": {}}}).run("")
    known = finished.results[finished.results["value"].notna()].groupby("silo")["measure"].agg(set)
    assert known["east"] == {"loss", "accuracy"} < known["north"]
    assert finished.summary["methods"]["fedavg"]["missing"] == 0
