"""The parts of the page's HTML. Whatever is given as text is escaped here; what is called `body` is HTML already."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from coterie.report.canvas import Figure


def part(key: str, title: str, body: str) -> str:
    """Several sections for one reader, under a heading that the page's navigation leads to."""
    return f"<div class='part' id='{key}'><h2>{escape(title)}</h2>{body}</div>"


def section(title: str, body: str) -> str:
    """A titled block of the page."""
    return f"<section><h3>{escape(title)}</h3>{body}</section>"


def titled(title: str, body: str) -> str:
    """A part of a section."""
    return f"<h4>{escape(title)}</h4>{body}"


def note(text: str) -> str:
    """A remark."""
    return f"<p class='note'>{escape(text)}</p>"


def plot(figure: Figure) -> str:
    """A figure as data that the page's script draws."""
    # In a script element only `<` could end it or open a comment.
    data = figure.to_json().replace("<", "\\u003c")
    height = int(figure.layout.height)
    return (
        f"<div class='figure'><div class='plot' style='height:{height}px'></div>"
        f"<script type='application/json'>{data}</script></div>"
    )


def table(
    headings: Iterable[str],
    rows: Mapping[str, str],
    tall: bool = False,
    dots: Mapping[str, str] | None = None,
    words: str = "",
) -> str:
    """A table; `rows` maps the head of each to its cells' HTML, `dots` a head to its colour; `words` heads a text."""
    head = "".join(f"<th{' class=text' * (heading == words)}>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr><th scope='row' title='{escape(name)}'>{dot((dots or {}).get(name))}{escape(name)}</th>{cells}</tr>"
        for name, cells in rows.items()
    )
    return (
        f"<div class='scroll{' tall' * tall}'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def cell(text: str, best: bool = False, words: bool = False) -> str:
    """A cell of a table."""
    kind = " class='best'" if best else " class='text'" if words else ""
    return f"<td{kind}>{escape(text)}</td>"


def cells(*texts: str) -> str:
    """Cells of a table."""
    return "".join(map(cell, texts))


def facts(kind: str, known: Mapping[str, str]) -> str:
    """A list of names and what is known of each, as HTML; of what is empty nothing."""
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{body}</dd></div>" for name, body in known.items() if body)
    return f"<dl class='{kind}'>{listed}</dl>" if listed else ""


def dot(colour: str | None) -> str:
    """A dot in the colour of a method."""
    return f"<span class='dot' style='background:{colour}'></span>" if colour else ""


def blocks(what: str, choices: Mapping[str, str]) -> str:
    """One of several blocks at a time, chosen by name; the first is shown."""
    if len(choices) == 1:
        return titled(*next(iter(choices.items())))
    shown = "".join(f"<div class='choice'{' hidden' * (i > 0)}>{body}</div>" for i, body in enumerate(choices.values()))
    return f"<div class='blocks'>{select(what, list(choices), 'data-blocks')}{shown}</div>"


def select(what: str, names: Sequence[str], kind: str) -> str:
    """A list to choose from; `kind` is the attribute that the page's script looks for."""
    options = "".join(f"<option>{escape(name)}</option>" for name in names)
    # A browser that remembers a choice over a reload would show another block than the list says.
    return f"<label class='choose'>{escape(what)} <select {kind} autocomplete='off'>{options}</select></label>"
