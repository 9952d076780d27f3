"""`coterie run --method-file my.py`: methods of one's own for one run; no study file and no federation runs a file."""

import hashlib
import re
import sys
from pathlib import Path
from types import ModuleType

from coterie.engine.method import Method
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.registry import OWN, Origin

MODULE = "method_file"
CHECKSUM = "sha256:"


def lend_methods(path: Path | None) -> None:
    """Let this process find the methods of a file by their names, in place of those of the file before."""
    METHODS.lent = (OWN, {})
    if path is not None:
        origin, found = _read(path)
        for name in found.keys() & METHODS.keys():
            raise BadInput(
                f"--method-file {path}: {METHODS.origin(name) or OWN} has a method '{name}'; rename the class"
            )
        METHODS.lent = (origin, found)


def _read(path: Path) -> tuple[Origin, dict[str, type[Method]]]:
    """Every method that a file defines; MyMethod is my-method."""
    module = sys.modules[MODULE] = ModuleType(MODULE)  # where a dataclass looks for its types
    try:
        text = path.read_bytes()
        exec(compile(text, str(path), "exec"), vars(module))  # what is run is what the checksum is of
    except OSError as error:
        raise BadInput(f"--method-file {path}: {error.strerror or error}; give a Python file") from None
    except Exception as error:  # in a file of one's own anything may fail
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"--method-file {path}: cannot be run ({why}); repair it") from None
    kinds = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == MODULE]
    found = {_name(each): each for each in kinds if issubclass(each, Method)}
    if not found:
        raise BadInput(f"--method-file {path}: defines no method; `coterie new-method` writes one to start from")
    return Origin(str(path), CHECKSUM + hashlib.sha256(text).hexdigest()), found


def _name(kind: type[Method]) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__).replace("_", "-").lower()
