"""Methods and data sets as pages for the terminal."""

from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.data.catalog import CATALOG, describe_options
from coterie.errors import BadInput, nearest
from coterie.methods.method import Method
from coterie.options import Option, describe
from coterie.wire import Record


def method_page(name: str, kind: type[Method], console: Console) -> None:
    """One method: paper, hyper-parameters, what leaves the silo."""
    console.print(f"[bold]{name}[/]: {escape(kind.summary)}")
    console.print(f"[dim]{escape(kind.paper)}[/]\n")
    console.print(options_table(describe(kind)))
    for title, record in (
        ("Leaves the silo", kind.up),
        ("Is sent to the silo", kind.down),
        ("Never leaves the silo", kind.private),
    ):
        console.print(f"\n[bold]{title}[/]")
        console.print(fields_table(record))


def options_table(options: list[Option]) -> Table:
    """Hyper-parameters with their defaults and ranges."""
    table = Table(box=None, pad_edge=False)
    for heading in ("option", "default", "type", "range", "what it is"):
        table.add_column(heading, no_wrap=heading == "option")
    for each in options:
        default = _shown(each.default)
        table.add_row(f"[bold]{each.name}[/]", escape(default), each.type, escape(each.range), escape(each.doc))
    if not options:
        table.add_row("[dim]none[/]", "", "", "", "")
    return table


def fields_table(record: type[Record]) -> Table:
    """The fields of a record: name, shape of what one silo has of it, what it is."""
    table = Table(box=None, pad_edge=False, show_header=False)
    listed = fields(record)  # type: ignore[arg-type]
    for f in listed:
        about = f.metadata
        seen = f" [dim](seen by: {escape(about['seen_by'])})[/]" if about.get("seen_by") else ""
        shape = " × ".join(about.get("shape", ())) or "1"
        table.add_row(f"  [bold]{f.name}[/]", shape, escape(about.get("doc", "")) + seen)
    if not listed:
        table.add_row("  [dim]nothing[/]")
    return table


def data_table(console: Console) -> None:
    """Every data set in a line."""
    table = Table(box=None, pad_edge=False)
    for heading in ("data set", "what it is", "samples", "classes", "shape", "licence"):
        table.add_column(heading, no_wrap=heading == "data set")
    for name, entry in CATALOG.items():
        size = f"{entry.size:,}" if entry.size else "-"
        classes = str(entry.classes) if entry.classes is not None else "-"
        shape = "×".join(map(str, entry.shape)) or "-"
        table.add_row(f"[bold]{name}[/]", entry.title, size, classes, shape, entry.licence)
    console.print(table)


def data_page(name: str, console: Console) -> None:
    """One data set and the options of its `[data]` table."""
    if name not in CATALOG:
        raise BadInput(f"unknown data set '{name}'; {nearest(name, CATALOG)}")
    entry = CATALOG[name]
    console.print(f"[bold]{name}[/]: {escape(entry.title)}")
    console.print(f"[dim]{escape(entry.licence)}; {escape(entry.source)}[/]\n")
    console.print(options_table(describe_options(name)))


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else str(value).replace("True", "true").replace("False", "false")
