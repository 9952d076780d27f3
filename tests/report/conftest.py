"""One small run that the tests of this folder look at."""

import pytest
from command import call, small

HOSTILE = "<img src=x onerror=alert(1)>\"'"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    study = small(folder, **{'name = "small"': "name = '''" + HOSTILE.replace("'", "") + "'''\nseeds = [0, 1]"})
    assert call("run", study, "--methods", "separate,fedamp,fedem", "--out", folder / "out", "--quiet") == 0
    return folder / "out"
