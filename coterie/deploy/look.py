"""Looks at a silo's policy and data, and prints how many training samples it has."""

import sys
from pathlib import Path

from coterie.deploy.home import settings
from coterie.deploy.own import SiloSource, read_source
from coterie.deploy.policy import read_policy
from coterie.deploy.silo import declared
from coterie.errors import BadInput


def main(folder: Path, source: SiloSource) -> None:
    """The number on stdout, or the mistake as one line on stderr."""
    try:
        read_policy(folder)
        found = declared(settings(folder, name=str)["name"], source)
    except BadInput as error:
        sys.exit(str(error))
    sys.stdout.write(f"{int(found.sizes[0, 0])}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), read_source(sys.argv[2])[0])
