"""Nobody but its owner reads a party's folder, whatever the umask and however it was before."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from loop import Loop, settle

pytest.importorskip("flwr")
from coterie.deploy import parties
from coterie.deploy.drive import RemoteRun, study_of
from coterie.deploy.flower.launch import ask_run
from coterie.deploy.home import close_folder, owner_only
from coterie.deploy.patience import Patience
from coterie.deploy.vault import Vault, is_reserved


@pytest.fixture(autouse=True, params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    assert os.umask(before) == request.param  # ours is as it was


def open_to_others(folder: Path) -> list[str]:
    every = [folder, *folder.rglob("*")]
    return [str(path.relative_to(folder)) for path in every if path.stat().st_mode & 0o077]


def test_a_new_partys_folder_is_its_owners(tmp_path: Path) -> None:
    parties.new_federation(tmp_path / "fed", ["north"], "127.0.0.1", 9443, None)
    parties.add_silo(tmp_path / "fed", "south")
    parties.renew(tmp_path / "fed")
    assert open_to_others(tmp_path / "fed") == []


def test_a_run_leaves_nothing_that_others_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = settle(tmp_path / "silos")
    for side in sides.values():
        close_folder(side.folder)
    parties.new_federation(tmp_path / "fed", ["north"], "127.0.0.1", 9443, None)
    monkeypatch.setattr("coterie.deploy.flower.monitoring.is_served", lambda folder: True)
    table = {"name": "small", "seeds": [1], "model": {"name": "mlp", "hidden": [4]}, "methods": {"scaffold": {}}}
    table |= {"train": {"rounds": 1, "local_epochs": 1, "batch_size": 8}}
    run = ask_run(tmp_path / "fed", table, None, Patience(gather=0), "command")
    with owner_only():  # as the coordinator's app runs
        RemoteRun(run, study_of(table), Loop(sides), lambda: sorted(sides), Patience(gather=0)).run("command")
    assert list(run.rglob(".checkpoints/*")) and (run / "summary.json").exists()
    assert open_to_others(tmp_path / "fed") == []
    for side in sides.values():
        assert list(side.folder.rglob("*.safetensors")) and (side.folder / "events.log").exists()
        assert open_to_others(side.folder) == []


@pytest.mark.parametrize("name", ["data.v2", "x" * 100])
def test_a_run_of_any_study_has_a_name_that_silos_take(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties.new_federation(tmp_path / "fed", ["north"], "127.0.0.1", 9443, None)
    monkeypatch.setattr("coterie.deploy.flower.monitoring.is_served", lambda folder: True)
    table = {"name": name, "methods": {"scaffold": {}}}
    run = ask_run(tmp_path / "fed", table, None, Patience(gather=0), "command").name
    assert not is_reserved(run) and run.startswith(name[:4])
    ends = ("-scaffold-0", "-scaffold-1", "-scaffold-0-tuning-0", "-scaffold-0.newcomer")
    assert len({Vault(tmp_path, run + end).folder for end in ends}) == len(ends)


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    (folder / "state" / "run").mkdir(parents=True)
    (folder / "state" / "run" / "committed.safetensors").write_bytes(b"state")
    (tmp_path / "elsewhere").touch(mode=0o644)
    (folder / "data.npz").symlink_to(tmp_path / "elsewhere")
    folder.chmod(0o755)
    before = (tmp_path / "elsewhere").stat().st_mode
    close_folder(folder)
    (folder / "data.npz").unlink()
    assert open_to_others(folder) == []
    assert (tmp_path / "elsewhere").stat().st_mode == before
