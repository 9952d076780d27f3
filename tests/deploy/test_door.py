"""Who is not let in, and what a silo's owner then reads."""

import base64
import json
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path

import pytest
from command import call
from real import coterie, digits

pytest.importorskip("flwr")
from coterie.deploy import certificates, home, parties
from coterie.deploy.flower import commands, services
from coterie.deploy.greeting import connected, greet
from coterie.deploy.own import save_silo
from coterie.errors import BadInput


def test_each_party_gets_only_what_it_needs(tmp_path: Path) -> None:
    parties.new_federation(tmp_path / "fed", ["north", "south"], "127.0.0.1", 9443, None)
    coordinator, north = tmp_path / "fed" / "coordinator", tmp_path / "fed" / "silos" / "north"
    names = {path.name for path in north.iterdir()}
    assert names == {"key", "key.pub", "ca.crt", "silo.toml", "settings.json", "README.md", "service"}
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
    assert str(tmp_path) not in conf
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


def door(folder: Path, port: int, answer: bytes = b""):
    """A TLS server with the coordinator's certificate, which says the same to everybody."""
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
                with context.wrap_socket(raw, server_side=True) as opened:
                    if answer:
                        opened.recv(4096)
                        opened.sendall(answer)
            except (OSError, ssl.SSLError):
                raw.close()

    threading.Thread(target=serve, daemon=True).start()
    return listener


