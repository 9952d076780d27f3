"""What a deployed party installs: every package held to its hash, and a bill of materials made from that.

python .ci/supply_chain.py lock    writes the lock anew, of the versions installed here (asks the package index)
python .ci/supply_chain.py sbom    writes build/sbom.cdx.json, in CycloneDX's form, from the lock (asks nobody)
python .ci/supply_chain.py sizes   prints how many MB of packages Coterie brings, and each extra adds, as installed here
"""

import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, distributions, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "coterie" / "deploy" / "service" / "requirements-deploy.txt"
SBOM = ROOT / "build" / "sbom.cdx.json"
EXTRAS = ("flower", "privacy", "images")  # what a coordinator or a silo may need
HEAD = """# What coterie[{extras}] needs, each package by its version and the hashes of its files; made by `make lock`.
# pip install --require-hashes --requirement requirements-deploy.txt
# pip install --no-deps coterie-{version}-py3-none-any.whl
"""


def lock() -> None:
    """Write the lock: the versions that the tests ran with, and hashes of all files that the index has of them."""
    sys.path.insert(0, str(ROOT))
    from coterie.version import VERSION

    found = {each.name: each.version.partition("+")[0] for each in distributions() if each.name != "coterie"}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(f"{name}=={version}" for name, version in found.items()))
        constraints.flush()
        program = [str(Path(sys.executable).with_name("uv")), "pip", "compile", str(ROOT / "pyproject.toml")]
        options = [word for extra in EXTRAS for word in ("--extra", extra)]
        options += ["--constraint", constraints.name, "--generate-hashes", "--universal", "--python-version", "3.11"]
        options += ["--no-strip-extras"]
        quiet = ["--no-header", "--no-annotate", "--quiet"]
        made = subprocess.run([*program, *options, *quiet], check=True, capture_output=True, text=True).stdout
    LOCK.write_text(HEAD.format(extras=",".join(EXTRAS), version=VERSION) + twice(made), "utf-8")


def twice(made: str) -> str:
    """A lock whose packages with extras are there without, too: pip takes each for a requirement with its own hash."""
    return re.sub(r"^([a-z0-9.-]+)\[.*?\](==.*\n(?: .*\n)*)", r"\1\2\g<0>", made, flags=re.M)


def locked(text: str) -> dict[str, tuple[str, list[str]]]:
    """By package, its version and the SHA-256 of its files."""
    found: dict[str, tuple[str, list[str]]] = {}
    for entry in re.split(r"\n(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.M)):
        name, version = re.match(r"([a-z0-9.-]+)(?:\[.*?\])?==([^ ;\\]+)", entry.strip()).groups()  # type: ignore[union-attr]
        found[name] = version, re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
    return found


def bill(packages: dict[str, tuple[str, list[str]]], version: str) -> dict[str, Any]:
    """A bill of materials in CycloneDX's form."""
    own = {"type": "application", "bom-ref": "coterie", "name": "coterie", "version": version}
    own |= {"purl": f"pkg:pypi/coterie@{version}", "licenses": [{"license": {"id": "Apache-2.0"}}]}
    components = [_component(name, *about) for name, about in packages.items()]
    depends = [{"ref": "coterie", "dependsOn": [each["bom-ref"] for each in components]}]
    head = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": own}}
    return head | {"components": components, "dependencies": depends}


def _component(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    """A package; its hashes are of the files that the index has of it, one for each platform."""
    address = f"pkg:pypi/{name}@{version}"
    files = [
        {"type": "distribution", "url": address, "hashes": [{"alg": "SHA-256", "content": each}]} for each in hashes
    ]
    about = {"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address}
    licence = _licence(name)
    return about | {"licenses": [{"license": {"name": licence}}] if licence else [], "externalReferences": files}


def _licence(name: str) -> str:
    """As the package names it, where it is installed."""
    try:
        known = metadata(name)
    except PackageNotFoundError:
        return ""
    text = known.get("License-Expression") or known.get("License") or ""
    return "" if len(text) > 100 or "\n" in text else text


def sbom() -> None:
    """Write the bill of materials."""
    sys.path.insert(0, str(ROOT))
    from coterie.version import VERSION

    packages = locked(LOCK.read_text("utf-8"))
    SBOM.parent.mkdir(exist_ok=True)
    SBOM.write_text(json.dumps(bill(packages, VERSION), indent=1) + "\n", "utf-8")
    sys.stdout.write(f"{SBOM.relative_to(ROOT)}: {len(packages)} packages\n")


def needed(name: str, extras: tuple[str, ...], seen: dict[str, str]) -> dict[str, str]:
    """All that a package needs in this environment, with the versions that are installed."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

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


def sizes() -> None:
    """Print what the packages take on disk: those of Coterie itself, then what each extra adds."""
    core = needed("coterie", (), {})
    shown = {"coterie": core, "of it torch": {"torch"}}
    for extra in metadata("coterie").get_all("Provides-Extra") or []:
        if extra not in ("dev", "docs"):
            shown[f"[{extra}]"] = needed("coterie", (extra,), {}).keys() - core.keys()
    for label, names in shown.items():
        files = [file for name in names for file in distribution(name).files or []]
        taken = sum(Path(file.locate()).stat().st_size for file in files if Path(file.locate()).is_file())
        size = f"{len(names)} packages, {taken / 1e6:,.0f} MB" if names else "not installed here"
        sys.stdout.write(f"{label}: {size}\n")


if __name__ == "__main__":
    {"lock": lock, "sbom": sbom, "sizes": sizes}[sys.argv[1]]()
