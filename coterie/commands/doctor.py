"""`coterie doctor`: what is installed here, what it computes on, and what is missing."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

FOR_ITS_MAKERS = ("dev", "docs")  # extras that nobody needs to use Coterie
PURPOSE = {
    "flower": "between organisations",
    "secure": "a server that cannot read models",
    "figures": "figures as files",
    "privacy": "differential privacy",
    "images": "folders of pictures",
    "onnx": "export",
    "timm": "pretrained models of pictures",
    "transformers": "pretrained models of text",
    "tracking": "TensorBoard, MLflow",
    "notebook": "Jupyter",
}


def doctor() -> None:
    """What is installed, and what is missing.

    Versions, the device, the data folder; of what is missing also how to get it.
    """
    from coterie.data import cache
    from coterie.data.centres import CENTRES, place
    from coterie.run.assembly import pick_device
    from coterie.run.finished import device_name
    from coterie.version import VERSION, commit

    needed = requirements()
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    of = commit()
    shown.add_row("[bold]coterie[/]", VERSION + (f", commit {of}" if of else ""))
    shown.add_row("[bold]python[/]", f"{platform.python_version()} on {platform.platform()}")
    shown.add_row("[bold]device[/]", escape(device_name(pick_device("auto"))))
    shown.add_row("[bold]data folder[/]", escape(_folder(cache.root())))
    shown.add_section()
    core = {package: installed(package) for package in needed.pop("", [])}
    for package, found in core.items():
        shown.add_row(f"[bold]{package}[/]", found or f"[red]missing[/]: pip install {package}")
    shown.add_section()
    for extra, packages in needed.items():
        if extra not in FOR_ITS_MAKERS:
            shown.add_row(f"[bold]{escape(f'[{extra}]')}[/]", escape(_extra(extra, packages)))
    shown.add_section()
    for package in sorted({each.package for each in CENTRES.values()} - {""}):
        sets = [name for name, each in CENTRES.items() if each.package == package]
        how = "at hand" if place(sets[0]) else f"missing; pip install {package}"
        shown.add_row(f"[bold]{package}[/]", f"data ({', '.join(sets)}): {how}")
    console = Console()
    console.print(shown, highlight=False)
    if core and None not in core.values():
        console.print("\nAll that Coterie needs is here. What else is missing is only for the purpose beside it.")


def requirements() -> dict[str, list[str]]:
    """The packages that Coterie needs, by extra; those of "" it cannot do without. Empty where it is not installed."""
    try:
        lines = requires("coterie") or []
    except PackageNotFoundError:
        return {}
    found = dict[str, list[str]]()
    for line in lines:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"](\w+)", line)
        if name is not None and name[0] != "coterie":
            found.setdefault(extra[1] if extra else "", []).append(name[0])
    return found


def installed(package: str) -> str | None:
    """The version of a package that is installed here."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extra(extra: str, packages: list[str]) -> str:
    versions = {package: installed(package) for package in packages}
    missing = [package for package, found in versions.items() if found is None]
    purpose = f"{PURPOSE[extra]}: " if extra in PURPOSE else ""
    if missing:
        return f"{purpose}missing {', '.join(missing)}; pip install 'coterie[{extra}]'"
    return purpose + ", ".join(f"{package} {found}" for package, found in versions.items())


def _folder(root: Path) -> str:
    """The folder that keeps data sets, and whether there is something wrong with it."""
    if not root.exists():
        return f"{root} (made when a set is fetched; COTERIE_DATA names another)"
    wrong = "" if os.access(root, os.W_OK) else ": cannot be written to; name another in COTERIE_DATA"
    return f"{root}{wrong}"
