"""Who started which run: signed by the operator, verified by every silo that trusts some, and in its ledger."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command import call
from loop import Loop, settle
from test_drive import TABLE, federated

pytest.importorskip("cryptography")
from coterie.deploy import operators, parties
from coterie.deploy.ledger import Ledger
from coterie.deploy.messages import Request, request
from coterie.deploy.operators import FOLDER, Signed, signed
from coterie.errors import BadInput

QUICK = TABLE | {"methods": {"fedavg": {}}}


@pytest.fixture
def alice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An operator's key."""
    monkeypatch.setattr("typer.prompt", lambda *given, **named: "")
    assert call("federation", "operator", tmp_path / "alice") == 0
    return tmp_path / "alice"


def no_password() -> str:
    raise AssertionError("it has none")


def test_who_started_a_run_is_in_the_ledger_of_every_silo_that_trusts_them(
    alice: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sides = settle(tmp_path)
    for side in sides.values():
        assert call("silo", "trust", side.folder, f"{alice}.pub") == 0
    made, *shown = [line for line in capfd.readouterr().out.splitlines() if "SHA256:" in line]
    assert len({line.split("SHA256:")[1] for line in [made, *shown]}) == 1
    run = federated(tmp_path / "run", Loop(sides), QUICK)
    run.transport = Signed(run.transport, signed(alice, "run", "0" * 64, no_password))
    run.run("")
    for side in sides.values():
        entries = Ledger(side.folder).entries()
        assert {entry["operator"] for entry in entries} == {"alice"} and {"declare", "train"} <= {
            entry["kind"] for entry in entries
        }
    assert call("silo", "ledger", sides["north"].folder) == 0
    assert "alice" in capfd.readouterr().out


def test_a_run_that_no_trusted_operator_has_signed_learns_nothing(alice: Path, tmp_path: Path) -> None:
    sides = settle(tmp_path)
    for side in sides.values():
        call("silo", "trust", side.folder, f"{alice}.pub")
    with pytest.raises(BadInput, match=r"no silo takes part .*that an operator has signed whom it trusts; this one is"):
        federated(tmp_path / "run", Loop(sides), QUICK).run("")
    assert all(Ledger(side.folder).entries() == [] for side in sides.values())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"operator": "bob"}, "an operator has signed whom it trusts"),
        ({"operator": "../alice"}, "an operator has signed whom it trusts"),
        ({"run": "other"}, "what alice has signed is another run"),
        ({"study": "1" * 64}, "the signature of alice is wrong"),
        ({"signature": "AAAA"}, "the signature of alice is wrong"),
        ({"signature": "%"}, "the signature of alice is wrong"),
    ],
)
def test_a_signature_counts_for_that_run_and_study_alone(
    change: dict[str, str], reason: str, alice: Path, tmp_path: Path
) -> None:
    side = settle(tmp_path)["north"]
    call("silo", "trust", side.folder, f"{alice}.pub")
    about = signed(alice, "run", "0" * 64, no_password) | change
    asked = replace(Request("declare", "north", "run", 0), operator=about)
    answer = side.answer(request(asked.head(), b""))
    assert reason in answer.refusal and bool(answer.body) == (not reason)
    if not reason:
        short = {key: value for key, value in about.items() if key == "operator"} | {"run": "run"}
        assert "wrong" in side.answer(replace(asked, operator=short, attempt=1)).refusal


@pytest.mark.parametrize(("seconds", "refused"), [(400, True), (200, False), (-9e6, False)])
def test_a_run_that_was_signed_in_the_future_is_refused_by_its_clock(
    seconds: float, refused: bool, alice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + timedelta(seconds=seconds)

    side = settle(tmp_path)["north"]
    call("silo", "trust", side.folder, f"{alice}.pub")
    with monkeypatch.context() as patch:
        patch.setattr(operators, "datetime", Other)
        about = signed(alice, "run", "0" * 64, no_password)
    answer = side.answer(replace(Request("declare", "north", "run", 0), operator=about))
    assert ("in the future; set both clocks by NTP" in answer.refusal) == refused == (not answer.body)


def test_another_key_under_a_trusted_name_does_not_count(alice: Path, tmp_path: Path) -> None:
    side = settle(tmp_path)["north"]
    call("silo", "trust", side.folder, f"{alice}.pub")
    (tmp_path / "elsewhere").mkdir()
    call("federation", "operator", tmp_path / "elsewhere" / "alice")
    about = signed(tmp_path / "elsewhere" / "alice", "run", "0" * 64, no_password)
    answer = side.answer(replace(Request("declare", "north", "run", 0), operator=about))
    assert answer.refusal == "the signature of alice is wrong"


def test_a_key_with_a_password_is_asked_for_it(tmp_path: Path) -> None:
    parties.make_operator(tmp_path / "bob", "secret")
    assert (tmp_path / "bob").stat().st_mode & 0o077 == 0
    assert signed(tmp_path / "bob", "run", "0" * 64, lambda: "secret")["operator"] == "bob"
    for password in ("wrong", ""):
        with pytest.raises(BadInput, match=r"--operator .*bob: "):
            signed(tmp_path / "bob", "run", "0" * 64, lambda given=password: given)


def test_ledgers_with_and_without_operators_are_one_chain(alice: Path, tmp_path: Path) -> None:
    side = settle(tmp_path)["north"]
    side.answer(Request("declare", "north", "run", 0))
    call("silo", "trust", side.folder, f"{alice}.pub")
    about = signed(alice, "run", "0" * 64, no_password)
    side.answer(replace(Request("declare", "north", "run-1", 0), operator=about))
    (side.folder / FOLDER / "alice.pub").unlink()
    side.answer(replace(Request("declare", "north", "run-2", 0), operator=about))
    named = [entry.get("operator") for entry in Ledger(side.folder).entries()]
    assert set(named) == {None, "alice"}
