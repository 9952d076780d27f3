"""Who starts runs: an operator signs each with their own key, and a silo that trusts operators answers no other."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from coterie.deploy.messages import Answer, Request, Transport
from coterie.deploy.policy import Refused
from coterie.engine.exchange import Failure
from coterie.errors import BadInput

FOLDER = "operators"  # in a silo's folder: the public keys it trusts, in ssh's form, by the operators' names
FUTURE = 300  # seconds by which the clocks of an operator and a silo may differ
SIGNED = ("operator", "run", "study", "time")  # what a signature is of


def signed(key: Path, run: str, study: str, password: Callable[[], str]) -> dict[str, str]:
    """That an operator starts a run of a study, by the hash of its file; `password` is asked where the key has one."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        content = key.read_bytes()
        try:
            private = load_pem_private_key(content, None)
        except TypeError:  # it has a password
            private = load_pem_private_key(content, password().encode())
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"--operator {key}: {error}; make one with `coterie federation operator`") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise BadInput(f"--operator {key}: not an ECDSA key; make one with `coterie federation operator`")
    about = {"operator": key.name, "run": run, "study": study, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    made = private.sign(_statement(about), ec.ECDSA(hashes.SHA384()))
    return about | {"signature": base64.b64encode(made).decode()}


def judged_operator(folder: Path, request: Request) -> str:
    """The operator who started a request's run, verified; empty at a silo that asks for none."""
    keys = {path.stem: path for path in (folder / FOLDER).glob("*.pub")}
    if not keys:
        return ""
    about = request.operator
    name, run = about.get("operator", ""), about.get("run", "")
    if name not in keys:
        raise Refused("this silo answers runs that an operator has signed whom it trusts; this one is not")
    if request.run != run and not request.run.startswith(f"{run}-"):
        raise Refused(f"what {name} has signed is another run")
    if not _verified(keys[name], about):
        raise Refused(f"the signature of {name} is wrong")
    _judge_time(name, about["time"])
    return name


def _judge_time(name: str, text: str) -> None:
    """Refuse a signature from the future: one of the clocks is wrong, and with it every other time."""
    try:
        ahead = (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        raise Refused(f"what {name} has signed holds no time with its zone") from None
    if ahead > FUTURE:
        raise Refused(f"{name} has signed this run {ahead:.0f} s in the future; set both clocks by NTP")


def _verified(key: Path, about: Mapping[str, str]) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    from coterie.deploy.certificates import read_key

    public = load_ssh_public_key(read_key(key).encode())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        public.verify(base64.b64decode(about["signature"]), _statement(about), ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError, KeyError):
        return False
    return True


def _statement(about: Mapping[str, str]) -> bytes:
    return json.dumps({key: about[key] for key in SIGNED}, sort_keys=True).encode()


class Signed:
    """A transport whose every request carries who started the run."""

    def __init__(self, inner: Transport, operator: Mapping[str, str]) -> None:
        self.inner, self.operator = inner, dict(operator)

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        """As the inner one; an answer to the signed request is one to the request."""
        sent = {name: replace(request, operator=self.operator) for name, request in requests.items()}
        found = self.inner.exchange(sent, timeout)
        for name, answer in found.items():
            if isinstance(answer, Answer) and answer.to == sent[name].digest():
                found[name] = replace(answer, to=requests[name].digest())
        return found
