"""One file holds a party's folder; what comes back is what was there, and a run goes on from it."""

import json
import shutil
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
from command import call
from loop import Loop, settle
from test_drive import QUICK, TABLE, Breaking, Broken

from coterie.deploy import backup, parties
from coterie.deploy.backup import back_up, restore
from coterie.deploy.drive import RemoteRun, study_of
from coterie.errors import BadInput
from coterie.lock import locked


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "WORK", 2)


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    parties.new_federation(tmp_path / "fed", ["north"], "fl.example.org", 9443, None)
    made = {
        "coordinator/state/superlink.db": "x",
        "coordinator/logs/superlink.log": "x",
        "silos/north/data.npz": "rows",
    }
    made |= {"silos/north/state/data.safetensors": "rows", "silos/north/state/run/committed.safetensors": "private"}
    made |= {"silos/north/spent.json": "{}", "silos/north/state/secret": "s3", "coordinator/runs/a/asked.json": "{}"}
    for name, text in made.items():
        path = tmp_path / "fed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "fed"


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_without_a_passphrase_no_key_is_in_the_file_and_those_that_are_missing_are_named(
    fed: Path, tmp_path: Path
) -> None:
    file = tmp_path / "backup.zip"
    secrets = {name: (fed / "coordinator" / name).read_bytes() for name in ("ca.key", "server.key")}
    assert back_up(fed / "coordinator", file) == ["ca.key", "server.key"]
    assert not [key for key in secrets.values() if key in file.read_bytes()]
    assert restore(file, tmp_path / "again", "coordinator", lambda: "")[1] == ["ca.key", "server.key"]
    found, before = contents(tmp_path / "again"), contents(fed / "coordinator")
    assert found == {name: before[name] for name in found}
    assert set(before) - set(found) == {*secrets, "state/superlink.db", "logs/superlink.log"}


def test_with_a_passphrase_the_keys_come_back_for_who_knows_it(fed: Path, tmp_path: Path) -> None:
    file, north = tmp_path / "backup.zip", fed / "silos" / "north"
    (north / "group.key").write_text("ab" * 32)
    (north / "state" / "secret.damaged-1").write_text("half of a secret")
    assert set(back_up(north, tmp_path / "bare.zip")) == {"key", "group.key", "state/secret"}
    assert b"ab" * 32 not in (tmp_path / "bare.zip").read_bytes()
    assert b"half of a secret" not in (tmp_path / "bare.zip").read_bytes()
    assert back_up(north, file, lambda: "correct horse") == []
    assert (north / "key").read_bytes() not in file.read_bytes()
    with pytest.raises(BadInput, match="its keys have another passphrase"):
        restore(file, tmp_path / "no", "silo", lambda: "wrong")
    assert not (tmp_path / "no").exists()
    assert restore(file, tmp_path / "north", "silo", lambda: "correct horse")[1] == []
    before, found = contents(north), contents(tmp_path / "north")
    assert set(before) - set(found) == {"data.npz", "state/data.safetensors", "state/secret.damaged-1"}  # no rows
    assert found == {name: before[name] for name in found}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "north").rglob("*"))


@pytest.mark.parametrize("data", ["rows/patients.csv", "rows"])
def test_no_backup_holds_rows_wherever_in_the_folder_they_lie_nor_a_log_that_quotes_them(
    data: str, fed: Path, tmp_path: Path
) -> None:
    north, file = fed / "silos" / "north", tmp_path / "backup.zip"
    (north / "rows").mkdir()
    (north / "rows" / "patients.csv").write_text("id,age\np1,987654321")
    (north / "events.log").write_text("'age': far from the others: 987654321 in row 1\n")
    (north / "state" / "source.json").write_text(json.dumps({"path": str(north / data), "device": "cpu"}))
    back_up(north, file)
    restore(file, tmp_path / "again", "silo", lambda: "")
    assert "rows/patients.csv" not in contents(tmp_path / "again") and "events.log" not in contents(tmp_path / "again")
    assert b"987654321" not in b"".join(zipfile.ZipFile(file).read(name) for name in zipfile.ZipFile(file).namelist())


