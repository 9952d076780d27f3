"""A silo against its own coordinator: what an audit tried, as crafted requests to the silo's own handler."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import call
from loop import Loop, job, settle
from test_drive import FEDAMP, federated
from test_tables import TABLE, patients, settled

from coterie.codec import decode, encode
from coterie.data.own.schema import FAR, Column, Schema
from coterie.data.own.statistics import LEVELS
from coterie.deploy import approval, own
from coterie.deploy.approval import PROPOSED, Approvals, answers_of_a_run, study_hash
from coterie.deploy.budget import FILE as SPENT
from coterie.deploy.budget import Budget, Spent
from coterie.deploy.home import ALIVE, NODES, SOURCE
from coterie.deploy.ledger import Ledger
from coterie.deploy.messages import Job, Measured, Request
from coterie.deploy.messages import request as parsed
from coterie.deploy.policy import FILE, MOST_PROPOSED, Policy, Refused, policy_text, read_policy
from coterie.deploy.repair import repair
from coterie.deploy.silo import SiloSide
from coterie.deploy.vault import is_reserved
from coterie.engine.method import Cohort
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.methods import make
from coterie.options import resolved
from coterie.run import tuning

AGE, WARD = Column("age", mean=50.0, scale=10.0), Column("ward", "category", levels=("a", "b", "c"))
ONE_STEP = Training(rounds=3, local_epochs=1, batch_size=1000, lr=1.0)


SEVERAL = Training(rounds=3, batch_size=16)


def asked(schema: Schema, training: Training = SEVERAL, **changes: Any) -> Request:
    """The first training request of a linear model to north, which holds a table."""
    work = Job(
        method="fedavg", options={}, model={"name": "linear"}, train=resolved(training), seed=1, shape=schema.shape,
        classes=len(schema.classes), outputs=len(schema.classes) or 1, names=("north", "south", "east"),
        sizes=(26, 26, 26), validation=(6, 6, 6), study="study", schema=schema.as_table(),
    )  # fmt: skip
    method, model, roster = work.built()
    down = method.send(method.open(roster, model), Cohort.everyone(roster, model, 0))
    zero = down.map(lambda t: t * 0)
    return replace(Request("train", "north", "run", 0, cohort=3, job=work, body=encode(zero.one(0))), **changes)


def schema(*columns: Column, classes: tuple[str, ...] = ("ill", "well")) -> Schema:
    return Schema("outcome", classes, columns=columns, shape=(sum(column.width for column in columns),))


@pytest.mark.parametrize("policy", ["each", "all"])
def test_a_coordinator_that_calls_ages_levels_reads_no_patient(policy: Any, tmp_path: Path) -> None:
    """A zero linear model, one step over all rows and a level for every age gave each patient's age and outcome."""
    side = settled(tmp_path)["north"]
    (side.folder / FILE).write_text(policy_text(policy))
    ages = sorted({str(age) for age in patients(0)["age"]})
    answer = side.answer(asked(schema(Column("age", "category", levels=tuple(ages))), ONE_STEP))
    assert answer.body == b"" and Ledger(side.folder).entries() == []
    assert answer.refusal


@pytest.mark.parametrize(
    ("agreed", "reason"),
    [
        (schema(Column("age", "category", levels=("44.1", "44.2"))), "has column 'age' as category; here it is number"),
        (schema(Column("age", "text")), "has column 'age' as text; here it is number"),
        (schema(AGE, Column("ward", "text")), "has column 'ward' as text; here it is category"),
        (schema(AGE, AGE), "is not of this silo's columns, each of them once"),
        (schema(Column("name")), "has column 'name' as number; here it is missing"),
        (Schema("outcome", ("ill", "well"), shape=(2,)), "is not of this silo's columns"),
        (
            schema(AGE, replace(WARD, levels=tuple(f"{i:03}" for i in range(LEVELS + 1)))),
            f"{LEVELS + 1} levels of 'ward'",
        ),
        (schema(AGE, WARD), ""),
    ],
)
def test_a_schema_must_be_of_the_silos_own_columns(agreed: Schema, reason: str, tmp_path: Path) -> None:
    answer = settled(tmp_path)["north"].answer(asked(agreed))
    assert reason in answer.refusal and bool(answer.body) == (not reason)


def test_a_label_that_is_a_number_is_not_made_classes_of(tmp_path: Path) -> None:
    side = settled(tmp_path)["north"]
    draw = np.random.default_rng(0).normal(size=40)
    frame = patients(0).assign(outcome=draw)
    frame.to_csv(side.source.path, index=False)
    answer = side.answer(asked(schema(AGE, WARD, classes=tuple(sorted(map(str, draw))))))
    assert "has classes, and this silo's label is a number" in answer.refusal


