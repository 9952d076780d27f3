"""Keys made where they are used: a silo's private key is never anywhere else."""

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import call
from test_door import Past

pytest.importorskip("flwr")
from coterie.deploy import certificates, parties
from coterie.deploy.certificates import days_left, expiry, fingerprint
from coterie.deploy.flower import services
from coterie.deploy.flower.commands import key_of
from coterie.deploy.policy import read_policy
from coterie.errors import BadInput


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    """A federation of a coordinator alone."""
    parties.new_federation(tmp_path / "fed", [], "fl.example.org", 9443, None)
    return tmp_path / "fed"


def made(folder: Path, fed: Path) -> int:
    words = ["--coordinator", "fl.example.org:9443", "--ca", fed / "coordinator" / "ca.crt"]
    return call("silo", "init", folder, *words)


def test_a_silo_makes_its_own_folder_and_is_let_in_by_its_public_key(
    fed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    north = tmp_path / "north"
    assert made(north, fed) == 0
    printed = capfd.readouterr().out
    assert read_policy(north).approve == "each"
    assert json.loads((north / "settings.json").read_text()) == {
        "name": "north",
        "host": "fl.example.org",
        "port": 9443,
        "insecure": False,
    }
    assert all(path.stat().st_mode & 0o077 == 0 for path in [north, *north.iterdir()])
    assert not (fed / "silos").exists() and not list((fed / "coordinator" / "members").iterdir())
    assert call("federation", "enroll", fed, north / "key.pub") == 0
    _, shown, _, authority, *_ = capfd.readouterr().out.split()
    assert f"CA:  {authority}\n" in printed
    assert shown.startswith("SHA256:") and f"key: {shown}\n" in printed
    if shutil.which("ssh-keygen"):
        listed = subprocess.run(["ssh-keygen", "-lf", north / "key.pub"], capture_output=True, text=True).stdout
        assert shown in listed
    member = fed / "coordinator" / "members" / "north.pub"
    assert key_of(member) == key_of(north / "key.pub")
    private = (north / "key").read_bytes()
    assert all(private not in path.read_bytes() for path in fed.rglob("*") if path.is_file())


def test_a_silo_is_made_where_an_empty_disk_is_mounted_and_nowhere_else(
    fed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "north").mkdir(mode=0o755)
    assert made(tmp_path / "north", fed) == 0 and (tmp_path / "north").stat().st_mode & 0o777 == 0o700
    key = (tmp_path / "north" / "key").read_bytes()
    assert made(tmp_path / "north", fed) == 2 and "exists already" in capfd.readouterr().err
    assert (tmp_path / "north" / "key").read_bytes() == key


def test_a_new_key_takes_the_old_ones_place_and_is_said_to(
    fed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever sends a key names its silo: under the name of another, that one would be locked out without a word."""
    north, member = tmp_path / "north", fed / "coordinator" / "members" / "north.pub"
    made(north, fed)
    for _ in range(2):  # the same key again is no other
        assert call("federation", "enroll", fed, north / "key.pub") == 0
        assert "in place of" not in capfd.readouterr().out
    old = member.read_text()
    assert call("silo", "rotate", north) == 0
    assert member.read_text() == old != (north / "key.pub").read_text()
    assert call("federation", "enroll", fed, north / "key.pub") == 0
    assert f"in place of {fingerprint(old)}, which is locked out for good" in capfd.readouterr().out
    assert member.read_text() == (north / "key.pub").read_text()
    with pytest.raises(BadInput, match="is the key of north; each silo has its own"):
        parties.enroll(fed, north / "key.pub", "south")
    assert (north / "key").stat().st_mode & 0o077 == 0


def test_a_silo_is_removed_by_its_name(fed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    parties.add_silo(fed, "south")
    assert call("federation", "remove", fed, "north") == 2
    assert "no silo 'north' there; known: south" in capfd.readouterr().err
    assert call("federation", "remove", fed, "south") == 0
    assert not list((fed / "coordinator" / "members").iterdir())


@pytest.mark.parametrize("content", ["", "ssh-rsa AAAA north\n", "x" * 1000, "ecdsa-sha2-nistp384 %%% north\n"])
def test_what_is_no_such_key_is_not_enrolled(content: str, fed: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(content)
    with pytest.raises(BadInput, match=r"no public key|not an ECDSA"):
        parties.enroll(fed, tmp_path / "key.pub")


def test_a_key_of_another_curve_is_not_enrolled(fed: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    (tmp_path / "key.pub").write_bytes(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(BadInput, match="not an ECDSA P-384 key"):
        parties.enroll(fed, tmp_path / "key.pub", "north")


@pytest.mark.parametrize(
    ("folder", "words", "said"),
    [
        ("north", ["--coordinator", "fl.example.org"], "give its host and port"),
        ("north", [], "give --coordinator HOST:PORT and --ca"),
        ("North Wing", ["--coordinator", "fl.example.org:9443"], "silo name 'North Wing'"),
    ],
)
def test_a_silo_that_cannot_be_made_leaves_nothing(
    folder: str, words: list[str], said: str, fed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("silo", "init", tmp_path / folder, *words, "--ca", fed / "coordinator" / "ca.crt") == 2
    assert said in capfd.readouterr().err and not (tmp_path / folder).exists()


def test_a_certificate_that_expires_soon_is_warned_of(fed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = fed / "coordinator"
    assert expiry(coordinator) == "" and 729 < days_left(coordinator / "server.pem") < 731

    class Late(Past):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) - timedelta(days=710)

    monkeypatch.setattr(certificates, "datetime", Late)
    parties.renew(fed)
    monkeypatch.undo()
    assert "expires in 20 days; renew it with `coterie federation renew`" in expiry(coordinator)
    before = (coordinator / "server.pem").stat().st_mtime_ns
    parties.renew(fed)
    assert expiry(coordinator) == "" and (coordinator / "server.pem").stat().st_mtime_ns > before


def test_a_running_coordinator_takes_up_a_renewed_certificate(
    fed: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended, looks = list[str](), iter(range(3))

    class Program:
        """One that runs until it is stopped."""

        def __init__(self, name: str, *given: object) -> None:
            self.name, self.log, self.process, self.code = name, fed / "log", None, None

        def start(self) -> None:
            self.code = None

        def stop(self) -> None:
            ended.append(self.name)
            self.code = 0

        def rotate(self) -> None:
            """Its log never is large."""

        def ended(self) -> int | None:
            return self.code

    def sleep(seconds: float) -> None:
        look = next(looks, None)
        if look is None:
            raise KeyboardInterrupt
        if look == 0:
            parties.renew(fed)

    monkeypatch.setattr(services, "Program", Program)
    monkeypatch.setattr(services, "await_port", lambda *given: None)
    monkeypatch.setattr(services.Members, "align", lambda self: None)
    monkeypatch.setattr(services, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: 1.0))
    with pytest.raises(KeyboardInterrupt):
        services.coordinator(fed / "coordinator")
    assert capfd.readouterr().out.splitlines()[1:] == [
        "the certificate was renewed: SuperLink and nginx take it up",
        *(f"{name} ended (0) and is started again; see {fed / 'log'}" for name in ("SuperLink", "nginx")),
    ]
    assert ended[:2] == ["SuperLink", "nginx"] and len(ended) == 5  # and all of them at the end