def test_a_file_that_was_altered_is_refused_and_nothing_is_left(fed: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "backup.zip", tmp_path / "other.zip"
    back_up(fed / "coordinator", file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"changed" if name == "files/settings.json" else old.read(name))
    with pytest.raises(BadInput, match=r"settings.json is not what was backed up"):
        restore(other, tmp_path / "again", "coordinator", lambda: "")
    cut = tmp_path / "cut.zip"
    cut.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(BadInput, match="no backup, or damaged"):
        restore(cut, tmp_path / "again", "coordinator", lambda: "")
    assert not (tmp_path / "again").exists()


def test_under_a_passphrase_nobody_else_can_change_what_comes_back(fed: Path, tmp_path: Path) -> None:
    """Whoever can write to the file can write hashes, too; here a policy that approves everything."""
    file, other = tmp_path / "backup.zip", tmp_path / "other.zip"
    back_up(fed / "silos" / "north", file, lambda: "correct horse")
    lax = b'approve = "all"'
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(other, "w") as new:
        about = json.loads(old.read("backup.json"))
        about["files"]["silo.toml"] = sha256(lax).hexdigest()
        changed = {"backup.json": json.dumps(about, indent=1).encode(), "files/silo.toml": lax}
        for name in old.namelist():
            new.writestr(name, changed.get(name, old.read(name)))
    with pytest.raises(BadInput, match="its files were changed by somebody"):
        restore(other, tmp_path / "again", "silo", lambda: "correct horse")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a//b", ""])
def test_no_name_in_it_leads_out_of_the_folder(name: str, fed: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.zip"
    about = {"format": 1, "party": "coordinator", "files": {name: "0"}, "time": "", "keys": [], "coterie": ""}
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("backup.json", json.dumps(about))
        archive.writestr(f"files/{name}", b"evil")
    with pytest.raises(BadInput, match="damaged"):
        restore(file, tmp_path / "in" / "again", "coordinator", lambda: "")
    assert not list(tmp_path.rglob("evil"))


def test_a_run_under_way_is_not_backed_up_by_half(fed: Path, tmp_path: Path) -> None:
    with locked(fed / "coordinator" / "runs" / "a" / ".lock"), pytest.raises(BadInput, match="run a is under way"):
        back_up(fed / "coordinator", tmp_path / "backup.zip")
    assert not (tmp_path / "backup.zip").exists()


def test_a_backup_that_fails_leaves_nothing(fed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup, "_copied", full)
    before = {*tmp_path.iterdir()}
    with pytest.raises(OSError, match="No space left"):
        back_up(fed / "coordinator", tmp_path / "backup.zip")
    assert {*tmp_path.iterdir()} == before


def test_a_silos_backup_does_not_become_a_coordinator(fed: Path, tmp_path: Path) -> None:
    back_up(fed / "silos" / "north", tmp_path / "backup.zip")
    with pytest.raises(BadInput, match="the backup of a silo, and here a coordinator's is wanted"):
        restore(tmp_path / "backup.zip", tmp_path / "again", "coordinator", lambda: "")


@pytest.mark.slow
def test_a_run_whose_coordinator_was_lost_goes_on_from_its_backup_to_the_same_end(tmp_path: Path) -> None:
    table = TABLE | {"methods": {"fedavg": {}, "scaffold": {}}}

    def run(home: Path, loop: Loop) -> RemoteRun:
        (home / "runs" / "three").mkdir(parents=True, exist_ok=True)
        return RemoteRun(home / "runs" / "three", study_of(table), loop, lambda: sorted(loop.sides), QUICK)

    whole = run(tmp_path / "whole", Loop(settle(tmp_path / "whole" / "silos"))).run("")
    home, loop = tmp_path / "coordinator", Loop(settle(tmp_path / "silos"))
    with pytest.raises(Broken):
        run(home, Breaking(loop, after=9)).run("")
    (home / "settings.json").write_text('{"host": "localhost", "port": 9443}')
    back_up(home, tmp_path / "backup.zip")
    shutil.rmtree(home)
    restore(tmp_path / "backup.zip", home, "coordinator", lambda: "")
    again = run(home, loop).run("")
    assert again.results.equals(whole.results)


def test_the_commands_say_what_is_missing(
    fed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("federation", "backup", fed, tmp_path / "fed.zip") == 0
    assert "ca.key, server.key are not in it" in capfd.readouterr().out
    assert call("federation", "restore", tmp_path / "new", tmp_path / "fed.zip") == 0
    assert "put ca.key, server.key" in capfd.readouterr().out and (tmp_path / "new" / "coordinator").is_dir()
    monkeypatch.setattr("typer.prompt", lambda *given, **named: "secret")
    assert call("silo", "backup", fed / "silos" / "north", tmp_path / "north.zip", "--keys") == 0
    assert call("silo", "restore", tmp_path / "north", tmp_path / "north.zip") == 0
    assert "answers since then are not counted" in capfd.readouterr().out
    assert (tmp_path / "north" / "key").read_bytes() == (fed / "silos" / "north" / "key").read_bytes()
    assert call("silo", "restore", tmp_path / "north", tmp_path / "north.zip") == 2
