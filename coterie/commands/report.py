"""`coterie report`, `compare`, `figures` and `watch`: looking at runs."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coterie.errors import BadInput, refused

if TYPE_CHECKING:
    from coterie.report.live import Live

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the folder of a run, finished or not")]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="folders of runs")]
Metric = Annotated[str | None, typer.Option(help="the measure to go by, e.g. auroc; none: the runs' own")]
Watched = Annotated[
    Path, typer.Argument(metavar="DIR", help="the folder of a run, finished or not, or of a federation")
]
Open = Annotated[bool, typer.Option("--open", help="open it in the browser")]
UNWRITABLE = "give a place that can be written"


def report(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="the file to write; none: report.html in DIR")] = None,
    show: Open = False,
) -> None:
    """Write the report of a run again."""
    from coterie.report.page import render
    from coterie.runs.read import read_run

    target = folder / "report.html" if out is None else out
    with refused(target, UNWRITABLE):
        render(read_run(folder), target)
    Console().print(f"Report: [bold]{escape(str(target))}[/]", highlight=False, soft_wrap=True)
    if show:
        _browse(target.resolve().as_uri())


def compare(folders: Folders, metric: Metric = None) -> None:
    """Set runs side by side.

    The scores of each method, and whether they differ significantly over the silos that the runs share.
    """
    from coterie.report.comparison import comparison, settings
    from coterie.runs.read import read_run

    if len(folders) < 2:
        raise BadInput("compare takes two or more folders of runs")
    names = [folder.name for folder in folders]
    shown = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    if len(set(shown)) < len(shown):
        raise BadInput(f"{next(name for name in shown if shown.count(name) > 1)} is given twice; give different runs")
    runs = {name: read_run(folder) for name, folder in zip(shown, folders, strict=True)}
    for name, run in runs.items():
        if not run.methods:
            raise BadInput(f"{name}: there are no results yet; wait for its first round")
    runs = {name: run.seen_by(metric) for name, run in runs.items()}
    console = Console()
    beside = comparison(runs)
    caption, beside.caption = str(beside.caption), None  # a narrow table would break it into a narrow column
    console.print(beside)
    console.print(Text(caption, "dim italic"))
    differing = settings(list(runs.values()))
    if differing:
        table = Table(box=None, pad_edge=False)
        for heading in ("key", *runs):
            table.add_column(Text(heading), overflow="fold")
        for key, values in differing.items():
            table.add_row(Text(key), *(Text(value) for value in values))
        console.print("\nWhat the studies have different:")
        console.print(table)


def figures(
    folders: Folders,
    kind: Annotated[str, typer.Option("--format", help="svg, png or pdf")] = "svg",
    out: Annotated[Path | None, typer.Option(help="the folder to write to; none: figures/ in the first DIR")] = None,
    sweep: Annotated[
        str | None, typer.Option(help="draw the runs' scores against this key of their studies, e.g. data.dirty_labels")
    ] = None,
    metric: Metric = None,
    only: Annotated[str | None, typer.Option(help="draw these figures alone, e.g. test-accuracy,bars")] = None,
) -> None:
    """Draw a run's figures as files, for papers and pages.

    Several runs of one study that differ in methods are drawn as one.
    """
    from coterie.report.static import FORMATS, draw_all
    from coterie.report.static_sweep import draw_sweep
    from coterie.runs.joined import joined
    from coterie.runs.read import read_run

    if kind not in FORMATS:
        raise BadInput(f"--format {kind}: expected {', '.join(FORMATS)}")
    target = folders[0] / "figures" if out is None else out
    runs = [read_run(folder) for folder in folders]
    runs = [run.seen_by(metric) for run in ([joined(runs)] if sweep is None else runs)]
    with refused(target, UNWRITABLE):
        if sweep is None:
            drawn = draw_all(runs[0], target, kind, None if only is None else only.split(","))
        else:
            drawn = [draw_sweep(runs, sweep, target, kind)]
    for path in drawn:
        Console().print(str(path), markup=False, highlight=False, soft_wrap=True)


def watch(folder: Watched, show: Open = False) -> None:
    """See a running study or federation live in the browser.

    Served to this machine only, until Ctrl-C.
    """
    with live_page(folder) as server:
        line = f"Watching [bold]{escape(str(folder))}[/] at [bold]{server.address}[/] (Ctrl-C ends)"
        Console().print(line, highlight=False, soft_wrap=True)
        if show:
            _browse(server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def live_page(folder: Path) -> "Live":
    """What serves the page of a run's folder, or of a federation's or its coordinator's."""
    from coterie.report.live import Live

    coordinator = folder / "coordinator" if (folder / "coordinator").is_dir() else folder
    if not (coordinator / "members").is_dir():
        return Live(folder)
    from coterie.commands.federation import need_flower

    need_flower()
    from coterie.deploy.flower.live_page import FederationLive

    return FederationLive(coordinator)


def _browse(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        Console(stderr=True).print(f"There is no browser to open here; open {address} yourself.", markup=False)
