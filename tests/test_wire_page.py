"""docs/wire.md says what the types say."""

from pathlib import Path

from coterie.methods import METHODS
from coterie.wire_page import page

WRITTEN = Path(__file__).parents[1] / "docs" / "wire.md"


def test_the_page_is_fresh() -> None:
    assert WRITTEN.read_text("utf-8") == page(), "stale: run python -m coterie.wire_page > docs/wire.md"


def test_every_method_has_a_section_and_a_page_of_its_own() -> None:
    text = WRITTEN.read_text("utf-8")
    for name in METHODS:
        assert f"\n## {name}\n" in text
        assert (WRITTEN.parent / "methods" / f"{name}.md").exists(), f"docs/methods/{name}.md is missing"
