"""One thread: the models of the tests are too small to gain from more, and lose much on cores that are busy.

And what tests of several folders share: one small run to look at, and a cache of data sets away from the machine's.
"""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import examined
import fitted
import plugin
import pytest
import slow
import torch
from command import call, small

from coterie.data import cache

torch.set_num_threads(1)
HOSTILE = "<img src=x onerror=alert(1)>\"'"


@pytest.fixture(scope="session", autouse=True)
def spared() -> Iterator[None]:
    """What costs time in every test and that a test of this process cannot see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)  # only a machine that loses power tells the difference
        if not torch.cuda.is_available():  # where every seed is kept for a GPU to come, with the stack that set it
            for device in ("cuda.random", "xpu.random", "mtia"):
                patch.setattr(f"torch.{device}._lazy_call", lambda *_, **__: None)
        patch.setattr("coterie.run.seeds.MINUTE", 0.0)  # one seed: three take three times as long
        examined.remember(patch)
        fitted.remember(patch)
        patch.setattr("coterie.run.baselines.TREES", 10)  # how many there are, no test looks at
        yield


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    study = small(folder, **{'name = "small"': "name = '''" + HOSTILE.replace("'", "") + "'''\nseeds = [0, 1]"})
    assert call("run", study, "--methods", "separate,fedamp,fedem", "--out", folder / "out", "--quiet") == 0
    return folder / "out"


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch):
    """A cache of the test's own in the place of the machine's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("COTERIE_DATA", str(folder))
    monkeypatch.setattr(cache, "DEBIAN", folder / "no-packages")
    return folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow.mark([item for item in items if item.path.is_relative_to(config.rootpath / "tests")], config.rootpath)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note what a test takes, where that is asked for."""
    began = slow.seconds()
    result = yield
    slow.note(item.nodeid, slow.seconds() - began)
    return result


def pytest_collection_finish() -> None:
    """Libraries and tests stay until the end: no collection of garbage need look at them again and again."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say on how many inputs the fuzz tests ran, whichever processes ran them."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    counts = [count for report in reports for key, count in report.user_properties if key == "inputs"]
    if counts:
        terminalreporter.write_line(f"fuzz: {sum(counts):,} inputs in {len(counts)} tests")


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy package, as pip would leave it in a folder."""
    return plugin.install_toy(tmp_path_factory.mktemp("site"))


@pytest.fixture
def toy(toy_folder: Path) -> Iterator[None]:
    """The toy package is installed."""
    with pytest.MonkeyPatch.context() as patch:
        plugin.use(toy_folder, patch)
        yield
    plugin.forget()
