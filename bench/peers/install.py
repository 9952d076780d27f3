"""Install the peers, each in an environment of its own: `python bench/peers/install.py [NAME ...]`.

Versions are in constraints.txt beside this file. Why a peer does not install is printed in a line; the others go on.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
PEERS = {"fluke": ["fluke-fl"], "pfl": ["pfl[pytorch]"], "flower": ["flwr[simulation]", "torch"]}


def python(peer: str) -> Path:
    """The interpreter of a peer's environment."""
    return HERE / f".venv-{peer}" / "bin" / "python"


def install(peer: str) -> str | None:
    """Why a peer could not be installed, or None."""
    venv.create(python(peer).parents[1], with_pip=True, clear=True)
    command = [python(peer), "-m", "pip", "install", "--quiet", "--constraint", HERE / "constraints.txt", *PEERS[peer]]
    done = subprocess.run(command, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return None if done.returncode == 0 else (errors or ["pip failed"])[0]


def main() -> int:
    """All of them, or those named."""
    failed = 0
    for peer in sys.argv[1:] or PEERS:
        if peer not in PEERS:
            print(f"{peer}: no such peer; there are {', '.join(PEERS)}")
            return 2
        reason = install(peer)
        failed += reason is not None
        print(f"{peer}: {'installed' if reason is None else f'not installed: {reason}'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
