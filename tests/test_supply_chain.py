"""What deployed parties install is held to hashes, is what the tests run with, and is in the bill of materials."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from runpy import run_path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "supply_chain.py"
if not SCRIPT.exists():
    pytest.skip("no part of the source distribution", allow_module_level=True)
TOOL = run_path(str(SCRIPT))
TEXT = TOOL["LOCK"].read_text("utf-8")
LOCKED = TOOL["locked"](TEXT)


def needed(name: str, extras: tuple[str, ...], seen: dict[str, str]) -> dict[str, str]:
    """All that a package needs in this environment, with the versions that are installed."""
    for text in distribution(name).requires or []:
        asked = Requirement(text)
        if asked.marker is not None and not any(asked.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        known = canonicalize_name(asked.name)
        try:
            version = distribution(known).version.partition("+")[0]
        except PackageNotFoundError:
            continue  # torch's own libraries, of a build that is not this one
        if known not in seen:
            seen[known] = version
            needed(known, tuple(asked.extras), seen)
    return seen


def test_every_package_has_one_version_and_the_hashes_of_its_files() -> None:
    assert len(LOCKED) == len(re.findall(r"^[a-z0-9.-]+==", TEXT, re.M)) > 50
    assert all(hashes for _, hashes in LOCKED.values())
    assert "://" not in TEXT  # whoever installs chooses the index


def test_the_lock_is_what_the_tests_run_with() -> None:
    pytest.importorskip("flwr")
    found = needed("coterie", TOOL["EXTRAS"], {})
    assert len(found) > 50
    assert {name: LOCKED.get(name, ("missing",))[0] for name in found} == found, "run `make lock`"


def test_the_bill_of_materials_has_every_package_once() -> None:
    bill = TOOL["bill"](LOCKED, "1.0")
    assert bill["bomFormat"] == "CycloneDX" and bill["specVersion"] == "1.5"
    assert [each["purl"] for each in bill["components"]] == [
        f"pkg:pypi/{name}@{version}" for name, (version, _) in LOCKED.items()
    ]
    assert bill["dependencies"][0]["dependsOn"] == [each["bom-ref"] for each in bill["components"]]
