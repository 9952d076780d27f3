"""Looks at a silo's policy and data before anything is asked of them: how many training samples, and what is odd."""

import json
import sys
from pathlib import Path

from coterie.deploy.home import settings
from coterie.deploy.own import Raw, SiloSource, own_silo, read_source
from coterie.deploy.policy import read_policy
from coterie.errors import BadInput


def main(folder: Path, source: SiloSource) -> None:
    """Both as JSON on stdout, or the mistake as one line on stderr."""
    try:
        read_policy(folder)
        name, remarks = settings(folder, name=str)["name"], list[str]()
        if source.archive:
            samples = len(own_silo(name, source.path)[0].train)
        else:
            raw = Raw(name, source)
            samples, remarks = len(raw.split.train), raw.remarks()
    except BadInput as error:
        sys.exit(str(error))
    sys.stdout.write(json.dumps({"samples": samples, "remarks": remarks}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), read_source(sys.argv[2])[0])
