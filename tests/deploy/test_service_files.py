"""What runs a party as a service: no root, nothing writable but its own folder, started again, looked after."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")
from command import call

from coterie.deploy import parties
from coterie.deploy.flower import monitoring, services
from coterie.deploy.flower.monitoring import ailment
from coterie.deploy.flower.programs import only_one
from coterie.deploy.home import ALIVE
from coterie.version import VERSION


@pytest.fixture
def homes(tmp_path: Path) -> dict[str, Path]:
    parties.new_federation(tmp_path / "fed", ["north"], "fl.example.org", 9443, None)
    return {"coordinator": tmp_path / "fed" / "coordinator", "north": tmp_path / "fed" / "silos" / "north"}


def unit(homes: dict[str, Path], party: str) -> Path:
    return homes[party] / "service" / f"coterie-{party}.service"


@pytest.mark.parametrize("party", ["coordinator", "north"])
def test_every_place_in_the_templates_is_filled(homes: dict[str, Path], party: str) -> None:
    files = sorted((homes[party] / "service").iterdir())
    assert [file.name for file in files] == [
        "Dockerfile",
        "compose.yaml",
        f"coterie-{party}.service",
        "options",
        "requirements-deploy.txt",
    ]
    for file in files:
        assert not re.search(r"@[A-Z]+@", file.read_text()), file
    assert str(homes[party]) in unit(homes, party).read_text()


def test_what_the_units_account_is_given_has_no_closed_folder_above_it(homes: dict[str, Path]) -> None:
    given = re.search(r"chown -R coterie: (\S+)", unit(homes, "coordinator").read_text())
    assert given and Path(given[1]) == homes["coordinator"].parent  # which is its owner's alone, too


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
@pytest.mark.parametrize("party", ["coordinator", "north"])
def test_systemd_takes_the_unit_and_finds_little_exposed(homes: dict[str, Path], party: str) -> None:
    analyze = ["systemd-analyze", "--no-pager"]
    checked = subprocess.run([*analyze, "verify", unit(homes, party)], capture_output=True, text=True)
    about = [line for line in checked.stderr.splitlines() if unit(homes, party).name in line]
    assert not [line for line in about if "not executable" not in line], about  # coterie may be installed elsewhere
    judged = subprocess.run(
        [*analyze, "security", "--offline=true", "--threshold=30", unit(homes, party)], capture_output=True, text=True
    )
    assert judged.returncode == 0, judged.stdout[-300:] + judged.stderr


@pytest.mark.parametrize("party", ["coordinator", "north"])
def test_a_container_has_no_root_no_rights_and_one_folder_to_write(homes: dict[str, Path], party: str) -> None:
    yaml = pytest.importorskip("yaml")
    (service,) = yaml.safe_load((homes[party] / "service" / "compose.yaml").read_text())["services"].values()
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service["user"].startswith("0:") and int(service["user"].partition(":")[0]) > 0
    assert [volume for volume in service["volumes"] if not volume.endswith(":ro")] == service["volumes"][:1]
    silo = party == "north"
    asked = "silo health /silo" if silo else "federation health /fed"
    assert service["healthcheck"]["test"] == ["CMD", "coterie", *asked.split()]
    assert service.get("ports") == (None if silo else ["9443:9443"])
    made = (homes[party] / "service" / "Dockerfile").read_text()
    assert "USER 10001" in made and "HEALTHCHECK" in made and ("nginx" in made) == (not silo)


def test_nobody_is_asked_to_install_coterie_by_its_name(homes: dict[str, Path]) -> None:
    """On a package index the name may be somebody else's: it is the file of its wheel."""
    for party in ("coordinator", "north"):
        files = [homes[party] / "README.md", *(homes[party] / "service").iterdir()]
        told = {file.name: file.read_text() for file in files}
        wheel = f"coterie-{VERSION}-py3-none-any.whl"
        assert all(wheel in told[name] for name in ("README.md", "Dockerfile", "requirements-deploy.txt"))
        assert not [name for name, text in told.items() if re.search(r"pip install.*coterie(==|\[)", text)]


def test_a_silo_whose_service_runs_and_is_connected_is_well(
    homes: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    north = homes["north"]
    assert ailment(north) == "its service is not running"
    assert call("silo", "health", north) == 1
    with only_one(north / "state", "silo north"):
        assert "not connected" in ailment(north)
        (north / ALIVE).touch()
        assert ailment(north) == "" and call("silo", "health", north) == 0
        monkeypatch.setattr(monitoring, "LEAST", 10**18)
        assert "are free on its disk" in ailment(north)
        monkeypatch.undo()
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 121)
        assert "for over 120 s" in ailment(north)
    assert capfd.readouterr().out.splitlines() == ["its service is not running", "well"]


def test_the_coordinators_health_is_asked_by_the_federations_folder(
    homes: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("federation", "health", homes["coordinator"].parent) == 1
    assert capfd.readouterr().out == "its service is not running\n"


def test_a_coordinator_whose_program_keeps_ending_gives_no_sign_that_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, said = iter([None, 1, 1, None]), list[str]()
    program = SimpleNamespace(name="nginx", log="nginx.log", process=None, start=lambda: None, rotate=lambda: None)
    program.ended = lambda: program.code
    monkeypatch.setattr(services, "time", SimpleNamespace(sleep=lambda seconds: None))
    found = []
    for program.code in codes:
        found.append(services._revived(tmp_path, [program], said.append))
    assert found == [True, False, False, True]
    assert said == ["nginx ended (1) and is started again; see nginx.log"] * 2


def test_root_writes_nothing_that_the_services_account_could_not_read(
    homes: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A key that root enrolled while the coordinator ran under its account was never registered."""
    fed, north = homes["coordinator"].parent, homes["north"]
    key = north / "key.pub"
    for home in homes.values():
        (home / "state").mkdir()
        if os.geteuid() == 0:
            os.chown(home / "state", 12345, 12345)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for command in (
        ("enroll", fed, key),
        ("add", fed, "west"),
        ("remove", fed, "north"),
        ("renew", fed),
        ("run", fed, "x"),
        ("backup", fed, fed.parent / "fed.zip"),
    ):
        assert call("federation", *command) == 2
        assert "which could not read what root writes there; run this with sudo -u " in capfd.readouterr().err
    for action in ("approve", "repair", "rotate"):
        assert call("silo", action, north) == 2
        assert f"{north}: its service runs under the account" in capfd.readouterr().err
    assert call("silo", "backup", north, fed.parent / "north.zip") == 2  # its .lock would be root's
    assert f"{north}: its service runs under the account" in capfd.readouterr().err
    assert not (north / ".lock").exists()
    assert sorted(path.name for path in (homes["coordinator"] / "members").iterdir()) == ["north.pub"]
    assert call("silo", "health", north) == 1  # whoever watches may ask


def test_before_a_service_was_started_root_sets_a_party_up(
    homes: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert call("federation", "add", homes["coordinator"].parent, "west") == 0
