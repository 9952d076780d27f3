"""What deployed parties install is held to hashes, is what the tests run with, and is in the bill of materials."""

import re
from importlib.metadata import requires
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
needed = TOOL["needed"]


def test_every_package_has_one_version_and_the_hashes_of_its_files() -> None:
    assert len(LOCKED) == len(re.findall(r"^[a-z0-9.-]+==", TEXT, re.M)) > 50
    assert TOOL["locked"](re.sub(r"^([a-z0-9.-]+)\[.*?\]", r"\1", TEXT, flags=re.M)) == LOCKED
    assert all(hashes for _, hashes in LOCKED.values())
    assert "://" not in TEXT  # whoever installs chooses the index


def test_the_lock_is_what_the_tests_run_with() -> None:
    pytest.importorskip("flwr")
    found = needed("coterie", TOOL["EXTRAS"], {})
    assert len(found) > 50
    assert {name: LOCKED.get(name, ("missing",))[0] for name in found} == found, "run `make lock`"


def test_pip_finds_a_hash_for_every_requirement_with_and_without_extras() -> None:
    """It takes `name[extra]` for another requirement than `name`: one of them without a hash, and nothing installs."""
    before, entry, after = (
        "a==1 \\\n    --hash=x\n",
        "==2 ; m \\\n    --hash=y \\\n    --hash=z\n",
        "e==3 \\\n    --hash=w\n",
    )
    assert TOOL["twice"](f"{before}b[c, d]{entry}{after}") == f"{before}b{entry}b[c, d]{entry}{after}"
    pytest.importorskip("flwr")
    lines = re.findall(r"^([a-z0-9.-]+)(?:\[(.*)\])?==", TEXT, re.M)
    extras = {name: {*re.findall(r"[a-z0-9.-]+", listed)} for name, listed in lines}  # of the later line
    wanted = set[tuple[str, str]]()
    for name in needed("coterie", TOOL["EXTRAS"], {}).keys() & extras.keys():
        for each in map(Requirement, requires(name) or []):
            if each.extras and (
                each.marker is None or any(each.marker.evaluate({"extra": e}) for e in ("", *extras[name]))
            ):
                wanted |= {(canonicalize_name(each.name), extra) for extra in each.extras}
    assert {("sqlalchemy", "asyncio"), ("uvicorn", "standard")} <= wanted
    assert not [pair for pair in wanted if pair[1] not in extras[pair[0]]], "run `make lock`"


def test_the_bill_of_materials_has_every_package_once() -> None:
    bill = TOOL["bill"](LOCKED, "1.0")
    assert bill["bomFormat"] == "CycloneDX" and bill["specVersion"] == "1.5"
    assert [each["purl"] for each in bill["components"]] == [
        f"pkg:pypi/{name}@{version}" for name, (version, _) in LOCKED.items()
    ]
    assert bill["dependencies"][0]["dependsOn"] == [each["bom-ref"] for each in bill["components"]]
