"""What the pages list of secure levels is what methods allow."""

import re
from pathlib import Path

import pytest

from coterie.methods import LEVELS, METHODS, learned, level_of, levels, make

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def allowed() -> dict[str, tuple[str, ...]]:
    return {name: levels(METHODS[name]()) for name in METHODS.packaged}


def test_the_page_lists_the_methods_of_each_level(allowed: dict[str, tuple[str, ...]]) -> None:
    text = (ROOT / "docs" / "secure.md").read_text("utf-8")
    rows = re.findall(r"^\| `(blind|secagg)` \| ([^|]*) \|", text, re.MULTILINE)
    (_, sums), (_, comparing), (level, _) = rows
    assert level == "secagg"
    blind = {*sums.split(", "), *comparing.split(", ")}
    assert blind == {name for name, found in allowed.items() if "blind" in found}
    assert {*sums.split(", "), "scaffold"} == {name for name, found in allowed.items() if "secagg" in found}


def test_the_readme_has_the_levels_of_each_group(allowed: dict[str, tuple[str, ...]]) -> None:
    table = re.search(r"\| what silos share .*?\n\n", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert table is not None
    for line in table[0].strip().splitlines()[2:]:
        _, _, names, column, _ = line.split("|")
        found = {name: allowed[name] for name in re.findall(r"`([\w-]+)`", names)}
        for level in LEVELS:
            assert (level in column) == any(level in each for each in found.values()), line


def test_the_page_on_which_method_has_every_method_and_its_levels(allowed: dict[str, tuple[str, ...]]) -> None:
    page = (ROOT / "docs" / "which-method.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` \|.*\| ([^|]*) \|$", page, re.MULTILINE))
    assert rows == {name: ", ".join(found) or "-" for name, found in allowed.items()}


def test_what_the_server_learns_is_of_the_method_and_its_level() -> None:
    assert level_of(make("fedavg", {})) is None
    assert level_of(make("fedamp", {"blind": {}})) == "blind"
    assert "inner products" in learned("blind", make("fedamp", {}))
    assert "inner products" not in learned("blind", make("fedavg", {}))
