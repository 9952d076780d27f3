"""The corpus is as large as it is said to be."""

import importlib
from pathlib import Path

from fuzzing import PLANNED

HERE = Path(__file__).parent


def test_more_than_ten_thousand_inputs_are_planned() -> None:
    for path in sorted(HERE.glob("test_*.py")):
        importlib.import_module(path.stem)
    assert sum(PLANNED.values()) >= 12_000, PLANNED