class Past(datetime):
    """A clock that is three years late."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(UTC) - timedelta(days=1000)


def federations(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """This federation, another one, and one whose certificate has expired."""
    made = {name: folder / name for name in ("fed", "other", "old")}
    for name, path in made.items():
        if name == "old":
            monkeypatch.setattr(certificates, "datetime", Past)
        parties.new_federation(path, ["a"], "127.0.0.1", 9443, None)
    monkeypatch.undo()
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "ca", "reason"),
    [
        ("fed", "other", "cannot be trusted: its certificate is not by this federation's CA"),
        ("old", "old", "cannot be trusted: its certificate has expired"),
    ],
)
def test_a_silo_that_cannot_trust_its_coordinator_says_so_and_ends(
    server: str, ca: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = federations(tmp_path, monkeypatch)
    silo = made[ca] / "silos" / "a"
    save_silo(digits(["a"])[0], silo / "data.npz")
    port = home.free_port()
    settings = json.loads((silo / "settings.json").read_text())
    (silo / "settings.json").write_text(json.dumps(settings | {"port": port}))
    with door(made[server] / "coordinator", port):
        done = coterie("silo", str(silo), check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr


def test_a_renewed_certificate_is_believed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = federations(tmp_path, monkeypatch)["old"]
    ca = old / "silos" / "a" / "ca.crt"
    parties.renew(old)
    port = home.free_port()
    with door(old / "coordinator", port):
        greet("127.0.0.1", port, ca, lambda said: None)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-60, "s ahead of the coordinator's"), (4000, "s behind the coordinator's"), (0, ""), (100, "")],
)
def test_a_clock_by_which_no_signature_counts_is_named_before_flower_refuses_it(
    seconds: int, said: str, tmp_path: Path
) -> None:
    parties.new_federation(tmp_path / "fed", ["a"], "127.0.0.1", 9443, None)
    theirs = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    port, answer = home.free_port(), f"HTTP/1.1 403 Forbidden\r\nDate: {theirs}\r\n\r\n".encode()
    with door(tmp_path / "fed" / "coordinator", port, answer):
        greeting = partial(greet, "127.0.0.1", port, tmp_path / "fed" / "silos" / "a" / "ca.crt", lambda said: None)
        if said:
            with pytest.raises(BadInput, match=said):
                greeting()
        else:
            greeting()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-4, "s ahead of the coordinator's; 5 s ahead"), (60, "s behind the coordinator's; "), (0, "")],
)
def test_a_clock_that_is_a_little_wrong_is_remarked_on(seconds: int, said: str, tmp_path: Path) -> None:
    parties.new_federation(tmp_path / "fed", ["a"], "127.0.0.1", 9443, None)
    theirs = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    port, heard = home.free_port(), list[str]()
    with door(tmp_path / "fed" / "coordinator", port, f"HTTP/1.1 403 Forbidden\r\nDate: {theirs}\r\n\r\n".encode()):
        greet("127.0.0.1", port, tmp_path / "fed" / "silos" / "a" / "ca.crt", heard.append)
    assert len(heard) == bool(said) and all(said in line for line in heard)


class Proxy(threading.Thread):
    """An HTTP proxy that lets through whoever knows its password."""

    def __init__(self, name: str = "", password: str = "") -> None:
        super().__init__(daemon=True)
        self.listener, self.asked = socket.create_server(("127.0.0.1", 0)), list[str]()
        self.port = self.listener.getsockname()[1]
        self.secret = base64.b64encode(f"{name}:{password}".encode()).decode() if name else ""
        self.start()

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        head = client.recv(4096).decode()
        self.asked.append(head.partition("\r\n")[0])
        if self.secret not in head:
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return client.close()
        port = int(head.split()[1].rpartition(":")[2])  # whatever the host: all of them are this machine
        server = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for one, other in ((client, server), (server, client)):
            threading.Thread(target=self.pump, args=(one, other), daemon=True).start()

    def pump(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while piece := one.recv(4096):
                other.sendall(piece)
            other.shutdown(socket.SHUT_WR)


def test_a_silo_reaches_its_coordinator_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parties.new_federation(tmp_path / "fed", ["a"], "fl.example.org", 9443, None)
    silo, port, proxy = tmp_path / "fed" / "silos" / "a", home.free_port(), Proxy("north", "s3:cret")
    policy = silo / "silo.toml"
    address = f"http://north:s3%3Acret@127.0.0.1:{proxy.port}"
    policy.write_text(policy.read_text().replace('proxy = ""', f'proxy = "{address}"'))
    assert home.proxy_of(silo, "fl.example.org") == address
    with door(tmp_path / "fed" / "coordinator", port, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"):
        greet("fl.example.org", port, silo / "ca.crt", lambda said: None, address)
        for key, value in commands.environment(tmp_path, **commands.through(address)).items():
            monkeypatch.setenv(key, value)
        flower = pytest.importorskip("flwr.supercore.protobuf.client").ProtobufClient.from_server_address(
            f"fl.example.org:{port}", False, (silo / "ca.crt").read_bytes(), ()
        )
        assert flower._client.get(f"https://fl.example.org:{port}/").status_code == 403  # as a SuperNode calls
    assert proxy.asked == [f"CONNECT fl.example.org:{port} HTTP/1.1"] * 2


def test_a_proxy_that_refuses_is_quoted(tmp_path: Path) -> None:
    proxy = Proxy("north", "secret")
    with pytest.raises(OSError, match=r"the proxy 127\.0\.0\.1 answers: HTTP/1\.1 407 Proxy Authentication Required"):
        connected("fl.example.org", 9443, f"http://north:wrong@127.0.0.1:{proxy.port}")


def test_without_one_in_its_policy_a_silo_takes_the_environments_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example.org")
    assert home.proxy_of(tmp_path, "fl.example.org") == "http://proxy.example.org:3128"
    assert home.proxy_of(tmp_path, "inside.example.org") == home.proxy_of(tmp_path, "127.0.0.1") == ""
    assert commands.environment(tmp_path)["NO_PROXY"] == "inside.example.org,127.0.0.1,localhost"
    (tmp_path / "silo.toml").write_text('proxy = "socks5://proxy"')
    with pytest.raises(BadInput, match="give its address as http://"):
        home.proxy_of(tmp_path, "fl.example.org")


@pytest.mark.parametrize(("host", "proxy"), [("fl.example.org", None), ("127.0.0.1", True)])
def test_without_tls_only_on_this_machine(host: str, proxy: bool | None, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--insecure: only on"):
        parties.new_federation(tmp_path / "fed", ["a"], host, 9443, proxy, insecure=True)
    assert not (tmp_path / "fed").exists()


@pytest.mark.slow
def test_a_silo_without_tls_talks_to_no_other_machine(tmp_path: Path) -> None:
    parties.new_federation(tmp_path / "fed", ["a"], "127.0.0.1", 9443, None, insecure=True)
    silo = tmp_path / "fed" / "silos" / "a"
    assert not {"key", "ca.crt"} & {path.name for path in silo.iterdir()}
    save_silo(digits(["a"])[0], silo / "data.npz")
    settings = json.loads((silo / "settings.json").read_text())
    (silo / "settings.json").write_text(json.dumps(settings | {"host": "fl.example.org"}))
    source = {"path": str(silo / "data.npz"), "label": "", "drop": [], "task": "auto", "device": "cpu"}
    with pytest.raises(BadInput, match=r"insecure is for this machine alone, not for fl\.example\.org"):
        services.silo(silo, json.dumps(source))


@pytest.mark.parametrize("command", ["status", "run"])
def test_commands_without_a_running_coordinator_say_so(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parties.new_federation(tmp_path / "fed", ["a"], "127.0.0.1", 9443, None)
    assert call("federation", command, tmp_path / "fed") == 2
    printed = capfd.readouterr().err
    assert "the coordinator is not running" in printed
    assert "Traceback" not in printed
