"""Is anything slower than it was? Ratios against the figures that were kept, before a change lands.

    python bench/regress.py [--device cpu|cuda] [--only NAME] [--repeat N]     # 1 if a work is slower than it was
    python bench/regress.py … --keep                                            # these are the figures from now on

What is compared is the ratio of plain sequential PyTorch to ours, both measured in turn in one run (`bench/speed.py`):
a busy machine is busy for both. A work counts as slower when even its best turn has a ratio below 0.9 of the kept one.
The figures lie in docs/figures/speed.json, those of docs/performance.md, each with the commit that it is of. Where our
side alone was measured since, its time is the newer one, and the sequential side that of `sequential_commit`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[1] / "docs" / "figures" / "speed.json"
LIMIT = 0.9  # of the kept ratio
FIELDS = ("ours_ms", "sequential_ms", "ratio", "ratio_low", "ratio_high")
Figures = dict[str, dict[str, Any]]  # by device and work


def compared(kept: Mapping[str, Mapping[str, Any]], found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each work that was measured, those first that are slower than they were."""
    lines = []
    for name, now in found.items():
        before = kept.get(name)
        if before is None:
            lines.append((1, f"{name}: ratio {now['ratio']:.2f}, and none is kept of it; keep this one with --keep"))
            continue
        slower = is_slower(before, now)
        at = f" at {before['commit']}" if "commit" in before else ""
        against = f"{now['ratio'] / before['ratio']:.2f} of the kept {before['ratio']:.2f}{at}"
        spread = f"{now['ratio']:.2f} ({now['ratio_low']:.2f} to {now['ratio_high']:.2f})"
        lines.append((0 if slower else 2, f"{name}: ratio {spread}, {against}{'; SLOWER' if slower else ''}"))
    return [line for _, line in sorted(lines, key=lambda each: each[0])]


def is_slower(kept: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether even the best turn is slower than it was by more than chance explains."""
    return bool(now["ratio_high"] < LIMIT * kept["ratio"])


def commit() -> str:
    """What is measured; with a + where files differ from it."""
    asked = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


def measured(device: str, only: str | None, repeat: int) -> Figures:
    """What `bench/speed.py` measures, by device and work."""
    from speed import measured as timed
    from works import WORKS

    found: Figures = {}
    for work in WORKS:
        if only == work.name or not (only or work.asked or work.device != device):
            here = replace(work, precision="float32") if device == "cpu" else work
            line: Mapping[str, Any] = timed(here, device, repeat)
            found[f"{device} {work.name}"] = {field: float(line[field]) for field in FIELDS}
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measure, compare, and keep if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", help="one work by its name")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="keep these figures in the place of the last")
    given = parser.parse_args(words)
    kept: Figures = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    found = measured(given.device, given.only, given.repeat)
    for line in compared(kept, found):
        print(line)
    if given.keep:
        at = {"commit": commit()}
        rounded = {name: {key: float(f"{each[key]:.4g}") for key in FIELDS} | at for name, each in found.items()}
        KEPT.write_text(json.dumps({**kept, **rounded}, indent=1) + "\n", "utf-8")
        return 0
    return int(any(name in kept and is_slower(kept[name], now) for name, now in found.items()))


if __name__ == "__main__":
    sys.exit(main())
