"""The folders of a federation's parties: certificates, keys and settings, to each only what it needs."""

import ipaddress
import json
import re
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import PrivateFormat

from coterie.deploy.certificates import certify, fingerprint, make_authority, make_key, read_authority, read_key
from coterie.deploy.home import LOOPBACK, is_loopback, owner_only, settings
from coterie.deploy.nginx import configuration
from coterie.deploy.operators import FOLDER as OPERATORS
from coterie.deploy.policy import FILE as POLICY
from coterie.deploy.policy import policy_text
from coterie.deploy.service_files import write_service
from coterie.errors import BadInput
from coterie.version import VERSION

ITS_README = """# The coordinator of a Coterie federation

    pip install 'coterie-{version}-py3-none-any.whl[flower]'     # the file, not a name on a package index
    coterie coordinator .

in this folder starts it; Ctrl-C stops it. Silos reach it at {host}:{port}.
{security}"""
SECRETS = """
`service/` holds what runs it as a service of systemd, or in a container; the first lines of each file tell how.

`ca.key` and `server.key` are secrets of this machine. `members/` holds the silos' public keys. A silo that makes its
own key needs `ca.crt`; let it in with `coterie federation enroll .. key.pub`, once you have compared fingerprints.
"""
PROXY = """
It starts nginx (Debian: `apt install nginx`) with `nginx.conf`, which publishes only what a silo needs; the rest
of Flower listens on {loopback}:{inner} only. Open port {port} for the silos, and no other.
"""
INSECURE = """
Made with --insecure: no TLS, no keys. For trying out on this machine; never put data here that matter.
"""
SILO = """# Silo {name} of a Coterie federation

    pip install 'coterie-{version}-py3-none-any.whl[flower]'     # the file, not a name on a package index
    coterie silo . --data YOUR_DATA.csv --label COLUMN     # or .parquet, .npz, a folder of pictures

in this folder takes part until Ctrl-C. It connects to {host}:{port} and needs no open port of its own.

- `silo.toml` is your policy: what may be asked of this silo. Edit it; it is read before every answer.
- `coterie silo approve .` shows studies that wait for your approval, unless the policy has `approve = "all"`.
- `coterie silo ledger .` shows and verifies what left.
- `service/` holds what runs it as a service of systemd, or in a container; the first lines of each file tell how.
{security}"""
KEY = "- `key` is this silo's identity. It and `state/`, `models/` never leave this folder.\n"


@owner_only()
def new_federation(
    folder: Path, silos: list[str], host: str, port: int, proxy: bool | None, insecure: bool = False
) -> None:
    """Make the folders of the coordinator and of every silo."""
    if _is_taken(folder):
        raise BadInput(f"{folder}: exists already and is not overwritten; give another folder")
    check_host(host)
    for name in silos:
        check_name(name)
    if len(set(silos)) < len(silos):
        raise BadInput("--silos: give each silo a name of its own, e.g. north,south,east")
    if not 1024 <= port < 65535:
        raise BadInput(f"--port {port}: take one from 1024 to 65534")
    local = is_loopback(host)
    if insecure and (not local or proxy):
        raise BadInput(f"--insecure: only on {LOOPBACK} and without a proxy; anywhere else there is TLS and a key each")
    proxy = not local if proxy is None else proxy
    if not proxy and not local:
        raise BadInput(
            f"--no-proxy: on {host} whoever holds the CA's certificate could start runs; it is for this machine alone"
        )
    coordinator = folder / "coordinator"
    (coordinator / "members").mkdir(parents=True)
    inner = port + 1 if proxy else port
    if not insecure:
        make_authority(coordinator)
        certify(coordinator, host)
        (coordinator / "nginx.conf").write_text(configuration(LOOPBACK, port, inner, local), "utf-8")
    _write_settings(coordinator, {"host": host, "port": port, "inner": inner, "proxy": proxy, "insecure": insecure})
    security = INSECURE if insecure else SECRETS
    security += PROXY.format(loopback=LOOPBACK, inner=inner, port=port) if proxy else ""
    (coordinator / "README.md").write_text(
        ITS_README.format(version=VERSION, host=host, port=port, security=security), "utf-8"
    )
    if not insecure:
        write_service(coordinator, "coordinator", port)
    for name in silos:
        add_silo(folder, name)


@owner_only()
def add_silo(folder: Path, name: str) -> None:
    """Make the folder of one more silo; a running coordinator registers its key within seconds."""
    check_name(name)
    coordinator, silo = folder / "coordinator", folder / "silos" / name
    its = _settings_of(folder)
    if silo.exists():
        raise BadInput(f"{silo}: exists already; give the silo another name")
    silo.mkdir(parents=True)
    about = {"name": name, "host": its["host"], "port": its["port"], "insecure": its["insecure"]}
    if its["insecure"]:
        about |= {"coordinator": "../../coordinator"}
        (coordinator / "members" / name).touch()
    else:
        (silo / "ca.crt").write_text((coordinator / "ca.crt").read_text("utf-8"), "utf-8")
        (coordinator / "members" / f"{name}.pub").write_text(make_key(silo / "key", name), "utf-8")
    _write_silo(silo, about, policy_text("all"), INSECURE if its["insecure"] else KEY)


