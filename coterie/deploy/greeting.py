"""A silo's first look at the coordinator: is it there, and is it who it claims to be?"""

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from coterie.errors import BadInput

STRANGER = "its certificate is not by this federation's CA; is ca.crt the one that came with this folder?"
MISTAKES = {  # OpenSSL's numbers
    7: STRANGER,
    18: STRANGER,
    19: STRANGER,
    20: STRANGER,
    10: "its certificate has expired; the coordinator renews it with `coterie federation renew`",
    62: "its certificate is for another host; is the host in settings.json right?",
    64: "its certificate is for another address; is the host in settings.json right?",
}


def greet(host: str, port: int, ca: Path | None, say: Callable[[str], None]) -> None:
    """Wait until the coordinator can be reached, and refuse one that cannot prove who it is; `ca` None: none can."""
    printed = False
    context = None if ca is None else _trusting(ca)
    while True:
        try:
            with socket.create_connection((host, port), 10) as raw:
                if context is not None:
                    context.wrap_socket(raw, server_hostname=host).close()
                return
        except ssl.SSLCertVerificationError as error:
            why = MISTAKES.get(error.verify_code, error.verify_message)
            raise BadInput(f"the coordinator at {host}:{port} cannot be trusted: {why}") from None
        except (OSError, ssl.SSLError) as error:
            if not printed:
                say(f"{host}:{port} cannot be reached ({error}); trying again until it can")
            printed = True
            time.sleep(3)


def _trusting(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"{ca}: not a certificate ({error}); take it from the folder the coordinator sent") from None
