"""One thread: the models of the tests are too small to gain from more, and lose much on cores that are busy."""

import pytest
import torch

torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say on how many inputs the fuzz tests ran, whichever processes ran them."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    counts = [count for report in reports for key, count in report.user_properties if key == "inputs"]
    if counts:
        terminalreporter.write_line(f"fuzz: {sum(counts):,} inputs in {len(counts)} tests")