@pytest.mark.parametrize(
    ("training", "policy", "reason"),
    [
        (ONE_STEP, "", "1 training steps before an upload; at least 2 must be: in the study take more"),
        (ONE_STEP, "", "local_epochs or a smaller batch_size, or at the silo lower fewest_steps in silo.toml"),
        (replace(ONE_STEP, batch_size=0), "", "0 samples in a training step; at least 4 must be"),
        (
            replace(ONE_STEP, batch_size=1),
            "",
            "1 samples in a training step; at least 4 must be: in the study take a larger",
        ),
        (replace(ONE_STEP, batch_size=8, whole_batches=True), "fewest_steps = 4", "3 training steps before"),
        (replace(ONE_STEP, batch_size=7), "fewest_steps = 4", ""),
        (replace(ONE_STEP, batch_size=25), "", "1 of 26 samples in an epoch's last step; at least 4 must be"),
        (
            replace(ONE_STEP, batch_size=8),
            "",
            "in the study take another [train] batch_size than 8 or whole_batches = true, "
            "or at the silo lower smallest_batch in silo.toml",
        ),
        (replace(ONE_STEP, batch_size=8, whole_batches=True), "", ""),
        (replace(ONE_STEP, batch_size=8), "smallest_batch = 2", ""),
        (replace(ONE_STEP, local_epochs=2), "smallest_batch = 27", "26 samples in a training step; at least 27"),
    ],
)
def test_an_upload_is_of_several_steps_of_several_samples(
    training: Training, policy: str, reason: str, tmp_path: Path
) -> None:
    side = settled(tmp_path, f'approve = "all"\n{policy}')["north"]
    answer = side.answer(asked(schema(AGE, WARD), training))
    assert reason in answer.refusal and bool(answer.body) == (not reason)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedavg", {"finetune": {}}),
        ("fedrep", {}),
        ("stack", {"of": ["separate", {"method": "fedavg", "train": {"lr": 0.1}}]}),
    ],
)
def test_an_epochs_last_step_counts_in_whatever_trains(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Of 26 rows in batches of 25, a step of one row: over 200 rounds every pair of age and outcome was read."""
    side = settled(tmp_path, policy_text())["north"]
    work = asked(schema(AGE, WARD), replace(SEVERAL, batch_size=25)).job
    assert work is not None
    work = replace(work, method=method, options=options)
    answer = side.answer(Request("propose", "north", "run", 0, proposed=(work,)))
    assert answer.refusal.startswith("1 of 26 samples in an epoch's last step") and proposed(side) == []


@pytest.mark.parametrize(
    ("method", "options", "few"),
    [
        ("fedala", {}, 1),  # A is learned on 21 of 26 rows, in steps of 10, 10 and 1
        ("perfedavg", {}, 2),  # the last step, of 6, is one of three gradients
        ("perfedavg", {"variant": "fo"}, 3),
        ("stack", {"of": ["separate", "fedala"]}, 1),
    ],
)
def test_a_method_s_own_passes_and_parts_of_a_batch_count(
    method: str, options: dict[str, Any], few: int, tmp_path: Path
) -> None:
    side = settled(tmp_path, policy_text())["north"]
    work = asked(schema(AGE, WARD), replace(SEVERAL, batch_size=10)).job
    assert work is not None
    work = replace(work, method=method, options=options)
    answer = side.answer(Request("propose", "north", "run", 0, proposed=(work,)))
    assert f"takes gradients of {few} of 26 samples; at least 4 must be" in answer.refusal and proposed(side) == []
    assert "or at the silo lower smallest_batch in silo.toml" in answer.refusal


def test_wrappers_change_no_steps_but_samples_that_are_drawn_for_each_have_no_last_batch() -> None:
    with pytest.raises(Refused, match="fedala takes gradients of 1 of 26 samples"):
        Policy().judge_steps(make("fedala", {"finetune": {}}), replace(SEVERAL, batch_size=10), 26)
    private = make("fedavg", {"privacy": {"level": "record", "noise": 1.0}})
    with pytest.raises(Refused, match="1 of 26 samples"):
        Policy().judge_steps(make("fedavg", {}), replace(SEVERAL, batch_size=25), 26)
    Policy().judge_steps(private, replace(SEVERAL, batch_size=25), 26)


def test_no_schema_that_nobody_approved_tells_how_far_a_label_lies(tmp_path: Path) -> None:
    """A unit so small that a label overflows was refused, a larger one was not: the largest label, by halving."""
    side = settled(tmp_path, policy_text())["north"]
    patients(0).assign(outcome=np.linspace(40.0, 90.0, 40)).to_csv(side.source.path, index=False)
    work = asked(schema(AGE, WARD, classes=())).job
    assert work is not None
    reasons = set()
    for unit in (1.0, 89.0 / FAR, 91.0 / FAR, 1e-300):
        agreed = replace(schema(AGE, WARD, classes=()), unit=unit)
        asked_ = Request("propose", "north", "run", 0, proposed=(replace(work, schema=agreed.as_table()),))
        reasons.add(side.answer(asked_).refusal.partition(": study")[0])
    assert reasons == {"awaits approval by the silo's owner (`coterie silo approve`)"}


def test_studies_that_nobody_approved_cost_a_silo_one_reading_of_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty of them, each with another mean, held it for ten seconds, and as long again whenever they were sent."""
    side, read = settled(tmp_path, policy_text())["north"], list[str]()
    whole = own.read_silo
    monkeypatch.setattr(own, "read_silo", lambda *given: read.append("") or whole(*given))
    work = asked(schema(AGE, WARD)).job
    assert work is not None
    jobs = [replace(work, schema=schema(replace(AGE, mean=float(i)), WARD).as_table()) for i in range(3)]
    request = Request("propose", "north", "run", 0, proposed=tuple(jobs))
    for _ in range(2):
        assert side.answer(request).refusal.startswith("awaits approval") and len(read) == 1
    assert len(proposed(side)) == 3 and not (side.folder / "state" / "data.safetensors").exists()
    text = replace(work, schema=schema(replace(AGE, kind="text"), WARD).as_table())
    answer = side.answer(replace(request, proposed=(text,)))
    assert answer.refusal == "the run's schema has column 'age' as text; here it is number" and len(read) == 1
    patients(0, rows=50).to_csv(side.source.path, index=False)
    few = replace(work, train=resolved(replace(SEVERAL, batch_size=31)))  # of 32 rows, as there are now
    assert "1 of 32 samples" in side.answer(replace(request, proposed=(few,))).refusal and len(read) == 2


def test_what_a_silo_describes_is_kept_once_for_all_runs(tmp_path: Path) -> None:
    """Under ever new names its answer of many levels, kept for each, could fill its disk."""
    side = settled(tmp_path, policy_text())["north"]
    asked_ = [Request("describe", "north", f"run-{i}", 0) for i in range(4)]
    first = [side.answer(each).body for each in asked_]
    assert first[0] and {*first} == {first[0]}
    kept = [path for path in (side.folder / "state").rglob("*") if path.is_file() and first[0] in path.read_bytes()]
    assert len(kept) == 1 and is_reserved(kept[0].name)
    given = Budget(side.folder, Policy()).spent().answers
    assert [side.answer(each).body for each in asked_] == first  # the same question again is one answer
    assert Budget(side.folder, Policy()).spent().answers == given == 4
    patients(1).to_csv(side.source.path, index=False)
    other = side.answer(replace(asked_[0], run="later")).body
    assert other not in (b"", first[0]) and side.answer(asked_[0]).body == other
    assert Budget(side.folder, Policy()).spent().answers == 6  # what leaves is counted and written down


def proposed(side: SiloSide) -> list[str]:
    return [each.digest for each in Approvals(side.folder).proposals()]


def test_a_silo_made_by_itself_trains_nothing_that_its_owner_has_not_approved(tmp_path: Path) -> None:
    side = settled(tmp_path, policy_text())["north"]
    request = asked(schema(AGE, WARD))
    assert request.job is not None
    for kind in ("train", "measure", "keep", "adapt"):
        answer = side.answer(replace(request, kind=kind, newcomer=kind == "adapt"))
        assert answer.refusal.startswith("awaits approval by the silo's owner (`coterie silo approve`): study 'study'")
    assert Ledger(side.folder).entries() == [] and not (side.folder / "state").exists()
    assert proposed(side) == [study_hash(request.job)] and study_hash(request.job)[:16] in answer.refusal
    approved = Approvals(side.folder).approve(study_hash(request.job)[:16])
    assert approved.digest == study_hash(request.job) and proposed(side) == []
    assert side.answer(request).refusal == ""
    other = replace(
        request, run="other", job=replace(request.job, seed=2, names=("north", "x"), sizes=(1, 1), validation=(1, 1))
    )
    assert side.answer(other).refusal == ""  # another seed, other members: the same study


@pytest.mark.parametrize(
    "change",
    [
        lambda job: {"options": {"finetune": {}}},
        lambda job: {"method": "fedprox"},
        lambda job: {"model": {"name": "mlp", "hidden": [2]}},
        lambda job: {"train": job.train | {"rounds": 4}},
        lambda job: {"train": job.train | {"batch_size": 4}},
        lambda job: {"train": job.train | {"lr": 1e-30}},
        lambda job: {"train": job.train | {"optimizer": "adam"}},
        lambda job: {"schema": schema(replace(AGE, scale=9.0), WARD).as_table()},
        lambda job: {"study": "another"},
    ],
)
def test_what_was_approved_is_that_very_study(change: Callable[[Job], dict[str, Any]], tmp_path: Path) -> None:
    side = settled(tmp_path, policy_text())["north"]
    request = asked(schema(AGE, WARD))
    assert request.job is not None
    side.answer(request)
    Approvals(side.folder).approve(proposed(side)[0])
    answer = side.answer(replace(request, job=replace(request.job, **change(request.job))))
    assert answer.refusal.startswith("awaits approval") and len(proposed(side)) == 1


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("train", {"round": 3}, "round 4 of a run of 3 rounds"),
        ("confirm", {"round": 900}, "round 901 of a run of 3 rounds"),
        ("measure", {"round": 3, "splits": ("train", "test")}, "train rows measured; this run measures test"),
        ("adapt", {}, "adapt: of a newcomer alone"),
    ],
)
def test_an_approved_study_is_no_leave_for_more_than_is_in_it(
    kind: Any, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    side = settled(tmp_path, policy_text())["north"]
    request = asked(schema(AGE, WARD), replace(SEVERAL, measure=("test",)))
    side.answer(request)
    Approvals(side.folder).approve(proposed(side)[0])
    answer = side.answer(replace(request, kind=kind, **changes))
    assert answer.refusal == reason and not answer.body
    assert side.answer(replace(request, round=2)).refusal == ""  # its last
    assert side.answer(replace(request, kind="measure", round=2, splits=("test",))).refusal == ""


def test_an_approved_study_is_answered_as_often_as_its_runs_need_and_then_asks_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer is of a model of the coordinator's choice, and runs have whatever names and seeds it gives them."""
    side = settled(tmp_path, policy_text().replace("\nruns = 20", "\nruns = 1"))["north"]
    request = asked(schema(AGE, WARD), replace(SEVERAL, measure=("test",)))
    assert request.job is not None
    side.answer(request)
    Approvals(side.folder).approve(study_hash(request.job)[:16])
    given = 0
    for place in range(100):
        each = replace(request, kind="measure", run=f"run-{place % 3}", splits=("test",), attempt=place)
        each = replace(each, job=replace(request.job, seed=place))
        if (answer := side.answer(each)).refusal:
            break
        given += 1
        if given < 5:
            assert side.answer(each).body == answer.body  # the same question again is one answer
    assert given == answers_of_a_run(request.job) == 20
    assert answer.refusal.startswith("awaits approval") and "20 answers were given to it" in answer.refusal
    assert "awaits approval" in side.answer(Request("propose", "north", "x", 0, proposed=(request.job,))).refusal
    monkeypatch.setattr("typer.confirm", lambda question: True)
    assert call("silo", "approve", side.folder) == 0
    assert "20 at most, for 1 runs; approved before, and 20 were given" in capfd.readouterr().out
    assert side.answer(each).body and proposed(side) == []
    (side.folder / "approved" / f"{study_hash(request.job)}.answers").write_text("half")
    assert ".answers: damaged; remove " in side.answer(replace(each, attempt=999)).refusal


def test_an_approved_study_runs_under_few_names(tmp_path: Path) -> None:
    """A silo keeps state and answers of each: of a study of 1,000 rounds 80,000 names could fill its disk."""
    side = settled(tmp_path, policy_text().replace("\nruns = 20", "\nruns = 2"))["north"]
    request = asked(schema(AGE, WARD))
    assert request.job is not None
    side.answer(request)
    Approvals(side.folder).approve(study_hash(request.job))
    answers = [side.answer(replace(request, run=f"run-{place}")) for place in range(8)]  # and two searches of each
    assert [bool(each.body) for each in answers] == [True] * 6 + [False] * 2
    assert answers[-1].refusal.startswith("awaits approval") and "6 runs" in answers[-1].refusal
    assert side.answer(replace(request, run="run-5", attempt=1)).body  # one of those that it knows goes on
    assert len([path for path in (side.folder / "state").iterdir() if path.is_dir()]) == 6
    assert Approvals(side.folder).approve(study_hash(request.job)) and side.answer(replace(request, run="other")).body


def test_an_approval_whose_count_is_lost_is_none(tmp_path: Path) -> None:
    side = settled(tmp_path, policy_text())["north"]
    request = asked(schema(AGE, WARD))
    assert request.job is not None
    side.answer(request)
    Approvals(side.folder).approve(digest := study_hash(request.job))
    assert side.answer(request).refusal == ""
    (side.folder / "approved" / f"{digest}.answers").unlink()
    assert side.answer(replace(request, attempt=1)).refusal.startswith("awaits approval")
    assert proposed(side) == [digest] and Approvals(side.folder).approve(digest)
    assert side.answer(replace(request, attempt=1)).refusal == ""


@pytest.mark.parametrize("kind", ["declare", "describe"])
@pytest.mark.parametrize("policy", ['methods = ["separate"]', "rounds = 2", 'secure = "secagg"'])
def test_what_a_silo_declares_is_of_no_job(kind: Any, policy: str, tmp_path: Path) -> None:
    """A job under such a name was kept and measured, whose method, rounds and level no policy had judged."""
    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text(f'approve = "all"\n{policy}\n')
    answer = side.answer(replace(private("run", finetune={}), kind=kind))
    assert answer.refusal == f"{kind}: of no job" and answer.body == b""
    assert Ledger(side.folder).entries() == [] and not (side.folder / "models").exists()


@pytest.mark.parametrize("damage", [{"columns": 3}, {"columns": [1]}, {"columns": [{}]}, {"classes": [1, 2]}])
def test_no_study_keeps_an_owner_from_looking_at_those_that_wait(
    damage: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose schema is none was kept to be approved, and `coterie silo approve` ended at it."""
    side = settled(tmp_path, policy_text())["north"]
    good = asked(schema(AGE, WARD))
    assert good.job is not None
    bad = replace(good, job=replace(good.job, schema=damage))
    assert "the run's schema" in side.answer(parsed(bad.head(), bad.body)).refusal
    assert side.answer(parsed(good.head(), good.body)).refusal.startswith("awaits approval")
    monkeypatch.setattr("typer.confirm", lambda question: False)
    assert call("silo", "approve", side.folder) == 0
    assert study_hash(good.job)[:16] in capfd.readouterr().out and len(proposed(side)) == 1


def test_a_study_of_a_method_that_is_gone_keeps_no_owner_from_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of a package that was removed, or that another version of Coterie has kept."""
    side = settled(tmp_path, policy_text())["north"]
    request = asked(schema(AGE, WARD))
    assert request.job is not None and side.answer(request).refusal
    path = side.folder / PROPOSED / f"{study_hash(request.job)}.json"
    table = json.loads(path.read_text())
    (path.parent / "0.json").write_text(json.dumps(table | {"job": table["job"] | {"method": "gone"}}))
    monkeypatch.setattr("typer.confirm", lambda question: False)
    assert call("silo", "approve", side.folder) == 0
    printed = capfd.readouterr().out
    assert "cannot be shown: unknown method 'gone'" in printed and "trains: 3 rounds" in printed
    for content, why in (
        (json.dumps(table | {"job": table["job"] | {"surprise": 1}}), "unknown key 'surprise'"),
        (json.dumps(table).replace('"linear"', "[" * 490 + "]" * 490), "tables within tables"),
        ("{", "damaged"),
    ):
        (path.parent / "0.json").write_text(content)
        assert call("silo", "approve", side.folder) == 0
        printed = capfd.readouterr().out
        assert "proposed/0.json" in printed and why in printed and "trains: 3 rounds" in printed
    assert Approvals(side.folder).approve(study_hash(request.job))


def test_a_search_that_was_approved_may_choose_rate_and_optimiser(tmp_path: Path) -> None:
    job = asked(schema(AGE, WARD)).job
    assert job is not None
    found = replace(job, train=job.train | {"lr": 0.3, "optimizer": "adam"})
    assert study_hash(job) != study_hash(found)
    assert study_hash(replace(job, tuning=4)) == study_hash(replace(found, tuning=4)) != study_hash(job)


def test_a_stack_that_was_approved_may_take_the_rates_that_were_found_for_its_members() -> None:
    job = asked(schema(AGE, WARD)).job
    assert job is not None
    job = replace(job, method="stack", options={"of": ["fedavg", "ditto"]})
    found = replace(job, options={"of": [{"method": "fedavg", "train": {"lr": 0.3, "optimizer": "adam"}}, "ditto"]})
    other = replace(job, options={"of": [{"method": "fedavg", "train": {"weight_decay": 0.1}}, "ditto"]})
    assert study_hash(job) == study_hash(found) != study_hash(other)
    as_all = {"lr": 0.3, "optimizer": "adam", "weight_decay": job.training.weight_decay}
    found = replace(job, options={"of": [{"method": "fedavg", "train": as_all}, "ditto"]})
    assert study_hash(job) == study_hash(found)  # what says the same as the study's own training changes nothing


def test_a_stack_that_is_searched_itself_is_approved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stopped half-way: a search that leaves the decay as it is wrote it into the members that it was found for."""
    monkeypatch.setattr(tuning, "RUNGS", (1, 2))
    for name in ("sgd", "adam"):
        monkeypatch.setitem(tuning.GRID, name, (0.03, 0.3))
    train = TABLE["train"] | {"lr": "auto", "optimizer": "auto", "weight_decay": "auto"}
    table = TABLE | {"train": train, "methods": {"fedavg": {}, "stack": {"of": ["separate", "fedavg"]}}}
    sides = settled(tmp_path, policy_text())
    with pytest.raises(BadInput, match="awaits approval"):
        federated(tmp_path / "run", Loop(sides), table).run("")
    for side in sides.values():
        for digest in proposed(side):
            Approvals(side.folder).approve(digest)
    assert {*federated(tmp_path / "run", Loop(sides), table).run("").results["method"]} == {"fedavg", "stack"}


def test_an_owner_reads_what_is_computed_on_which_columns_before_approving_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    side = settled(tmp_path, policy_text())["north"]
    request = asked(schema(AGE, WARD))
    assert request.job is not None
    spoiled = schema(AGE, replace(WARD, levels=("\x1b[2J",)))
    assert side.answer(request).refusal and side.answer(asked(spoiled)).refusal
    monkeypatch.setattr("typer.confirm", lambda question: False)
    assert call("silo", "approve", side.folder) == 0
    printed = capfd.readouterr().out
    assert study_hash(request.job)[:16] in printed and "age (number, 50 ± 10), ward (category of 3)" in printed
    assert "the server learns: every upload" in printed
    assert "leaves each round: w" in printed and "noise: none" in printed and "\x1b" not in printed
    assert "0 of 100000 answers given over all runs" in printed and "searches before: nothing" in printed
    assert len(proposed(side)) == 2
    side.answer(replace(request, job=replace(request.job, tuning=900)))
    assert call("silo", "approve", side.folder) == 0
    assert "searches before: 900 rounds, in each of which 64 models may leave" in capfd.readouterr().out
    stack = replace(request.job, method="stack", options={"of": ["separate", "fedavg"]})
    side.answer(replace(request, job=stack))
    assert call("silo", "approve", side.folder) == 0
    assert "leaves each round: curves, counts, fits, fedavg.w" in capfd.readouterr().out
    (side.folder / PROPOSED / f"{study_hash(stack)}.json").unlink()
    assert call("silo", "approve", side.folder, "0123456789abcdef") == 2
    assert "no such study waits to be approved" in capfd.readouterr().err
    assert call("silo", "approve", side.folder, study_hash(request.job)[:16]) == 0
    assert len(proposed(side)) == 2 and side.answer(request).refusal == ""


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"lr": 1e-30}, "lr = 1e-30"),
        ({"optimizer": "adam"}, 'optimizer = "adam"'),
        ({"class_weight": "balanced"}, 'class_weight = "balanced"'),
        ({"clip_gradient": 1e-9}, "clip_gradient = 1e-09"),
        ({"schedule": "cosine"}, 'schedule = "cosine"'),
        ({"norm_limit": 0.0}, "norm_limit = 0.0"),
        ({"schedule_at": [0.5] * 1000}, "… (all of it: proposed/"),
        (schema(replace(AGE, mean=44.15, scale=1e-12), WARD), "age (number, 44.15 ± 1e-12)"),
        (schema(replace(AGE, mean=0.123456789, scale=2000000.5), WARD), "age (number, 0.123456789 ± 2000000.5)"),
        (schema(AGE, replace(WARD, levels=("a",))), "ward (category of 1)"),
        (schema(*(Column(f"c{i}", mean=float(i)) for i in range(100))), "c98 (number, 98 ± 1), c99 (number, 99 ± 1)\n"),
        (replace(schema(AGE, classes=()), centre=7.5, unit=1e-12), "of samples 1, label 7.5 ± 1e-12"),
        (replace(schema(AGE, classes=()), centre=1 / 3, unit=1e8), "label 0.3333333333333333 ± 1e+08"),
        ({"lr": 0.123456789}, "lr = 0.123456789"),
    ],
)
def test_an_owner_is_shown_how_it_trains_and_by_what_columns_are_standardised(
    change: Any, shown: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two studies, one at a rate of 1e-30 and with ages as 44.15 ± 1e-12, were shown in the same words."""
    side = settled(tmp_path, policy_text())["north"]
    request = asked(change if isinstance(change, Schema) else schema(AGE, WARD))
    assert request.job is not None
    job = request.job if isinstance(change, Schema) else replace(request.job, train=request.job.train | change)
    assert side.answer(replace(request, job=job)).refusal.startswith("awaits approval")
    monkeypatch.setattr("typer.confirm", lambda question: False)
    assert call("silo", "approve", side.folder) == 0
    assert shown in capfd.readouterr().out


def test_a_coordinator_cannot_flood_a_silo_with_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = settled(tmp_path, policy_text())["north"]
    request = asked(schema(AGE, WARD))
    assert request.job is not None
    (side.folder / PROPOSED).mkdir()
    for place in range(MOST_PROPOSED):
        (side.folder / PROPOSED / f"{place}.json").touch()
    assert f"beside {MOST_PROPOSED} others that wait to be approved" in side.answer(request).refusal
    several = replace(request, kind="propose", job=None, proposed=(request.job,) * (MOST_PROPOSED + 1))
    assert f"{MOST_PROPOSED + 1} studies at once" in side.answer(several).refusal
    large = replace(request.job, model={"name": "linear", "note": "x" * (1 << 20)})
    for place in range(2):
        (side.folder / PROPOSED / f"{place}.json").unlink()
    assert side.answer(replace(request, job=large)).refusal.startswith("awaits approval")  # of a wide table
    monkeypatch.setattr(approval, "ROOM", 2 << 20)
    assert (
        f"bytes beside {MOST_PROPOSED - 1} others"
        in side.answer(replace(request, job=replace(large, study="b"))).refusal
    )
    assert len(list((side.folder / PROPOSED).iterdir())) == MOST_PROPOSED - 1


def test_a_run_waits_until_all_owners_have_approved_all_its_methods(tmp_path: Path) -> None:
    sides = settled(tmp_path, policy_text())
    table = TABLE | {"methods": {"fedamp": {}, "separate": {}}, "seeds": [1, 2]}
    with pytest.raises(BadInput, match=r"east, north, south: refused: awaits approval .*fedamp .*go on with --res"):
        federated(tmp_path / "run", Loop(sides), table).run("")
    assert json.loads((tmp_path / "run" / "progress.json").read_text())["state"] == "waiting for approval"
    hashes = {name: sorted(proposed(side)) for name, side in sides.items()}
    assert hashes["north"] == hashes["south"] == hashes["east"] and len(hashes["north"]) == 2
    for side in sides.values():
        assert {entry["kind"] for entry in Ledger(side.folder).entries()} == {"declare", "describe"}
        for digest in proposed(side):
            Approvals(side.folder).approve(digest)
    finished = federated(tmp_path / "run", Loop(sides), table).run("")
    assert set(finished.results["silo"]) == {*sides} and set(finished.results["seed"]) == {1, 2}


def test_what_is_approved_has_the_rate_that_it_trains_at(tmp_path: Path) -> None:
    """Also where a study leaves its rate to a search, and privacy allows none."""
    table = TABLE | {"train": TABLE["train"] | {"lr": "auto"}, "methods": {"fedem": PRIVATE}}
    sides = settled(tmp_path, policy_text())
    with pytest.raises(BadInput, match="awaits approval"):
        federated(tmp_path / "run", Loop(sides), table).run("")
    for side in sides.values():
        (digest,) = proposed(side)
        Approvals(side.folder).approve(digest)
    assert set(federated(tmp_path / "run", Loop(sides), table).run("").results["silo"]) == {*sides}


PRIVATE = {"privacy": {"clip": 1.0, "noise": 8.0}}
DEMANDED = 'approve = "all"\nepsilon = 2.0\n'


def private(run: str, round: int = 0, method: str = "fedavg", **options: Any) -> Request:
    """A training request whose upload has noise, unless `options` say otherwise."""
    work = replace(job(method), options=options or PRIVATE)
    made, model, roster = work.built()
    down = made.send(made.open(roster, model), Cohort.everyone(roster, model, round))
    received = -1 if round == 0 else round - 1
    return Request("train", "north", run, round, cohort=3, received=received, job=work, body=encode(down.one(0)))


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (private("run", finetune={}), "this silo demands privacy, and what is trained would leave without noise"),
        (private("run", privacy={"clip": 1.0, "noise": 0.0}), "this silo demands privacy"),
        (private("run", privacy={"clip": 1.0, "noise": 0.5}), "ε would be 24"),
        (private("run", method="apple", **PRIVATE), "so noise on that would not cover all that leaves"),
        (replace(private("run", method="separate", finetune={}), kind="train"), ""),
        (private("run"), ""),
    ],
)
def test_a_silo_that_demands_privacy_uploads_nothing_without(request_: Request, reason: str, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text(DEMANDED)
    answer = side.answer(request_)
    assert reason in answer.refusal and bool(answer.body) == (not reason)


@pytest.mark.parametrize("policy", [DEMANDED, 'approve = "all"\nrequire = "record"\n', 'approve = "all"\n'])
def test_a_silo_that_demands_privacy_measures_no_rows_that_it_trains_on(policy: str, tmp_path: Path) -> None:
    """Measures have no noise: by those of models of its own a coordinator read the very rows that noise hides."""
    pytest.importorskip("dp_accounting")
    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text(policy)
    request = replace(private("run"), kind="measure", splits=("train", "validation", "test"))
    found = decode(Measured, side.answer(request).body, rows=1).tensors()
    assert {"loss", "accuracy", "log_loss", "error"} <= found.keys()
    kept = policy != 'approve = "all"\n'
    assert all(bool(values[0, 0].isnan()) == kept and bool(values[0, 2].isfinite()) for values in found.values())


def test_a_budget_of_privacy_holds_over_runs_methods_and_attempts(tmp_path: Path) -> None:
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text(DEMANDED)
    left = 0
    for place in range(20):
        method = ("fedavg", "fedprox")[place % 2]
        request = private(f"run-{place}", method=method, **PRIVATE)
        answer = side.answer(request)
        if answer.refusal:
            break
        assert side.answer(request).body == answer.body  # the same question again costs nothing
        left += 1
    again = replace(private("run-0", **PRIVATE), attempt=1)
    assert "over all runs, for δ = 1e-05; allowed: 2" in side.answer(again).refusal
    accountant, one_more = PLDAccountant(), PLDAccountant()
    accountant.compose(accounting.GaussianDpEvent(4.0), left)
    one_more.compose(accounting.GaussianDpEvent(4.0), left + 1)
    assert accountant.get_epsilon(1e-5) <= 2.0 < one_more.get_epsilon(1e-5)
    spent = Budget(side.folder, read_policy(side.folder)).spent()
    assert (spent.answers, spent.bare) == (left, 0)
    assert spent.epsilon(1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_what_runs_methods_and_seeds_spent_together_is_what_renyi_gives(tmp_path: Path) -> None:
    """Recomputed without the package or a library, from what the silo was asked.

    Rényi DP of order α of a Gaussian whose noise is σ times the sensitivity is α/2σ², and adds up (Mironov, CSF 2017);
    as (ε, δ) by Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12: an upper bound, and near.
    """
    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text('approve = "all"\nepsilon = 20.0\n')
    noises = list[float]()
    for run, method, seed, noise in [("a", "fedavg", 1, 8.0), ("a", "fedprox", 2, 8.0), ("b", "fedamp", 1, 5.0)]:
        for round in range(2):
            request = private(f"{run}-{method}-{seed}", round, method, privacy={"clip": 1.0, "noise": noise})
            request = replace(request, job=replace(request.job, seed=seed))
            assert side.answer(request).refusal == ""
            noises.append(noise)
    delta, orders = 1e-5, 1 + np.geomspace(1e-2, 1e3, 20_000)
    rho = sum(1 / (2 * (noise / 2) ** 2) for noise in noises)  # all of a silo's data turn a change around: 2 × the clip
    bound = (orders * rho + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)).min()
    found = Budget(side.folder, read_policy(side.folder)).spent().epsilon(delta)
    assert 0.9 * bound < found < bound
    alone = sum(1 / (2 * (noise / 2) ** 2) for noise in noises[:2])
    assert found > 1.5 * (orders * alone + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)).min()


