"""docs/wire.md says what the types say."""

from pathlib import Path

from coterie.commands.wire_page import page
from coterie.methods import METHODS

WRITTEN = Path(__file__).parents[2] / "docs" / "wire.md"


def test_the_page_is_fresh() -> None:
    assert WRITTEN.read_text("utf-8") == page(), "stale: run python -m coterie.commands.wire_page > docs/wire.md"


def test_every_method_has_a_section_and_a_page_of_its_own() -> None:
    text = WRITTEN.read_text("utf-8")
    for name in METHODS:
        assert f"\n## {name}\n" in text
        assert (WRITTEN.parent / "methods" / f"{name}.md").exists(), f"docs/methods/{name}.md is missing"


def test_the_page_about_privacy_has_a_row_for_every_method_with_all_that_leaves_it() -> None:
    text = (WRITTEN.parent / "privacy.md").read_text("utf-8")
    table = text.split("## Who sees what")[1].split("\n## ")[0]
    rows = dict(line.removeprefix("| ").split(" | ")[:2] for line in table.splitlines() if line.startswith("| "))
    for name, kind in METHODS.items():
        fields = [f"`{field}`" for field in kind().up.__dataclass_fields__]
        assert rows[name] == (", ".join(fields) or "nothing"), name
