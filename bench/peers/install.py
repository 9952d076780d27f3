"""Install the peers, each in an environment of its own: `python bench/peers/install.py [NAME ...]`.

Versions are in constraints.txt beside this file, or in constraints-NAME.txt. Why a peer does not install is printed in
a line; the others go on.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
# What pip is asked for, one call after the other. FL4Health demands torch 2.6 and Python 3.10, without need: it comes
# alone, and then what it imports.
PEERS = {
    "fluke": [["fluke-fl"]],
    "pfl": [["pfl[pytorch]"]],
    "flower": [["flwr[simulation]", "torch"]],
    "nvflare": [["nvflare", "torch"]],
    "fl4health": [
        ["--no-deps", "--ignore-requires-python", "fl4health"],
        ["flwr", "torch", "torchvision", "torchmetrics", "opacus", "peft", "scikit-learn", "wandb"],
    ],
}


def python(peer: str) -> Path:
    """The interpreter of a peer's environment."""
    return HERE / f".venv-{peer}" / "bin" / "python"


def install(peer: str) -> str | None:
    """Why a peer could not be installed, or None."""
    venv.create(python(peer).parents[1], with_pip=True, clear=True)
    own = HERE / f"constraints-{peer}.txt"
    pip = [python(peer), "-m", "pip", "install", "--quiet"]
    for asked in PEERS[peer]:
        command = [*pip, "--constraint", own if own.exists() else HERE / "constraints.txt", *asked]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "pip failed")
    return None


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
