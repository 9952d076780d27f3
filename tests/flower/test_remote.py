"""Silos behind a transport do what rows of a simulation do."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from loop import NAMES, TRAINING, Loop, job, settle, silos

from coterie.data.silo import Silo
from coterie.engine.flower.ledger import Ledger
from coterie.engine.flower.messages import Request
from coterie.engine.flower.remote import Remote, declarations
from coterie.engine.rounds import Outcome, run_rounds
from coterie.engine.simulate import Simulator
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.model_file import load_model

EVERY = sorted(METHODS)


def simulated(method: str, training=TRAINING, **options: object) -> Outcome:
    made, model, roster = job(method, training, **options).built()
    engine = Simulator(made, silos(), model, training, seed=1, rows=1)
    return run_rounds(made, engine, roster, model, training)


def deployed(folder: Path, method: str, training=TRAINING, loop: Loop | None = None, **options: object) -> Outcome:
    work = job(method, training, **options)
    made, model, roster = work.built()
    loop = loop or Loop(settle(folder))
    return run_rounds(made, Remote("run", work, made, model, loop), roster, model, training)


def values(outcome: Outcome) -> pd.DataFrame:
    table = pd.concat(outcome.results)
    return table.set_index(["round", "silo", "split", "measure"])["value"].sort_index()


@pytest.mark.parametrize("method", EVERY)
def test_every_method_gives_each_silo_what_a_simulation_gives_it(method: str, tmp_path: Path) -> None:
    options: Mapping[str, object] = {}
    try:
        expected = values(simulated(method, **options))
    except BadInput as error:  # a method that refuses this federation refuses it in a simulation too
        pytest.skip(str(error))
    found = values(deployed(tmp_path, method, **options))
    pd.testing.assert_series_equal(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", ["scaffold", "fedem", "apple"])
def test_an_answer_that_is_lost_is_asked_for_again_and_changes_nothing(method: str, tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    loop.mute = lambda r: r.kind == "train" and r.silo == "south" and r.round == 1 and r.attempt == 0
    found = values(deployed(tmp_path, method, loop=loop))
    pd.testing.assert_series_equal(found, values(simulated(method)), atol=1e-4, rtol=0)
    attempts = [r.attempt for r in loop.asked if r.silo == "south" and r.round == 1 and r.kind == "train"]
    assert attempts == [0, 1]


@pytest.mark.parametrize("method", ["scaffold", "fedem", "apple", "fedamp"])
def test_a_reply_the_server_never_got_is_rolled_back(method: str, tmp_path: Path) -> None:
    """A silo whose round is lost for good is as if it had not been asked: its private state did not move."""
    muted, absent = Loop(settle(tmp_path / "muted")), Loop(settle(tmp_path / "absent"))
    lost = lambda r: r.kind == "train" and r.silo == "east" and r.round == 1  # noqa: E731
    muted.mute, absent.deaf = lost, lost
    first, second = (deployed(tmp_path, method, loop=loop) for loop in (muted, absent))
    pd.testing.assert_series_equal(values(first), values(second), atol=1e-12, rtol=0)
    assert first.missing == second.missing == 1


def test_the_same_request_gets_the_same_bytes_and_one_line_in_the_ledger(tmp_path: Path) -> None:
    side = settle(tmp_path)["north"]
    ask = Request("declare", "north", "run", 0)
    first, second = side.answer(ask), side.answer(ask)
    assert first == second
    assert len(Ledger(side.folder).entries()) == 4  # the four fields of a declaration


def test_a_silo_that_lost_its_state_says_so_and_the_round_goes_on(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    work = job("scaffold")
    made, model, roster = work.built()
    engine = Remote("run", work, made, model, loop, received={"north": 1})
    outcome = run_rounds(made, engine, roster, model, TRAINING)
    assert outcome.missing == 3
    assert "restore its folder" in engine.last["north"]
    assert set(outcome.results[-1]["silo"]) == {"south", "east"}


def test_personal_models_end_on_the_silos_own_disks(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    outcome = deployed(tmp_path, "fedamp", loop=loop)
    assert outcome.models is None
    for name in NAMES:
        kept = load_model(tmp_path / name / "models" / "run" / f"{name}.safetensors")
        assert kept.silo == name and len(kept.predict(np.zeros((2, 5), np.float32))) == 2


@pytest.mark.parametrize("method", ["fedavg", "fedamp", "apple", "fedem", "scaffold"])
def test_a_newcomer_is_served_as_in_a_simulation(method: str, tmp_path: Path) -> None:
    guest = replace(silos()[0], name="west")
    loop = Loop(settle(tmp_path, [guest]))
    work = job(method)
    made, model, roster = work.built()
    remote = Remote("run", work, made, model, loop)
    outcome = run_rounds(made, remote, roster, model, TRAINING)
    declared, _ = declarations(loop, "run", ["west"], 1)
    found = remote.welcome("west", declared["west"], outcome.server, ("test",))
    late = Simulator(made, [Silo(guest.name, guest.train, guest.validation, guest.test)], model, TRAINING, 1)
    expected = late.arrivals(outcome.server)
    loss = expected[(expected["split"] == "test") & (expected["measure"] == "loss_unseen")]["value"]
    assert found is not None
    np.testing.assert_allclose(found.values["test", "loss"], loss, atol=1e-4)
    assert (tmp_path / "west" / "models" / "run.guest" / "west.safetensors").exists()
