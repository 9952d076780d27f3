"""The folders of a federation's parties: certificates, keys and settings, to each only what it needs."""

import ipaddress
import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.engine.flower.home import LOOPBACK
from coterie.engine.flower.nginx import configuration
from coterie.engine.flower.policy import FILE as POLICY
from coterie.engine.flower.policy import policy_text
from coterie.errors import BadInput

YEARS = 2  # that a certificate is good for

ITS_README = """# The coordinator of a Coterie federation

    pip install 'coterie[flower]'
    coterie coordinator {folder}

starts it; Ctrl-C stops it. Silos reach it at {host}:{port}.{proxy}
`ca.key` and `server.key` are secrets of this machine. `members/` holds the silos' public keys.
"""
PROXY = """
It starts nginx (Debian: `apt install nginx`) with `nginx.conf`, which publishes only what a silo needs; the rest
of Flower listens on {loopback}:{inner} only. Open port {port} for the silos, and no other.
"""
SILO = """# Silo {name} of a Coterie federation

    pip install 'coterie[flower]'
    coterie silo . --data YOUR_DATA.npz

in this folder takes part until Ctrl-C. It connects to {host}:{port} and needs no open port of its own.

- `silo.toml` is your policy: what may be asked of this silo. Edit it; it is read before every answer.
- `coterie silo ledger .` shows and verifies what left.
- `key` is this silo's identity. It and `state/`, `models/` never leave this folder.
"""


def new_federation(folder: Path, silos: list[str], host: str, port: int, proxy: bool | None) -> None:
    """Make the folders of the coordinator and of every silo."""
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder}: exists already and is not overwritten; give another folder")
    for name in silos:
        check_name(name)
    if len(set(silos)) < len(silos) or not silos:
        raise BadInput("--silos: give each silo a name of its own, e.g. north,south,east")
    if not 1024 <= port < 65535:
        raise BadInput(f"--port {port}: take one from 1024 to 65534")
    coordinator = folder / "coordinator"
    (coordinator / "members").mkdir(parents=True)
    proxy = not is_loopback(host) if proxy is None else proxy
    if not proxy and not is_loopback(host):
        raise BadInput(
            f"--no-proxy: on {host} whoever holds the CA's certificate could start runs; it is for this machine alone"
        )
    inner = port + 1 if proxy else port
    _authority(coordinator, host)
    settings = {"host": host, "port": port, "inner": inner, "proxy": proxy}
    _write(coordinator / "settings.json", json.dumps(settings, indent=1) + "\n")
    _write(coordinator / "nginx.conf", configuration(coordinator.resolve(), LOOPBACK, port, inner, is_loopback(host)))
    told = PROXY.format(loopback=LOOPBACK, inner=inner, port=port) if proxy else ""
    readme = ITS_README.format(folder=coordinator, host=host, port=port, proxy=told)
    _write(coordinator / "README.md", readme)
    for name in silos:
        add_silo(folder, name)


def add_silo(folder: Path, name: str) -> None:
    """Make the folder of one more silo; a running coordinator registers its key within seconds."""
    check_name(name)
    coordinator, silo = folder / "coordinator", folder / "silos" / name
    try:
        settings = json.loads((coordinator / "settings.json").read_text("utf-8"))
    except (OSError, ValueError):
        raise BadInput(f"{folder}: not a federation's folder; make one with `coterie federation new`") from None
    if silo.exists():
        raise BadInput(f"{silo}: exists already; give the silo another name")
    silo.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    _secret(silo / "key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    _write(silo / "key.pub", f"{public} {name}\n")
    _write(silo / "ca.crt", (coordinator / "ca.crt").read_text())
    _write(silo / POLICY, policy_text())
    about = {"name": name, "host": settings["host"], "port": settings["port"]}
    _write(silo / "settings.json", json.dumps(about, indent=1) + "\n")
    _write(silo / "README.md", SILO.format(name=name, host=settings["host"], port=settings["port"]))
    _write(coordinator / "members" / f"{name}.pub", f"{public} {name}\n")


def check_name(name: str) -> None:
    """Refuse a silo's name that could not name a folder, a file and an option alike."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise BadInput(f"silo name '{name}': take small letters, digits and '-', e.g. north-2")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _authority(folder: Path, host: str) -> None:
    """A certificate authority of this federation, and the coordinator's certificate by it."""
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie federation CA")])
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
    try:
        other: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        other = x509.DNSName(host)
    names += [other] if other not in names else []
    authority = (
        _certificate(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = (
        _certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]), ca_name, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _write(folder / "ca.crt", authority.public_bytes(Encoding.PEM).decode())
    _write(folder / "server.pem", server.public_bytes(Encoding.PEM).decode())
    for name, secret in (("ca.key", ca_key), ("server.key", key)):
        _secret(folder / name, secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365 * YEARS))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


def _secret(path: Path, content: bytes) -> None:
    """A file that only its owner may read, from its first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