def renyi(uses: dict[tuple[float, float], int], delta: float) -> float:
    """ε of so many uses of Gaussian noise, σ times the sensitivity, on Poisson samples of q: in NumPy alone.

    Mironov, Talwar and Zhang, 2019, Section 3.3, at whole orders; as (ε, δ) by Canonne, Kamath and Steinke as above.
    """
    best = math.inf
    for order in range(2, 64):
        k, total = np.arange(order + 1), 0.0
        binomial = np.array([math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1) for i in k])
        for (q, sigma), times in uses.items():
            terms = (k * k - k) / (2 * sigma**2)
            if q < 1:
                terms = terms + binomial + k * math.log(q) + (order - k) * math.log1p(-q)
            total += times * (np.logaddexp.reduce(terms if q < 1 else terms[-1:]) / (order - 1))
        best = min(best, total + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return best


def test_what_records_spent_over_runs_methods_seeds_and_repetitions_is_what_renyi_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a silo was asked, counted here: it has 13 rows, in batches of 8, two epochs of two steps."""
    pytest.importorskip("dp_accounting")
    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text('approve = "all"\nrequire = "record"\nepsilon = 50.0\n')
    left = {(8 / 13, 3.0): 0, (8 / 13, 5.0): 0, (1.0, 4.0): 0}
    last = None
    for run, method, seed, level, noise in [
        ("a", "fedavg", 1, "record", 3.0), ("a", "fedavg", 2, "record", 3.0), ("b", "fedamp", 1, "record", 5.0),
        ("b", "fedprox", 1, "silo", 8.0),
    ]:  # fmt: skip
        for round in range(2):
            options = {"privacy": {"level": level, "clip": 1.0, "noise": noise}}
            last = private(f"{run}-{method}-{seed}", round, method, **options)
            last = replace(last, job=replace(last.job, seed=seed))
            assert side.answer(last).refusal == ""
            left[(8 / 13, noise) if level == "record" else (1.0, noise / 2)] += 4 if level == "record" else 1
    again = SiloSide("north", side.folder, side.source, "cpu")  # a process of its own answers each message
    assert again.answer(last).refusal == ""  # the same bytes again
    assert again.answer(replace(last, body=b"rubbish")).refusal and again.answer(replace(last, received=7)).refusal
    assert again.answer(replace(last, kind="measure", splits=("test",))).refusal == ""
    spent = Budget(side.folder, read_policy(side.folder)).spent()
    bound = renyi(left, 1e-5)
    assert 0.8 * bound < spent.epsilon(1e-5, "record") < bound
    assert spent.answers == 9 and spent.bare == 0
    # A silo that ends between its count and its answer has counted what never left; never the other way round.
    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "record", lambda *given: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            again.answer(replace(last, attempt=1))
    assert again.answer(replace(last, attempt=1)).refusal == ""
    left[1.0, 4.0] += 2
    bound = renyi(left, 1e-5)
    assert 0.8 * bound < Budget(side.folder, Policy()).spent().epsilon(1e-5, "record") < bound


@pytest.mark.parametrize(
    ("level", "noises"), [("silo", {"fedavg": 8.0, "fedamp": 5.0}), ("record", {"fedavg": 3.0, "fedamp": 5.0})]
)
def test_a_summary_has_what_its_silos_counted_and_renyi_gives(
    level: str, noises: dict[str, float], tmp_path: Path
) -> None:
    pytest.importorskip("dp_accounting")
    sides = settle(tmp_path)
    methods = {name: {"privacy": {"level": level, "noise": noise}} for name, noise in noises.items()}
    table = {"name": "private", "seeds": [1, 2], "model": {"name": "mlp", "hidden": [4]}, "methods": methods}
    table |= {"train": {"rounds": 1, "local_epochs": 2, "batch_size": 8, "lr": 0.1}}
    summary = federated(tmp_path / "run", Loop(sides), table).run("").summary
    told, found = summary["privacy"], dict[str, float]()
    for name, side in sides.items():
        n = len(np.load(side.source.path)["y_train"])
        q, times = (8 / n, -(-n // 8) * 2) if level == "record" else (1.0, 1)  # in a round; there are two seeds
        scale = 1.0 if level == "record" else 0.5  # all of a silo's data turn a change around
        found[name] = renyi({(q, scale * noise): 2 * times for noise in noises.values()}, 1e-5)
        assert 0.8 * found[name] < Budget(side.folder, Policy()).spent().epsilon(1e-5, level) < found[name]
    assert told["level"] == level and told["unprotected"] == []
    assert 0.8 * max(found.values()) < told["epsilon"] < max(found.values())
    counted = max(Budget(side.folder, Policy()).spent().epsilon(1e-5, level) for side in sides.values())
    assert told["epsilon"] == pytest.approx(counted, rel=1e-3)


RECORDS = {"privacy": {"level": "record", "clip": 1.0, "noise": 3.0}}
DEMANDED_OF_RECORDS = 'approve = "all"\nrequire = "record"\nepsilon = 4.0\n'


@pytest.mark.parametrize(
    ("policy", "options", "reason"),
    [
        (DEMANDED, RECORDS, "demands privacy of all its data, and noise of level record hides single records"),
        ('approve = "all"\nrequire = "silo"\n', RECORDS, "demands privacy of all its data"),
        ('approve = "all"\nrequire = "record"\n', {"finetune": {}}, "what is trained would leave without noise"),
        ('approve = "all"\nrequire = "record"\n', RECORDS, ""),
        (DEMANDED_OF_RECORDS, RECORDS, ""),
        (DEMANDED_OF_RECORDS, PRIVATE, ""),  # what hides all data hides each record
        (DEMANDED_OF_RECORDS, {"privacy": {"level": "record", "noise": 0.4}}, "allowed: 4"),
    ],
)
def test_a_silo_may_demand_that_noise_hides_each_record(
    policy: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    pytest.importorskip("dp_accounting")
    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text(policy)
    answer = side.answer(private("run", **options))
    assert reason in answer.refusal and bool(answer.body) == (not reason)


def test_a_budget_counts_the_steps_of_the_silos_own_rows_whatever_the_run_declares(tmp_path: Path) -> None:
    """Of 13 rows in batches of 8, two epochs of two steps a round, in each of which a row is with 8/13."""
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text(DEMANDED_OF_RECORDS)
    left, bodies = 0, set[bytes]()
    for place in range(20):
        request = private(f"run-{place}", **RECORDS)
        assert request.job is not None
        large = replace(request.job, sizes=(10_000, *request.job.sizes[1:]))
        answer = side.answer(replace(request, job=large))
        if answer.refusal:
            break
        left += 1
        bodies.add(answer.body)
    assert "over all runs" in answer.refusal and left > 1 and len(bodies) == left
    step = accounting.PoissonSampledDpEvent(8 / 13, accounting.GaussianDpEvent(3.0))
    found = [PLDAccountant().compose(step, 4 * times).get_epsilon(1e-5) for times in (left, left + 1)]
    assert found[0] <= 4.0 < found[1]
    spent = Budget(side.folder, read_policy(side.folder)).spent()
    assert (spent.answers, spent.bare, spent.steps) == (left, 0, ((8 / 13, 3.0, 4.0 * left),))
    assert spent.epsilon(1e-5, "record") == pytest.approx(found[0], rel=1e-2) and spent.epsilon(1e-5) == math.inf


def test_asked_again_a_silo_that_hides_records_draws_anew_and_pays_anew(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    side = settle(tmp_path)["north"]
    request = private("run", **RECORDS)
    first, same, again = (side.answer(each) for each in (request, request, replace(request, attempt=1)))
    assert first.body == same.body != again.body
    assert Budget(side.folder, read_policy(side.folder)).spent().steps == ((8 / 13, 3.0, 8.0),)


def test_no_budget_covers_what_left_without_noise_before(tmp_path: Path) -> None:
    side = settle(tmp_path)["north"]
    assert side.answer(private("run", finetune={})).refusal == ""
    (side.folder / FILE).write_text(DEMANDED)
    assert "1 uploads left this silo without noise before" in side.answer(private("other")).refusal


def test_a_newcomer_of_whom_nothing_trained_leaves_spends_no_privacy(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text(DEMANDED)
    request = replace(private("run"), kind="adapt", newcomer=True)
    assert side.answer(request).body
    spent = Budget(side.folder, read_policy(side.folder)).spent()
    assert (spent.answers, spent.squares, spent.bare) == (1, 0.0, 0)


def test_answers_are_counted_over_all_runs(tmp_path: Path) -> None:
    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text('approve = "all"\nanswers = 3\n')
    first = private("a", finetune={})
    assert side.answer(first).body and side.answer(replace(first, run="b")).body
    measured = replace(first, run="c", kind="measure", splits=("test",))
    assert side.answer(measured).body
    assert "this silo has given 3 answers over all runs; allowed: 3" in side.answer(replace(first, run="d")).refusal
    assert side.answer(measured).body  # given before: the same bytes


def test_no_question_can_be_asked_for_ever_under_new_names(tmp_path: Path) -> None:
    """Each answer is kept, so that a coordinator could fill a silo's disk."""
    side = settle(tmp_path)["north"]
    (side.folder / FILE).write_text('approve = "all"\nanswers = 3\n')
    answers = [side.answer(Request("declare", "north", f"run-{i}", 0)) for i in range(6)]
    assert [bool(each.body) for each in answers] == [True] * 3 + [False] * 3
    assert "this silo has given 3 answers over all runs; allowed: 3" in answers[-1].refusal
    assert len([path for path in (side.folder / "state").iterdir() if path.name.startswith("run-")]) == 3
    assert side.answer(Request("declare", "north", "run-0", 0)).body == answers[0].body


@pytest.mark.parametrize("run", ["secret", "SECRET", "secret.part", "data.safetensors", "..examined.json", "nodes"])
def test_no_run_lies_where_a_silo_keeps_something_else(run: str, tmp_path: Path) -> None:
    """A folder in the place of its secret would end all training, and what a backup leaves out would be a run's."""
    side = settle(tmp_path)["north"]
    assert "keeps something else" in side.answer(Request("declare", "north", run, 0)).refusal
    assert not (side.folder / "state").exists()


def test_all_that_lies_beside_runs_is_reserved(tmp_path: Path) -> None:
    side = settle(tmp_path)["north"]
    assert side.answer(private("run", **PRIVATE)).refusal == ""
    beside = {path.name for path in (side.folder / "state").iterdir()} - {"run"}
    beside |= {
        Path(name).name for name in (ALIVE, NODES, SOURCE, "connected", "programs.json", "superlink.db", "allowed.json")
    }
    assert beside > {"secret"} and all(is_reserved(name) for name in beside)


def test_a_secret_in_whose_place_a_folder_lies_is_made_anew(tmp_path: Path) -> None:
    side = settle(tmp_path)["north"]
    (side.folder / "state" / "secret").mkdir(parents=True)
    (mended,) = [line for line in repair(side.folder)[0] if line.startswith("state/secret: damaged")]
    assert "another is made" in mended and side.answer(private("run", **PRIVATE)).refusal == ""


def test_what_is_kept_is_an_answer_about_the_data_too(tmp_path: Path) -> None:
    """It has the curve of a model that the request brings."""
    side, first = settle(tmp_path)["north"], replace(private("a", finetune={}), kind="keep")
    (side.folder / FILE).write_text('approve = "all"\nanswers = 1\n')
    assert side.answer(first).refusal == ""
    assert Budget(side.folder, Policy()).spent().answers == 1
    assert "this silo has given 1 answers" in side.answer(replace(first, run="b")).refusal


def test_a_count_that_is_lost_does_not_begin_anew(tmp_path: Path) -> None:
    side = settle(tmp_path)["north"]
    assert side.answer(Request("declare", "north", "run", 0)).refusal == ""
    assert side.answer(private("a", finetune={})).refusal == ""
    (side.folder / SPENT).unlink()
    assert "coterie silo repair" in side.answer(replace(private("a", finetune={}), run="b")).refusal
    with pytest.raises(BadInput, match="coterie silo repair"):
        Budget(side.folder, Policy()).spent()
    repair(side.folder)
    assert Budget(side.folder, Policy()).spent().answers == 2


def test_noise_on_all_data_and_on_records_of_the_same_size_add_up() -> None:
    squares = 0.25
    both = Spent(squares=squares).with_steps(1.0, squares**-0.5, 1)
    assert both.epsilon(1e-5, "record") == pytest.approx(Spent().with_steps(1.0, 2.0, 2).epsilon(1e-5, "record"))


def test_a_silo_that_refuses_a_study_is_named_with_its_reason_before_the_first_round(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of 13, 8 and 21 rows in batches of 11, two silos would have a step of two rows, or of ten."""
    table = FEDAMP | {"train": FEDAMP["train"] | {"batch_size": 11}}
    federated(tmp_path / "run", Loop(settle(tmp_path)), table).run("")
    told = [line for line in capfd.readouterr().err.splitlines() if "takes no part" in line]
    (north,) = told
    assert north.startswith(
        "coterie: north takes no part in this study, which it refused: 2 of 13 samples in an epoch's"
    )
    assert "in the study take another" in north and "or at the silo lower smallest_batch in silo.toml" in north
