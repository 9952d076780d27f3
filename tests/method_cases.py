"""Which checks of the shared suite run on which options of a method."""

from typing import Any

import pytest

from coterie.conformance import CHECKS, check_relabelling
from coterie.methods import make


def conform(name: str, *options: dict[str, object]) -> Any:
    """A parametrisation of `check` and `method` over the suite, for each set of options."""
    made = []
    for i, chosen in enumerate(options):
        by_place = any(isinstance(value, list) for value in chosen.values())
        for check in CHECKS:
            # A list of one value per silo goes by the silos' order, which relabelling changes.
            if not (by_place and check is check_relabelling):
                label = f"{name}-{i}-{check.__name__.removeprefix('check_')}"
                made.append(pytest.param(make(name, chosen), check, id=label))
    return pytest.mark.parametrize(("method", "check"), made)
