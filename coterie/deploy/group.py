"""The group key of a federation's silos: made by one of them, sealed to each member's key, never seen by the server.

A sealed key is a file that anybody may carry, the coordinator too: it opens with the member's private key alone
(ECDH on P-384 with a key of its own, HKDF, ChaCha20-Poly1305), and it is signed by the silo that made it, so that
nobody can put a key that they know in its place. A member who leaves means a new key.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from coterie.deploy.certificates import fingerprint, read_key
from coterie.deploy.home import owner_only, write_whole
from coterie.deploy.parties import check_name
from coterie.errors import BadInput
from coterie.secure.masks import KEY, subkey

PEERS = "peers"  # in a silo's folder: other silos' public keys
FILE, SEALED = "group.key", ".sealed"  # in a silo's folder; how the files end that carry it
SIGNED = ("to", "by", "ephemeral", "box")


@owner_only()
def make_group(folder: Path, members: Sequence[Path]) -> tuple[list[Path], str]:
    """A new group key, kept here and sealed to each of these public keys: the files to hand out, its fingerprint."""
    group, own = secrets.token_bytes(KEY), _private(folder)
    made = []
    for path in members:
        name, text = _member(path)
        sealed = _sealed(group, own, text)
        made.append(folder / "group" / f"{name}{SEALED}")
        if made[-1] in made[:-1]:
            raise BadInput(f"{path}: a second key of '{name}'; give each member's once")
        write_whole(made[-1], json.dumps(sealed, indent=1).encode())
    write_whole(folder / FILE, group.hex().encode())
    return made, group_fingerprint(group)


@owner_only()
def join_group(folder: Path, sealed: Path, maker: Path) -> str:
    """Take a group key that was sealed to this silo by the one with this public key; the group key's fingerprint."""
    own, by = _private(folder), read_key(maker)
    try:
        table = json.loads(sealed.read_text("utf-8"))
        parts = {key: str(table[key]) for key in (*SIGNED, "signature")}
        signature, ephemeral, box = (base64.b64decode(parts[key]) for key in ("signature", "ephemeral", "box"))
        _public(by).verify(signature, _statement(parts), ec.ECDSA(hashes.SHA384()))
        theirs = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), ephemeral)
        aad = _statement({"to": fingerprint(read_key(folder / "key.pub")), "by": fingerprint(by)})
        group = ChaCha20Poly1305(_derived(own.exchange(ec.ECDH(), theirs), ephemeral)).decrypt(bytes(12), box, aad)
    except InvalidSignature:
        raise BadInput(f"{sealed}: not signed with {maker}; compare that key's fingerprint with its silo") from None
    except InvalidTag:
        raise BadInput(f"{sealed}: not sealed to this silo's key; ask for one that is") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{sealed}: no sealed group key ({error}); ask for it again") from None
    write_whole(folder / FILE, group.hex().encode())
    return group_fingerprint(group)


def group_of(folder: Path, run: str) -> bytes:
    """What the silos of a run share: of the group key and the run's name."""
    path = folder / FILE
    try:
        group = bytes.fromhex(path.read_text("ascii"))
    except FileNotFoundError:
        raise BadInput(
            "the run hides models under a group key that this silo lacks; take one with `coterie silo join`"
        ) from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: damaged ({error}); take it again with `coterie silo join`") from None
    if len(group) != KEY:
        raise BadInput(f"{path}: damaged (not {KEY} bytes); take it again with `coterie silo join`")
    return subkey(group, "run", run)


@owner_only()
def meet(folder: Path, keys: Sequence[Path]) -> dict[str, str]:
    """Keep other silos' public keys, by which this one shares a secret with each; their fingerprints by name."""
    found = {}
    for path in keys:
        name, text = _member(path)
        known, found[name] = folder / PEERS / f"{name}.pub", fingerprint(text)
        if known.exists() and fingerprint(read_key(known)) != found[name]:
            raise BadInput(f"{path}: another key of '{name}' than {known}; if it has a new one, remove that file first")
        write_whole(known, text.encode())
    return found


def pair_of(folder: Path, name: str, run: str) -> Callable[[str], bytes]:
    """What the silo of this name shares with another one in a run: of their keys, and of the run's name."""
    own = _private(folder)

    def pair(other: str) -> bytes:
        check_name(other)  # comes from the coordinator, and becomes a path
        path = folder / "key.pub" if other == name else folder / PEERS / f"{other}.pub"
        if not path.is_file():
            raise BadInput(f"the run sums uploads with '{other}', whose key this silo lacks; see `coterie silo meet`")
        secret = own.exchange(ec.ECDH(), _public(read_key(path)))
        return subkey(HKDF(hashes.SHA384(), KEY, None, b"coterie pair").derive(secret), "run", run)

    return cache(pair)


def group_fingerprint(group: bytes) -> str:
    """What people compare of a group key, which it cannot be found from."""
    digest = hashlib.sha256(subkey(group, "fingerprint")).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _member(path: Path) -> tuple[str, str]:
    """The name of the silo that a public key is of, and the key in ssh's form."""
    text = read_key(path)
    name = (text.split()[2:] or [path.stem])[0]
    check_name(name)
    return name, text


def _sealed(group: bytes, own: ec.EllipticCurvePrivateKey, member: str) -> dict[str, str]:
    once = ec.generate_private_key(ec.SECP384R1())
    ephemeral = once.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    by = own.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    names = {"to": fingerprint(member), "by": fingerprint(by)}
    key = _derived(once.exchange(ec.ECDH(), _public(member)), ephemeral)
    box = ChaCha20Poly1305(key).encrypt(bytes(12), group, _statement(names))  # the key is used once
    parts = names | {"ephemeral": base64.b64encode(ephemeral).decode(), "box": base64.b64encode(box).decode()}
    signature = own.sign(_statement(parts), ec.ECDSA(hashes.SHA384()))
    return parts | {"signature": base64.b64encode(signature).decode()}


def _derived(shared: bytes, ephemeral: bytes) -> bytes:
    made: bytes = HKDF(hashes.SHA384(), KEY, None, b"coterie group key" + ephemeral).derive(shared)
    return made


def _statement(parts: dict[str, str]) -> bytes:
    return json.dumps({key: parts[key] for key in SIGNED if key in parts}, sort_keys=True).encode()


def _private(folder: Path) -> ec.EllipticCurvePrivateKey:
    path = folder / "key"
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{path}: no private key ({error}); it is made by `coterie silo init`") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _public(text: str) -> ec.EllipticCurvePublicKey:
    key = load_ssh_public_key(text.encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key
