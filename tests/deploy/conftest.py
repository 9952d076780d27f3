"""One federation of real Flower processes for all tests that want one: it takes longest to start."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from real import NGINX, Real, digits


@pytest.fixture(scope="session")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Three silos behind TLS, keys and, where there is one, a real nginx; tests leave it as they found it."""
    folder: Path = tmp_path_factory.mktemp("real") / "fed"
    made = Real(folder, digits(["north", "south", "east"]), proxy=NGINX)
    try:
        made.started()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder)
