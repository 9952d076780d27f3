"""The group key: made by one silo, opened by the members it is sealed to, and by nobody else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import call
from loop import NAMES, TRAINING, Loop, job, settle
from test_remote import deployed, simulated, values

pytest.importorskip("cryptography")
import pandas as pd

from coterie.codec import decode, encode
from coterie.deploy.certificates import make_key
from coterie.deploy.group import FILE, group_of, join_group, make_group, meet
from coterie.deploy.ledger import Ledger
from coterie.deploy.messages import Answer, Job, Request
from coterie.engine.method import Cohort
from coterie.errors import BadInput


def silo(folder: Path, name: str) -> Path:
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    make_key(home / "key", name)
    return home


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    return [silo(tmp_path, name) for name in NAMES]


def test_each_member_opens_the_key_that_was_sealed_to_it(three: list[Path]) -> None:
    maker, *others = three
    files, printed = make_group(maker, [each / "key.pub" for each in three])
    for each in others:
        sealed = maker / "group" / f"{each.name}.sealed"
        assert sealed in files
        assert join_group(each, sealed, maker / "key.pub") == printed
    assert len({group_of(each, "run") for each in three}) == 1
    assert group_of(maker, "run") != group_of(maker, "another run")
    secret = (maker / FILE).read_text()
    assert all(secret not in file.read_text() for file in files)
    assert all((each / FILE).stat().st_mode & 0o077 == 0 for each in three)


def test_nobody_opens_another_members_and_nobody_can_put_their_own_in_its_place(three: list[Path]) -> None:
    north, south, east = three
    make_group(north, [south / "key.pub"])
    sealed = north / "group" / "south.sealed"
    with pytest.raises(BadInput, match="not sealed to this silo"):
        join_group(east, sealed, north / "key.pub")
    make_group(east, [south / "key.pub"])  # such as a coordinator could make, to read everything
    with pytest.raises(BadInput, match="not signed"):
        join_group(south, east / "group" / "south.sealed", north / "key.pub")
    table = json.loads(sealed.read_text())
    sealed.write_text(json.dumps(table | {"box": table["box"][:-8] + "AAAAAAA="}))
    with pytest.raises(BadInput, match="not signed"):
        join_group(south, sealed, north / "key.pub")
    sealed.write_text("{}")
    with pytest.raises(BadInput, match="no sealed group key"):
        join_group(south, sealed, north / "key.pub")


def test_the_commands(three: list[Path], capfd: pytest.CaptureFixture[str]) -> None:
    north, south, _ = three
    assert call("silo", "group", north, south / "key.pub") == 0
    printed = capfd.readouterr().out
    assert call("silo", "join", south, north / "group" / "south.sealed", north / "key.pub") == 0
    assert capfd.readouterr().out.split()[2] in printed
    assert call("silo", "group", north) == 2


def grouped(folder: Path, key: str = "11" * 32) -> Loop:
    sides = settle(folder)
    for each in sides.values():
        (each.folder / FILE).write_text(key)
    return Loop(sides)


@pytest.mark.parametrize("method", ["fedavg", "fedem", "fedrep"])
def test_deployed_silos_do_what_those_of_a_simulation_do(method: str, tmp_path: Path) -> None:
    found = deployed(tmp_path, method, loop=grouped(tmp_path), blind={})
    pd.testing.assert_series_equal(values(found), values(simulated(method)), atol=1e-4, rtol=0)
    left = {entry["field"] for entry in Ledger(tmp_path / "north").entries() if entry["kind"] == "train"}
    assert {"nonce", "out_of_range"} < left


@pytest.mark.parametrize("method", ["fedamp", "fedacs"])
def test_deployed_sketches_tell_who_is_like_whom(method: str, tmp_path: Path) -> None:
    found = deployed(tmp_path, method, loop=grouped(tmp_path), blind={"sketch": 4096})
    pd.testing.assert_series_equal(values(found), values(simulated(method)), atol=0.2, rtol=0)


def test_a_lost_answer_changes_nothing(tmp_path: Path) -> None:
    """The same upload again has the same masked bits."""
    loop = grouped(tmp_path / "one")
    loop.mute = lambda r: r.kind == "train" and r.silo == "south" and r.round == 1 and r.attempt == 0
    other = grouped(tmp_path / "other")
    one, whole = (deployed(tmp_path, "fedavg", loop=each, blind={}) for each in (loop, other))
    pd.testing.assert_series_equal(values(one), values(whole), atol=1e-9, rtol=0)


def test_a_silo_without_the_key_refuses_and_one_with_another_opens_nothing(tmp_path: Path) -> None:
    loop = grouped(tmp_path)
    (tmp_path / "east" / FILE).unlink()
    (tmp_path / "south" / FILE).write_text("22" * 32)
    with pytest.raises(BadInput, match="does not open"):  # one silo's garbage is in everybody's sum
        deployed(tmp_path, "fedavg", TRAINING, loop=loop, blind={})
    assert "group key that this silo lacks" in (tmp_path / "east" / "events.log").read_text()
    assert "does not open" in (tmp_path / "south" / "events.log").read_text()


def test_a_method_that_hides_inside_another_does_not_hide_under_a_public_key(tmp_path: Path) -> None:
    work = job("stack", of=["separate", {"method": "fedavg", "blind": {}}])
    made, model, roster = work.built()
    down = made.send(made.open(roster, model), Cohort.everyone(roster, model, 0))
    request = Request("train", "north", "run", 0, cohort=3, job=work, body=encode(down.one(0)))
    assert "this silo has no key for it" in grouped(tmp_path).sides["north"].answer(request).refusal


def test_the_same_round_asked_with_another_model_has_another_mask(tmp_path: Path) -> None:
    """A server that asks twice would see the difference of two models, were they under one mask."""
    loop = grouped(tmp_path)
    work = job("fedavg", blind={})
    made, model, roster = work.built()
    everyone = Cohort.everyone(roster, model, 0)
    server = made.open(roster, model)
    first = made.send(server, everyone)
    other = made.send(server.replace(cipher=server.cipher + 1000), everyone)
    found = []
    for attempt, down in enumerate((first, other, first)):
        request = Request("train", "north", "run", 0, attempt, cohort=3, job=work, body=encode(down.one(0)))
        answer = loop.sides["north"].answer(request)
        found.append(decode(made.up, answer.body, model.dtype, rows=1, **made.axes(roster, model)))
    one, two, again = found
    assert not (one.nonce == two.nonce).all() and (one.nonce == again.nonce).all()
    assert (one.w == again.w).all()
    assert (one.w - two.w).double().abs().median() > 2.0**55


def first_round(loop: Loop, work: Job, kind: Any = "train") -> Answer:
    made, model, roster = work.built()
    down = made.send(made.open(roster, model), Cohort.everyone(roster, model, 0))
    body, splits = encode(down.one(0)), ("test",) if kind == "measure" else ()
    return loop.sides["north"].answer(Request(kind, "north", "run", 0, cohort=3, job=work, body=body, splits=splits))


@pytest.mark.parametrize("level", ["blind", "secagg"])
@pytest.mark.parametrize("kind", ["train", "measure"])
def test_a_run_whose_models_are_hidden_is_of_one_job(level: str, kind: str, tmp_path: Path) -> None:
    """Asked for the sketches of many starts, each by a seed, a silo would give away the matrix that they hide under."""
    loop, work = grouped(tmp_path), job("fedavg" if level == "secagg" else "fedamp", **{level: {}})
    for name in NAMES:
        make_key(tmp_path / name / "key", name)
    meet(tmp_path / "north", [tmp_path / name / "key.pub" for name in NAMES])
    assert first_round(loop, work).refusal == ""
    refused = first_round(loop, replace(work, seed=2), kind).refusal
    assert refused == "this run hides models, and this silo takes part in it for another job; start a new run"
    assert first_round(loop, work, "measure").refusal == ""


def test_of_a_newcomer_who_was_refused_nothing_is_kept(tmp_path: Path) -> None:
    """Ever new names would fill a disk: that its run is of one job was noted outside the newcomer's own folder."""
    side = grouped(tmp_path).sides["north"]
    request = Request("adapt", "north", "run", 0, newcomer=True, job=job("fedavg", blind={}), body=b"rubbish")
    for run in ("one", "two"):
        assert "arrived damaged" in side.answer(replace(request, run=run)).refusal
    assert not [path.name for path in (side.folder / "state").iterdir() if path.is_dir()]


def test_sketches_of_two_jobs_have_nothing_in_common(tmp_path: Path) -> None:
    work = job("fedamp", blind={})
    made, model, roster = work.built()
    found = []
    for folder, each in (("one", work), ("again", work), ("other", replace(work, study="other"))):
        answer = first_round(grouped(tmp_path / folder), each)
        found.append(decode(made.up, answer.body, model.dtype, rows=1, **made.axes(roster, model)).start_sketch)
    one, again, other = found
    assert (one == again).all() and not (one == other).any()
