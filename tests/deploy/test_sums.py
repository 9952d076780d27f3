"""Sums between deployed silos: by their own keys, whoever drops out, and for one set of uploads in a round."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from command import call
from loop import NAMES, TRAINING, Loop, job, settle
from test_drive import TABLE, Breaking, Broken, by_silo, federated
from test_remote import deployed, simulated, values

pytest.importorskip("cryptography")
from coterie.codec import decode, encode
from coterie.deploy.certificates import make_key
from coterie.deploy.group import FILE as GROUP
from coterie.deploy.group import make_group, meet, pair_of
from coterie.deploy.messages import Answer, Job, Request
from coterie.deploy.policy import FILE as POLICY
from coterie.deploy.policy import policy_text
from coterie.deploy.remote import Remote, largest_upload
from coterie.engine.method import Cohort
from coterie.errors import BadInput
from coterie.methods.wrappers.secagg import Question, Revealed
from coterie.wire import Down, stack


def met(folder: Path) -> Loop:
    """Three silos that know each other's keys."""
    sides = settle(folder)
    for each in sides.values():
        make_key(each.folder / "key", each.name)
    for each in sides.values():
        meet(each.folder, [other.folder / "key.pub" for other in sides.values() if other is not each])
    return Loop(sides)


def test_two_silos_share_what_a_third_does_not_know(tmp_path: Path) -> None:
    met(tmp_path)
    north, south, east = (pair_of(tmp_path / name, name, "run") for name in NAMES)
    assert north("south") == south("north") != north("east") == east("north")
    assert north("south") != pair_of(tmp_path / "north", "north", "another")("south")
    with pytest.raises(BadInput, match="whose key this silo lacks"):
        north("west")


