"""A federation's certificate authority, the coordinator's certificate by it, and the silos' keys."""

import base64
import hashlib
import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.deploy.home import LOOPBACK
from coterie.errors import BadInput

AUTHORITY_YEARS, SERVER_YEARS = 10, 2  # that each is good for
WARNED_DAYS = 30  # before one expires
AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie federation CA")])


def make_authority(folder: Path) -> None:
    """A certificate authority of this federation: `ca.crt` and `ca.key`."""
    key = ec.generate_private_key(ec.SECP384R1())
    made = (
        _certificate(AUTHORITY, key, AUTHORITY_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(made.public_bytes(Encoding.PEM))
    _secret(folder / "ca.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def certify(folder: Path, host: str) -> None:
    """The coordinator's certificate, new or in place of one that expires: `server.pem` and `server.key`."""
    try:
        authority = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder / 'ca.key'}: {error}; without it no certificate can be made") from None
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
    try:
        other: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        other = x509.DNSName(host)
    names += [other] if other not in names else []
    key = ec.generate_private_key(ec.SECP384R1())
    made = (
        _certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]), key, SERVER_YEARS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / "server.key").unlink(missing_ok=True)
    _secret(folder / "server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "server.pem").write_bytes(made.public_bytes(Encoding.PEM))


def make_key(path: Path, name: str, form: PrivateFormat = PrivateFormat.OpenSSH, password: str = "") -> str:
    """A key pair, as Flower wants a silo's: a file, and beside it one that ends with .pub, whose text is returned."""
    path.unlink(missing_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    locked = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    _secret(path, key.private_bytes(Encoding.PEM, form, locked))
    text = f"{public} {name}\n"
    path.with_name(f"{path.name}.pub").write_text(text, "utf-8")
    return text


def read_key(path: Path) -> str:
    """A silo's public key in ssh's form, as Flower takes it; anything else is refused."""
    try:
        text = path.read_text("ascii")
        key = load_ssh_public_key(text.encode())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{path}: no public key ({error}); take key.pub of the silo's folder") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise BadInput(f"{path}: not an ECDSA P-384 key; take key.pub of a folder that `coterie silo init` made")
    return text


def fingerprint(public: str) -> str:
    """What people compare of a public key in ssh's form; `ssh-keygen -l` prints the same."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def read_authority(path: Path) -> tuple[str, str]:
    """A federation's CA certificate, and what people compare of it."""
    try:
        text = path.read_text("ascii")
        found = x509.load_pem_x509_certificate(text.encode())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: no certificate ({error}); take the coordinator's ca.crt") from None
    return text, f"SHA256:{found.fingerprint(hashes.SHA256()).hex()}"


def days_left(path: Path) -> float:
    """For how many days a certificate is still good."""
    found = x509.load_pem_x509_certificate(path.read_bytes())
    return (found.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)


def expiry(coordinator: Path) -> str:
    """A warning where the coordinator's certificate expires soon; empty otherwise, and where there is none."""
    path = coordinator / "server.pem"
    if not path.exists() or (days := days_left(path)) > WARNED_DAYS:
        return ""
    return f"{path} expires in {days:.0f} days; renew it with `coterie federation renew`"


def _certificate(subject: x509.Name, key: ec.EllipticCurvePrivateKey, years: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(AUTHORITY)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365 * years))
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


def _secret(path: Path, content: bytes) -> None:
    """A file that only its owner may read, from its first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
