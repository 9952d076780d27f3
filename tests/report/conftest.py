"""One small run that the tests of this folder look at, and a browser to look with."""

import shutil

import pytest
from command import call, small

HOSTILE = "<img src=x onerror=alert(1)>\"'"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    study = small(folder, **{'name = "small"': "name = '''" + HOSTILE.replace("'", "") + "'''\nseeds = [0, 1]"})
    assert call("run", study, "--methods", "separate,fedamp,fedem", "--out", folder / "out", "--quiet") == 0
    return folder / "out"


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Debian's chromium: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()