@pytest.mark.parametrize("name", ["../operators/alice", "..", "a/b", "", "South"])
def test_a_members_name_is_no_path(name: str, tmp_path: Path) -> None:
    """Whoever else has a key in a silo's folder, an operator say, is no member that it shares secrets with."""
    met(tmp_path)
    (tmp_path / "north" / "operators").mkdir()
    make_key(tmp_path / "north" / "operators" / "alice", "alice")
    with pytest.raises(BadInput, match="silo name"):
        pair_of(tmp_path / "north", "north", "run")(name)
    key = " ".join((tmp_path / "south" / "key.pub").read_text().split()[:2])
    (tmp_path / "Sent.pub").write_text(f"{key} {name}\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for take in (meet, make_group):
        with pytest.raises(BadInput, match="silo name"):
            take(tmp_path / "north", [tmp_path / "Sent.pub"])
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_key_that_is_known_is_not_replaced_by_another(tmp_path: Path) -> None:
    met(tmp_path)
    known = tmp_path / "north" / "peers" / "south.pub"
    before = known.read_text()
    other = " ".join((tmp_path / "east" / "key.pub").read_text().split()[:2])
    (tmp_path / "sent.pub").write_text(f"{other} south\n")
    with pytest.raises(BadInput, match=r"another key of 'south'.*remove"):
        meet(tmp_path / "north", [tmp_path / "sent.pub"])
    assert known.read_text() == before
    kind, itself, _ = before.split()
    (tmp_path / "again.pub").write_text(f"{kind} {itself} south more\n")
    assert [*meet(tmp_path / "north", [tmp_path / "again.pub"])] == ["south"]


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        make_key(tmp_path / name / "key", name)
    assert call("silo", "meet", tmp_path / "north", tmp_path / "south" / "key.pub") == 0
    assert "south: SHA256:" in capfd.readouterr().out
    assert call("silo", "meet", tmp_path / "north") == 2


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedem"])
def test_deployed_silos_end_as_those_of_a_plain_simulation(method: str, tmp_path: Path) -> None:
    found = deployed(tmp_path, method, loop=met(tmp_path), secagg={})
    assert not found.rejected and not found.missing
    pd.testing.assert_series_equal(values(found), values(simulated(method)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["train", "confirm"])
@pytest.mark.parametrize("how", ["deaf", "mute"])
def test_a_silo_that_drops_out_before_or_between_or_after_is_ordinary(kind: str, how: str, tmp_path: Path) -> None:
    """A silo whose upload came counts, whether or not it answers afterwards."""
    secure, plain = met(tmp_path / "secure"), Loop(settle(tmp_path / "plain"))
    for loop in (secure, plain):
        missing = kind if loop is secure else "train"
        if loop is secure or kind == "train":
            gone = lambda r, its=missing: r.kind == its and r.silo == "south" and r.round == 1  # noqa: E731
            setattr(loop, how, gone)
    found = [
        values(deployed(tmp_path, "fedavg", loop=secure, secagg={})),
        values(deployed(tmp_path, "fedavg", loop=plain)),
    ]
    pd.testing.assert_series_equal(*found, atol=1e-4, rtol=0)


def test_a_void_round_rolls_back_and_the_next_goes_on(tmp_path: Path) -> None:
    loop = met(tmp_path)
    loop.deaf = lambda r: r.kind == "confirm" and r.silo != "north" and r.round == 1
    found = deployed(tmp_path, "fedavg-local", TRAINING, loop=loop, secagg={})
    assert {(each["round"], each["reason"]) for each in found.rejected} == {
        (2, "1 of 3 silos are left, and a sum needs 2: void")
    }
    assert found.measured[-1] == 3 and len(found.rejected) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("method", "level"), [("fedavg", "secagg"), ("fedamp", "blind")])
def test_a_coordinator_that_restarts_after_any_exchange_ends_the_same(method: str, level: str, tmp_path: Path) -> None:
    """Asked again for the same, silos send the same bits, and reveal for the same set."""
    table, found = TABLE | {"methods": {method: {}}, "secure": {"level": level}}, []
    for name in ("whole", "broken"):
        loop = met(tmp_path / name)
        for each in loop.sides.values():
            (each.folder / GROUP).write_text("11" * 32)
        broken, after = name == "broken", 0
        while broken:
            try:
                federated(tmp_path / name / "run", Breaking(loop, after), table).run("coterie federation run")
                broken = False
            except Broken:
                after += 1
        found.append(by_silo(federated(tmp_path / name / "run", loop, table).run("coterie federation run").results))
        assert name == "whole" or after > 3
    pd.testing.assert_series_equal(*found, atol=1e-6, rtol=0)


def test_a_silo_reveals_for_one_set_of_uploads_in_a_round_alone(tmp_path: Path) -> None:
    loop, work = met(tmp_path), job("fedavg", secagg={})
    made, model, roster = work.built()
    engine, everyone = Remote("run", work, made, model, loop), Cohort.everyone(roster, model, 0)
    up = engine.train(everyone, made.send(made.open(roster, model), everyone)).up

    def asked(places: list[int]) -> str:
        cohort = replace(everyone, ids=everyone.ids[places])
        question = made.confirm(everyone, cohort, up.take(cohort.ids))
        assert isinstance(question, Question)
        body = encode(question.one(0))
        return loop.sides["north"].answer(Request("confirm", "north", "run", 0, cohort=3, job=work, body=body)).refusal

    assert asked([0, 1, 2]) == ""
    assert asked([0, 1, 2]) == ""
    assert "not again" in asked([0, 1])
    assert "not again" in asked([0, 2])


def test_a_newcomer_takes_no_part_in_sums(tmp_path: Path) -> None:
    """Its vault is another one: a second set of uploads of the last round would be answered there."""
    loop, work = met(tmp_path), job("fedavg", replace(TRAINING, rounds=1), secagg={})
    made, model, roster = work.built()
    engine, everyone = Remote("run", work, made, model, loop), Cohort.everyone(roster, model, 0)
    down = made.send(made.open(roster, model), everyone)
    up = engine.train(everyone, down).up
    asked = {"confirm": made.confirm(everyone, everyone, up), "train": down}
    for kind, record in asked.items():
        given = Request(kind, "north", "run", 0, newcomer=True, cohort=3, job=work, body=encode(record.one(0)))
        assert f"{kind}: not of a newcomer" in loop.sides["north"].answer(given).refusal


def test_the_smallest_cohort_is_counted_where_a_silo_can(tmp_path: Path) -> None:
    loop, work = met(tmp_path), job("fedavg", secagg={"threshold": 0.6})
    policy = tmp_path / "north" / POLICY
    made, model, roster = work.built()
    engine, everyone = Remote("run", work, made, model, loop), Cohort.everyone(roster, model, 0)
    down = made.send(made.open(roster, model), everyone)
    up = engine.train(everyone, down).up
    two = replace(everyone, ids=everyone.ids[:2])
    asked = {"confirm": made.confirm(everyone, two, up.take(two.ids)), "train": down}
    for kind, smallest, seen in (("confirm", 3, 2), ("train", 4, 3)):
        policy.write_text(policy_text("all").replace("smallest_cohort = 2", f"smallest_cohort = {smallest}"))
        given = Request(kind, "north", "other", 0, cohort=10, job=work, body=encode(asked[kind].one(0)))
        why = f"a sum of {seen} silos; at least {smallest} must be in it"
        assert loop.sides["north"].answer(given).refusal == why


def test_no_search_is_summed(tmp_path: Path) -> None:
    loop, work = met(tmp_path), replace(job("fedavg", secagg={}), tuning=2, rates=(1.0, 2.0), going=(0, 1))
    made, model, roster = work.built()
    down = made.send(made.open(roster, model), Cohort.everyone(roster, model, 0))
    given = Request("train", "north", "run", 0, cohort=3, job=work, body=encode(down.one(0)))
    assert "a search with secagg" in loop.sides["north"].answer(given).refusal


def trained(loop: Loop, name: str, work: Job, down: Down, run: str = "run") -> Answer:
    """What a silo answers when it is asked to train so."""
    return loop.sides[name].answer(Request("train", name, run, 0, cohort=3, job=work, body=encode(down)))


def test_every_silo_is_sent_the_silos_of_a_round_in_the_same_order(tmp_path: Path) -> None:
    """Told two orders, silos would open under one question masks of pairs that both count."""
    loop, work = met(tmp_path), job("fedavg", secagg={})
    made, model, roster = work.built()
    down = made.send(made.open(roster, model), Cohort.everyone(roster, model, 0))
    assert trained(loop, "north", work, down).refusal == ""
    assert "in the roster's order" in trained(loop, "south", work, down.replace(peers=torch.tensor([1, 2, 0]))).refusal


@pytest.mark.parametrize("what", ["nothing", "lr", "epochs", "model"])
def test_masks_cancel_between_silos_that_were_asked_the_same_alone(what: str, tmp_path: Path) -> None:
    """Were all others to train at a rate of almost 0, the sum less what is known of them would be one silo's model."""
    loop, work = met(tmp_path), job("fedavg", secagg={})
    made, model, roster = work.built()
    everyone = Cohort.everyone(roster, model, 0)
    down = made.send(made.open(roster, model), everyone)
    changes = {"lr": {"lr": 1e-30}, "epochs": {"local_epochs": 3}}
    other = replace(work, train=work.train | changes.get(what, {}))
    moved = down.replace(w=down.w + 1) if what == "model" else down
    asked = {"north": (work, down), "south": (other, moved), "east": (other, moved)}
    up = stack([decode(made.up, trained(loop, name, *each).body, model.dtype, rows=1) for name, each in asked.items()])
    question = made.confirm(everyone, everyone, up)
    revealed = []
    for place, (name, (its, _)) in enumerate(asked.items()):
        body = encode(question.one(place))
        answer = loop.sides[name].answer(Request("confirm", name, "run", 0, cohort=3, job=its, body=body))
        revealed.append(decode(Revealed, answer.body, rows=1))
    if what == "nothing":
        assert made.summed(everyone, everyone, up, everyone, stack(revealed)).w.isfinite().all()
    else:
        with pytest.raises(BadInput, match="missing or wrong: void"):
            made.summed(everyone, everyone, up, everyone, stack(revealed))


def test_nothing_is_revealed_of_a_round_that_was_not_trained(tmp_path: Path) -> None:
    loop, work = met(tmp_path), job("fedavg", secagg={})
    made, model, roster = work.built()
    everyone = Cohort.everyone(roster, model, 0)
    down = made.send(made.open(roster, model), everyone)
    up = stack([decode(made.up, trained(loop, name, work, down).body, model.dtype, rows=1) for name in NAMES])
    body = encode(made.confirm(everyone, everyone, up).one(0))
    asked = Request("confirm", "north", "run", 1, cohort=3, job=work, body=body)
    assert "has sent no upload" in loop.sides["north"].answer(asked).refusal


def test_what_is_no_question_is_refused_and_a_silo_without_keys_too(tmp_path: Path) -> None:
    loop, work = met(tmp_path), job("fedavg", secagg={})
    broken = Request("confirm", "north", "run", 0, cohort=3, job=work, body=b"no question")
    assert "damaged" in loop.sides["north"].answer(broken).refusal
    (tmp_path / "north" / "peers" / "south.pub").unlink()
    made, model, roster = work.built()
    down = made.send(made.open(roster, model), Cohort.everyone(roster, model, 0))
    request = Request("train", "north", "run", 0, cohort=3, job=work, body=encode(down.one(0)))
    assert "whose key this silo lacks" in loop.sides["north"].answer(request).refusal
    with pytest.raises(BadInput):
        decode(Question, b"", rows=1)


@pytest.mark.parametrize(("method", "level"), [("fedavg", "secagg"), ("fedem", "blind"), ("fedamp", "blind")])
def test_a_flood_is_still_told_from_an_upload(method: str, level: str) -> None:
    made, model, roster = job(method, **{level: {}}).built()
    assert largest_upload(made, made.axes(roster, model)) < 1 << 25
