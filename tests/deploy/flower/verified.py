"""Which state of this part the long tests with real processes have passed on.

python tests/deploy/flower/verified.py           says whether it is this one (exit code 0) or another (1)
python tests/deploy/flower/verified.py --write   notes that it is this one
"""

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
NOTE = Path(__file__).with_name(".verified")
PART = (
    "coterie/deploy/**/*.py",
    "coterie/commands/federation.py",
    "coterie/commands/federation_view.py",
    "coterie/codec.py",
    "coterie/wire.py",
    "tests/deploy/**/*.py",
)


def digest() -> str:
    """Of the files that these tests are about, by name and content."""
    total = hashlib.sha256()
    for path in sorted(path for pattern in PART for path in ROOT.glob(pattern)):
        total.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        NOTE.write_text(digest() + "\n", "utf-8")
    else:
        sys.exit(not (NOTE.exists() and NOTE.read_text("utf-8").strip() == digest()))
