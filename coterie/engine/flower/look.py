"""Looks at a silo's policy and data, and says how many training samples it has."""

import sys
from pathlib import Path

from coterie.engine.flower.home import settings
from coterie.engine.flower.own import own_silo
from coterie.engine.flower.policy import read_policy
from coterie.errors import BadInput


def main(folder: Path, data: Path) -> None:
    """The number on stdout, or the mistake as one line on stderr."""
    try:
        read_policy(folder)
        silo, _ = own_silo(settings(folder)["name"], data)
    except BadInput as error:
        sys.exit(str(error))
    sys.stdout.write(f"{len(silo.train)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
