"""Every method, with its defaults, through the one shared suite."""

from collections.abc import Callable

import pytest

from coterie.conformance import CHECKS, Ground, ground_of
from coterie.methods import METHODS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", METHODS)  # all checks of a method one after the other: they share its training
def test_conformance(name: str, check: Callable[[Ground], None]) -> None:
    check(ground_of(METHODS[name]()))
