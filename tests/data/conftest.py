"""Every test has a cache of its own, and never sees the machine's."""

import pytest

from coterie.data import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("COTERIE_DATA", str(folder))
    monkeypatch.setattr(cache, "DEBIAN", folder / "no-packages")
    return folder
