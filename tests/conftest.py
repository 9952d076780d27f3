"""One thread: the models of the tests are too small to gain from more, and lose much on cores that are busy."""

from collections.abc import Iterator
from pathlib import Path

import plugin
import pytest
import torch

torch.set_num_threads(1)


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
