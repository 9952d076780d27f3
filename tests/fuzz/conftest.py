"""How many inputs a fuzz test ran on travels with its report; code that hangs outside of Python is ended."""

import faulthandler
import importlib
from collections.abc import Iterator

import pytest
from fuzzing import DONE, PLANNED, SCALE

from coterie.data import sets

STUCK = 600 * max(SCALE, 1)  # seconds of one test


@pytest.fixture(autouse=True, scope="session")
def imported() -> None:
    """What is imported when first needed is imported now: its memory is no input's."""
    sets.digits()
    for name in ("plotly.offline", "PIL.Image", "coterie.deploy.flower.grid", "coterie.run.experiment"):
        importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    name = f"{item.module.__name__}.{item.function.__name__}"
    before = DONE[name]
    faulthandler.dump_traceback_later(STUCK, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if name in PLANNED:
            item.user_properties.append(("inputs", DONE[name] - before))