def _is_taken(folder: Path) -> bool:
    """Whether anything is there already; an empty folder, as a disk of its own is mounted at, is not."""
    return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))


@owner_only()
def init_silo(folder: Path, coordinator: str, ca: Path) -> tuple[str, str]:
    """A silo's folder made by the silo itself: its key never leaves it. The fingerprints of key and CA."""
    name, (host, _, port) = folder.resolve().name, coordinator.rpartition(":")
    check_name(name)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"--coordinator {coordinator[:100]}: give its host and port, e.g. fed.example.org:9443")
    check_host(host)
    if _is_taken(folder):
        raise BadInput(f"{folder}: exists already; give another folder, or a new key with `coterie silo rotate`")
    certificate, authority = read_authority(ca)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    (folder / "ca.crt").write_text(certificate, "utf-8")
    key = make_key(folder / "key", name)
    _write_silo(folder, {"name": name, "host": host, "port": int(port), "insecure": False}, policy_text(), KEY)
    return fingerprint(key), authority


@owner_only()
def rotate_key(folder: Path) -> str:
    """A new key in place of a silo's old one, and its fingerprint; it counts once the coordinator has enrolled it."""
    own = settings(folder, name=str)
    if own.get("insecure"):
        raise BadInput(f"{folder}: made with --insecure, without a key")
    return fingerprint(make_key(folder / "key", own["name"]))


@owner_only()
def enroll(folder: Path, key: Path, name: str = "") -> tuple[str, str, str]:
    """Let a silo in by the public key that it made; its name, the key's fingerprint, and that of one it replaces."""
    its, text = _settings_of(folder), read_key(key)
    if its["insecure"]:
        raise BadInput(f"{folder}: made with --insecure, without keys")
    kind, key_itself, *comment = text.split()
    name = name or (comment or [""])[0]
    check_name(name)
    members = folder / "coordinator" / "members"
    others = [
        path.stem for path in members.glob("*.pub") if path.stem != name and key_itself in path.read_text("ascii")
    ]
    if others:
        raise BadInput(f"{key}: is the key of {others[0]}; each silo has its own")
    path = members / f"{name}.pub"
    before = fingerprint(read_key(path)) if path.exists() else ""
    path.write_text(f"{kind} {key_itself} {name}\n", "utf-8")
    return name, fingerprint(text), "" if before == fingerprint(text) else before


@owner_only()
def make_operator(path: Path, password: str) -> str:
    """An operator's key pair, named after its file, under a password unless that is empty; the key's fingerprint."""
    check_name(path.name)
    if path.exists():
        raise BadInput(f"{path}: exists already; give another file")
    return fingerprint(make_key(path, path.name, PrivateFormat.PKCS8, password))


@owner_only()
def trust(silo: Path, key: Path) -> tuple[str, str]:
    """Have a silo answer only runs that an operator whom it trusts has signed; this one's name and fingerprint."""
    text, own = read_key(key), silo / OPERATORS
    name = (text.split()[2:] or [""])[0]
    check_name(name)
    own.mkdir(exist_ok=True)
    (own / f"{name}.pub").write_text(text, "utf-8")
    return name, fingerprint(text)


def remove(folder: Path, name: str) -> None:
    """Lock a silo out: a running coordinator does so within seconds, one that does not run when it is started."""
    members = folder / "coordinator" / "members"
    _settings_of(folder)
    check_name(name)
    found = [path for path in (members / f"{name}.pub", members / name) if path.exists()]
    if not found:
        raise BadInput(
            f"{folder}: no silo '{name}' there; known: {', '.join(sorted(p.stem for p in members.iterdir()))}"
        )
    for path in found:
        path.unlink()


@owner_only()
def renew(folder: Path) -> None:
    """A new certificate for the coordinator, by the same CA: silos need nothing new."""
    its = _settings_of(folder)
    if its["insecure"]:
        raise BadInput(f"{folder}: made with --insecure, without certificates")
    certify(folder / "coordinator", its["host"])


def check_name(name: str) -> None:
    """Refuse a silo's name that could not name a folder, a file and an option alike."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise BadInput(f"silo name '{name}': take lower-case letters, digits and '-', e.g. north-2")


def check_host(host: str) -> None:
    """Refuse what is neither an address nor a name that a certificate could be for."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not re.fullmatch(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*", host) or len(host) > 250:
            raise BadInput(f"--host {host[:100]}: neither an address nor a name; give e.g. fed.example.org") from None


def _write_silo(silo: Path, about: dict[str, Any], policy: str, security: str) -> None:
    (silo / POLICY).write_text(policy, "utf-8")
    _write_settings(silo, about)
    named = {key: about[key] for key in ("name", "host", "port")}
    text = SILO.format(version=VERSION, security=security, **named)
    (silo / "README.md").write_text(text, "utf-8")
    if not about["insecure"]:
        write_service(silo, about["name"])


def _settings_of(folder: Path) -> dict[str, Any]:
    try:
        return settings(folder / "coordinator")
    except BadInput:
        raise BadInput(f"{folder}: not a federation's folder; make one with `coterie federation new`") from None


def _write_settings(folder: Path, table: dict[str, Any]) -> None:
    (folder / "settings.json").write_text(json.dumps(table, indent=1) + "\n", "utf-8")
