"""`coterie run --method-file my.py`: methods of one's own for one run; no study file and no federation runs a file."""

import hashlib
import re
import sys
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType

from coterie.engine.method import Method
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.registry import OWN, Origin

MODULE = "method_file"
CHECKSUM = "sha256:"


class Source(SourceLoader):
    """Runs the very bytes that the checksum is of, and no compiled copy of them."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = str(path), path.read_bytes()

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: str | bytes) -> bytes:
        return self.text


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
        source = Source(path)
        source.exec_module(module)
    except OSError as error:
        raise BadInput(f"--method-file {path}: {error.strerror or error}; give a Python file") from None
    except Exception as error:  # in a file of one's own anything may fail
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"--method-file {path}: cannot be run ({why}); repair it") from None
    kinds = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == MODULE]
    found = {_name(each): each for each in kinds if issubclass(each, Method)}
    if not found:
        raise BadInput(f"--method-file {path}: defines no method; `coterie new-method` writes one to start from")
    return Origin(str(path), CHECKSUM + hashlib.sha256(source.text).hexdigest()), found


def _name(kind: type[Method]) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__).replace("_", "-").lower()
