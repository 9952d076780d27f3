"""Who is registered follows the keys in `members/`; a stand-in for Flower's commands keeps a database like its own."""

import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from coterie.deploy import parties
from coterie.deploy.flower import commands
from coterie.deploy.flower.members import Members
from coterie.deploy.home import nodes


class SuperLink:
    """Flower's own rules: a key is registered once and, once unregistered, never again."""

    def __init__(self, database: Path) -> None:
        self.database, self.next = database, 2**64 - 10  # beyond what SQLite's integers hold
        self.start()

    def start(self) -> None:
        self.database.parent.mkdir(parents=True, exist_ok=True)
        self("CREATE TABLE node (node_id INTEGER UNIQUE, public_key BLOB UNIQUE, status TEXT)")

    def __call__(self, words: str, *values: object) -> None:
        with sqlite3.connect(self.database) as opened:
            opened.execute(words, values)

    def register(self, home: Path, key: Path) -> int | None:
        self.next += 1
        try:
            self("INSERT INTO node VALUES (?, ?, 'registered')", self.next - 2**64, commands.key_of(key))
        except sqlite3.IntegrityError:
            return None
        return self.next

    def unregister(self, home: Path, node: int) -> bool:
        self("UPDATE node SET status = 'unregistered' WHERE node_id = ?", node - 2**64)
        return True

    def admits(self, key: Path) -> bool:
        known = commands.known_keys(self.database) or {}
        return known.get(commands.key_of(key), (0, "unregistered"))[1] != "unregistered"


class Federation:
    """A coordinator of north and south whose SuperLink is the stand-in."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        parties.new_federation(folder, ["north", "south"], "127.0.0.1", 9443, None)
        self.folder, self.home = folder / "coordinator", folder / "coordinator" / "flower"
        self.keys = {name: folder / "silos" / name / "key.pub" for name in ("north", "south")}
        self.link = SuperLink(self.folder / commands.DATABASE)
        monkeypatch.setattr(commands, "register", self.link.register)
        monkeypatch.setattr(commands, "unregister", self.link.unregister)
        self.said = list[str]()
        self.members = Members(self.folder, self.home, self.said.append)
        self.members.align()

    def admitted(self) -> set[str]:
        return {name for name, key in self.keys.items() if self.link.admits(key)}


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return Federation(tmp_path / "fed", monkeypatch)


def test_the_keys_in_the_folder_are_registered_once(fed: Federation) -> None:
    before = nodes(fed.folder)
    fed.members.align()
    assert fed.admitted() == {"north", "south"} == {*before}
    assert nodes(fed.folder) == before
    assert fed.said == ["registered the key of north", "registered the key of south"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_key_that_is_removed_locks_its_silo_out(restarted: bool, fed: Federation) -> None:
    (fed.folder / "members" / "south.pub").unlink()
    members = Members(fed.folder, fed.home, fed.said.append) if restarted else fed.members
    for _ in range(2):
        members.align()
    assert fed.admitted() == {"north"} == {*nodes(fed.folder)}
    assert fed.said[-1] == "locked out south: its key is not in members/"


def test_a_key_that_was_removed_does_not_come_back_but_a_new_one_under_its_name_does(fed: Federation) -> None:
    path = fed.folder / "members" / "south.pub"
    old = path.read_bytes()
    path.unlink()
    for _ in range(2):
        fed.members.align()
    path.write_bytes(old)
    for _ in range(2):
        fed.members.align()
    assert fed.admitted() == {"north"} == {*nodes(fed.folder)}
    assert sum("not taken again" in line for line in fed.said) == 1
    before = nodes(fed.folder)
    other = fed.folder.parent / "new"
    other.mkdir()
    path.write_text(parties.make_key(other / "key", "south"))
    fed.members.align()
    assert fed.link.admits(other / "key.pub") and not fed.link.admits(fed.keys["south"])
    assert nodes(fed.folder) == before | {"south": fed.link.next}


def test_a_key_that_is_away_for_a_moment_locks_nobody_out(fed: Federation) -> None:
    before, path = nodes(fed.folder), fed.folder / "members" / "south.pub"
    path.rename(path.with_suffix(".old"))
    fed.members.align()
    path.with_suffix(".old").rename(path)
    for _ in range(2):
        fed.members.align()
    (fed.folder / "members").rename(fed.folder / "elsewhere")
    for _ in range(2):
        fed.members.align()
    assert fed.admitted() == {"north", "south"} and nodes(fed.folder) == before


def test_a_key_that_is_replaced_locks_the_old_one_out(fed: Federation) -> None:
    before = nodes(fed.folder)
    other = fed.folder.parent / "new"
    other.mkdir()
    (fed.folder / "members" / "south.pub").write_text(parties.make_key(other / "key", "south"))
    for _ in range(2):
        fed.members.align()
    assert fed.admitted() == {"north"} and fed.link.admits(other / "key.pub")
    assert nodes(fed.folder)["south"] != before["south"] and nodes(fed.folder)["north"] == before["north"]


def test_a_lost_database_is_filled_from_the_keys_and_silos_keep_their_names(fed: Federation) -> None:
    before = nodes(fed.folder)
    fed.link.database.unlink()
    fed.members.align()  # while there is none
    assert nodes(fed.folder) == before
    fed.link.start()
    fed.members.align()
    assert fed.admitted() == {"north", "south"} == {*nodes(fed.folder)}
    assert not set(before.values()) & set(nodes(fed.folder).values())


def test_nodes_that_were_registered_but_not_noted_are_noted(fed: Federation) -> None:
    before = nodes(fed.folder)
    for path in (fed.folder / "state" / "nodes").iterdir():
        path.unlink()
    fed.members.align()
    assert nodes(fed.folder) == before


def test_a_file_that_is_no_key_is_named_once_and_the_others_count(fed: Federation) -> None:
    (fed.folder / "members" / "east.pub").write_text("rubbish")
    for _ in range(2):
        fed.members.align()
    assert fed.admitted() == {"north", "south"}
    assert sum("east.pub: no public key" in line for line in fed.said) == 1
