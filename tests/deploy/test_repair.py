"""What is damaged in a silo's folder is found and mended; what has left is never counted as less."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command import call
from loop import Loop, settle
from test_drive import TABLE, federated

from coterie.deploy.budget import Budget, Spent
from coterie.deploy.ledger import FILE, HEAD, Ledger
from coterie.deploy.policy import Policy
from coterie.deploy.repair import repair
from coterie.deploy.silo import SiloSide
from coterie.deploy.vault import COMMITTED, TENTATIVE
from coterie.errors import BadInput

ONE = TABLE | {"methods": {"scaffold": {}}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SiloSide:
    """A silo that has trained."""
    folder = tmp_path_factory.mktemp("repair")
    loop = Loop(settle(folder))
    federated(folder / "run", loop, ONE).run("")
    side = loop.sides["north"]
    (side.folder / "settings.json").write_text('{"name": "north", "host": "localhost", "port": 9443}')
    return side


@pytest.fixture
def north(trained: SiloSide, tmp_path: Path) -> SiloSide:
    """Such a silo, to be damaged."""
    folder = shutil.copytree(trained.folder, tmp_path / "north")
    return SiloSide("north", folder, trained.source, "cpu")


def lines(side: SiloSide) -> list[bytes]:
    return (side.folder / FILE).read_bytes().splitlines(keepends=True)


def test_of_a_whole_folder_nothing_is_mended(north: SiloSide, capfd: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in north.folder.rglob("*") if path.is_file()}
    assert repair(north.folder) == ([], [])
    assert before == {path: path.read_bytes() for path in north.folder.rglob("*") if path.is_file()}
    assert call("silo", "repair", north.folder) == 0 and capfd.readouterr().out == "nothing is damaged\n"


def test_half_a_line_is_cut_and_a_lost_head_is_written_anew(north: SiloSide) -> None:
    entries = Ledger(north.folder).entries()
    with (north.folder / FILE).open("ab") as file:
        file.write(b'{"time": "20')
    (north.folder / HEAD).unlink()
    done, left = repair(north.folder)
    assert [line.partition(":")[0] for line in done] == [FILE, HEAD] and left == []
    assert "lines may be missing at its end" in done[1]
    assert Ledger(north.folder).entries() == entries


@pytest.mark.parametrize("damage", ["changed", "cut", "garbage"])
def test_a_ledger_that_was_altered_is_set_aside_and_the_budget_stays(damage: str, north: SiloSide) -> None:
    spent, whole = Budget(north.folder, Policy()).spent(), lines(north)
    changed = whole[0].replace(b'"round": 0', b'"round": 1')
    other = {"changed": [changed, *whole[1:]], "cut": whole[:-1], "garbage": [b"\xff\n", *whole[1:]]}[damage]
    (north.folder / FILE).write_bytes(b"".join(other))
    with pytest.raises(BadInput):
        Ledger(north.folder).entries()
    (line,), _ = repair(north.folder)
    assert "set aside as ledger.jsonl.damaged-" in line
    (aside,) = north.folder.glob("ledger.jsonl.damaged-*")
    assert aside.read_bytes() == b"".join(other)
    assert Ledger(north.folder).entries() == [] and Budget(north.folder, Policy()).spent() == spent


def known_of(spent: Spent) -> Spent:
    """What the ledger knows of it: not that a study was proposed, of which nothing leaves."""
    return replace(spent, answers=spent.answers - 1)


@pytest.mark.parametrize("content", [None, b"", b'{"answers": -1}', b"\xff"])
def test_a_lost_count_is_taken_from_the_ledger_and_uploads_count_as_without_noise(
    content: bytes | None, north: SiloSide
) -> None:
    path = north.folder / "spent.json"
    before = Budget(north.folder, Policy()).spent()
    path.unlink() if content is None else path.write_bytes(content)
    (line,), _ = repair(north.folder)
    after = Budget(north.folder, Policy()).spent()
    assert line.startswith("spent.json: ") and "put the newest copy there" in line
    assert after == known_of(before) and after.bare == 3  # three rounds of scaffold, without noise
    assert after.epsilon(1e-5) == float("inf")


def test_a_lost_count_is_taken_from_a_damaged_ledger_too(north: SiloSide) -> None:
    before = Budget(north.folder, Policy()).spent()
    (north.folder / "spent.json").unlink()
    (north.folder / FILE).write_bytes(b"\xff\n" + b"".join(lines(north)))
    done, _ = repair(north.folder)
    assert len(done) == 2 and Budget(north.folder, Policy()).spent() == known_of(before)


def test_a_run_goes_on_after_its_state_was_damaged(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    loop.deaf = lambda r: r.round == 2
    federated(tmp_path / "run", loop, ONE).run("")
    side = loop.sides["north"]
    (state,) = (path.parent for path in side.folder.glob(f"state/*/{COMMITTED}"))
    for name in (COMMITTED, TENTATIVE):
        (state / name).write_bytes(b"half")
    done, _ = repair(side.folder)
    assert len(done) == 3 and "goes on in that run" in done[1]
    asked = next(r for r in loop.asked if r.kind == "train" and r.round == 2 and r.silo == "north")
    assert side.answer(asked).body


def test_what_only_the_owner_can_mend_is_named(north: SiloSide, capfd: pytest.CaptureFixture[str]) -> None:
    (north.folder / "silo.toml").write_text("rounds = ")
    (north.folder / "ca.crt").touch()
    assert call("silo", "repair", north.folder) == 1
    told = capfd.readouterr().out
    assert "for you to mend: " in told and "not valid TOML" in told and "`coterie silo rotate`" in told


def test_a_secret_that_is_half_there_is_made_anew(north: SiloSide) -> None:
    (north.folder / "state" / "secret").write_text("abc")
    (line,), _ = repair(north.folder)
    assert line.startswith("state/secret: damaged") and len(north._secret()) == 64
    assert json.loads((north.folder / "settings.json").read_text())["name"] == "north"


@pytest.mark.parametrize("words", [["ledger"], ["health"], ["rejoin", "run-1"], ["repair"], ["meet", "south.pub"]])
def test_a_folder_that_is_no_silos_is_refused_and_left_as_it_is(words, tmp_path, capsys):
    (tmp_path / "notes.txt").touch()
    assert call("silo", words[0], tmp_path, *words[1:]) == 2
    assert "is no silo's folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_action_that_is_unknown_is_answered_with_all_of_them(capsys):
    assert call("silo", "inti", "x") == 2
    said = capsys.readouterr().err
    assert "did you mean 'init'" in said and said.count("\n") == 1
