"""What one more answer costs a silo whose ledger is long, in CPU seconds.

python bench/ledger.py [--lines 100000]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from coterie.deploy import ledger
from coterie.deploy.messages import Request
from coterie.methods.parts.averaging import ModelUp


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--lines", type=int, default=100_000)
    lines = ask.parse_args().lines
    with tempfile.TemporaryDirectory() as folder:
        kept, up = ledger.Ledger(Path(folder)), ModelUp(w=torch.zeros(1, 100))
        kept.record(Request("train", "north", "run", 0), up)
        entry = json.loads(kept.path.read_text())
        with kept.path.open("w") as file:  # as the silo would have written them, one by one
            last = ledger.START
            for round in range(lines):
                entry = {**entry, "round": round, "before": last}
                del entry["hash"]
                last = entry["hash"] = ledger._hash(entry)
                file.write(json.dumps(entry) + "\n")
        kept.head.write_text(json.dumps({"entries": lines, "hash": last}))
        for place in range(3):
            began = time.process_time()
            kept.record(Request("train", "north", "run", lines + place), up)
            print(f"line {lines + place + 1}: {time.process_time() - began:.4f} CPU s", flush=True)


if __name__ == "__main__":
    main()
