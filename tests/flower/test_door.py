"""Who is not let in, and what a silo's owner then reads."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from real import coterie, digits, environment, real, really

pytest.importorskip("flwr")
from coterie.engine.flower import home, keeper, parties
from coterie.errors import BadInput


def test_each_party_gets_only_what_it_needs(tmp_path: Path) -> None:
    parties.new_federation(tmp_path / "fed", ["north", "south"], "127.0.0.1", 9443, None)
    coordinator, north = tmp_path / "fed" / "coordinator", tmp_path / "fed" / "silos" / "north"
    names = {path.name for path in north.iterdir()}
    assert names == {"key", "key.pub", "ca.crt", "silo.toml", "settings.json", "README.md"}
    assert {path.name for path in (coordinator / "members").iterdir()} == {"north.pub", "south.pub"}
    for secret in (north / "key", coordinator / "ca.key", coordinator / "server.key"):
        assert secret.stat().st_mode & 0o077 == 0
    assert "coterie silo" in (north / "README.md").read_text()
    private = (north / "key").read_bytes()
    assert all(private not in path.read_bytes() for path in coordinator.rglob("*") if path.is_file())


def test_a_host_that_others_reach_is_published_by_nginx_only(tmp_path: Path) -> None:
    parties.new_federation(tmp_path / "fed", ["a"], "fl.example.org", 9443, None)
    own = json.loads((tmp_path / "fed" / "coordinator" / "settings.json").read_text())
    assert own["proxy"] and own["inner"] == 9444
    conf = (tmp_path / "fed" / "coordinator" / "nginx.conf").read_text()
    assert "listen 9443 ssl" in conf and "location / { return 403; }" in conf and "control" not in conf
    with pytest.raises(BadInput, match="whoever holds the CA's certificate could start runs"):
        parties.new_federation(tmp_path / "other", ["a"], "fl.example.org", 9443, False)


@pytest.mark.parametrize("name", ["", "a b", "../x", "North", "-x", "a" * 60])
def test_a_name_that_is_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="silo name"):
        parties.new_federation(tmp_path / "fed", [name], "127.0.0.1", 9443, None)


def test_a_federation_is_never_overwritten(tmp_path: Path) -> None:
    parties.new_federation(tmp_path / "fed", ["a"], "127.0.0.1", 9443, None)
    with pytest.raises(BadInput, match="exists already"):
        parties.new_federation(tmp_path / "fed", ["a"], "127.0.0.1", 9443, None)
    with pytest.raises(BadInput, match="exists already"):
        parties.add_silo(tmp_path / "fed", "a")


def door(folder: Path, port: int):
    """A TLS server with the coordinator's certificate."""
    import socket
    import ssl
    import threading

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    listener = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(raw, server_side=True).close()
            except (OSError, ssl.SSLError):
                raw.close()

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_a_coordinator_is_believed_only_with_a_valid_certificate_by_the_federations_ca(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, other, old = tmp_path / "fed", tmp_path / "other", tmp_path / "old"
    for folder in (fed, other):
        parties.new_federation(folder, ["a"], "127.0.0.1", 9443, None)

    class Past(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) - timedelta(days=1000)

    monkeypatch.setattr(parties, "datetime", Past)
    parties.new_federation(old, ["a"], "127.0.0.1", 9443, None)
    for folder, ca, reason in (
        (fed, fed, None),
        (fed, other, "not by this federation's CA"),
        (old, old, "has expired"),
    ):
        port = home.free_port()
        with door(folder / "coordinator", port):
            if reason is None:
                keeper.greet("127.0.0.1", port, ca / "silos" / "a" / "ca.crt", lambda said: None)
                continue
            with pytest.raises(BadInput, match=reason):
                keeper.greet("127.0.0.1", port, ca / "silos" / "a" / "ca.crt", lambda said: None)


def test_commands_without_a_running_coordinator_say_so(tmp_path: Path) -> None:
    parties.new_federation(tmp_path / "fed", ["a"], "127.0.0.1", 9443, None)
    for words in (["status"], ["run"]):
        done = coterie("federation", words[0], str(tmp_path / "fed"), check=False)
        assert done.returncode == 2
        assert "the coordinator is not running" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
@really[1]
def test_a_silo_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    """An unregistered key; the CA of another federation; another version of coterie."""
    import subprocess

    from real import COMMAND

    with real(tmp_path / "fed", digits(["north", "south"])) as fed:
        own = json.loads((fed.folder / "coordinator" / "settings.json").read_text())
        parties.new_federation(tmp_path / "other", ["west"], "127.0.0.1", own["port"], None)
        west = tmp_path / "other" / "silos" / "west"
        data = str(fed.folder / "silos" / "north" / "data.npz")
        wrong = coterie("silo", str(west), "--data", data, check=False, timeout=60)
        assert wrong.returncode == 2
        assert "cannot be trusted: its certificate is not by this federation's CA" in wrong.stderr
        (west / "ca.crt").write_bytes((fed.folder / "coordinator" / "ca.crt").read_bytes())
        unknown = coterie("silo", str(west), "--data", data, check=False, timeout=120)
        assert unknown.returncode == 2
        assert "the coordinator refuses this silo's key: it is not registered there" in unknown.stderr
        # Another version of coterie: the request says which, and the silo's owner reads it.
        app = fed.folder / "silos" / "south" / "flower" / "guard" / "flwr-clientapp"
        text = app.read_text().replace("main()", "import coterie\ncoterie.__version__ = '9.9'\nmain()", 1)
        app.write_text(text)
        (fed.folder / "silos" / "north" / "silo.toml").write_text("smallest_cohort = 1\n")
        run = subprocess.run(
            [*COMMAND, "federation", "run", str(fed.folder), str(fed.study(["fedavg"], rounds=1)), "--gather", "0"],
            capture_output=True, text=True, timeout=240, env=environment(),
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        assert "install the same" in fed.silos["south"].said()
        assert json.loads((fed.latest() / "members.json").read_text()).keys() == {"north"}
