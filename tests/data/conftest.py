"""No test of this folder sees the machine's data sets."""

import pytest


@pytest.fixture(autouse=True)
def _away_from_the_machine(own_cache):
    pass
