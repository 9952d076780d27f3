"""The commands."""

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core
import typer.main
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.commands import data, doctor, federation, models, options, report, silo
from coterie.commands.methods import new_method
from coterie.errors import LONGEST, BadInput, Stopped, plain
from coterie.run import torchrun
from coterie.run.stopping import STOPPED, promptly
from coterie.version import build

# Help is plain text (`rich_markup_mode=None`); where Rich is installed Typer escapes brackets in it all the same.
typer.core.HAS_RICH = False


class Argument(typer.core.TyperArgument):
    """An argument that keeps its help: Typer 0.20, the last that Flower takes, loses it to Click 8.5."""

    def __init__(self, *, help: str | None = None, **options: Any) -> None:
        super().__init__(help=help, **options)
        self.described = help

    def get_help_record(self, ctx: Any) -> Any:
        self.help = self.described  # not before: Click would list the arguments a second time
        return super().get_help_record(ctx)


setattr(typer.main, "TyperArgument", Argument)  # noqa: B010

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ALL = "all"  # every cell of a study, one after another


def _version(wanted: bool) -> None:
    if wanted:
        print(f"coterie {build()}")  # noqa: T201
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="which Coterie this is, by its files' hash"),
    ] = False,
) -> None:
    """Personalized federated learning: every silo its own model, trained with the silos that are like it."""


@app.command()
def run(
    study: Annotated[str | None, typer.Argument(help="a built-in study or a .toml file; none: digits")] = None,
    methods: options.Methods = None,
    assignments: options.Assignments = None,
    rounds: options.Rounds = None,
    seeds: Annotated[str | None, typer.Option(help="e.g. 0,1,2")] = None,
    repeats: Annotated[int | None, typer.Option(help="so many seeds from 0; own data are split anew by each")] = None,
    cell: options.Cell = None,
    scale: options.Scale = "full",
    silos: Annotated[
        Path | None, typer.Option(help="your own data: a folder with one file (CSV, Parquet, npz) or folder per silo")
    ] = None,
    label: options.Label = None,
    task: options.Kind = None,
    drop: options.Drop = None,
    text: options.Text = None,
    resize: options.Resize = None,
    standardize: Annotated[
        str | None, typer.Option(help="with --silos: numbers by the federation's statistics, or each silo by its own")
    ] = None,
    group: options.Group = None,
    time: options.Time = None,
    split_column: options.SplitColumn = None,
    subgroup: Annotated[
        list[str] | None,
        typer.Option(help="with --silos: a column by whose levels measures are taken too; may be repeated"),
    ] = None,
    incumbent: Annotated[
        str | None, typer.Option(help="with --silos: what silos use today, for stack: trees, a column, or {silo}.onnx")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="auto, a model by name, or your own nn.Module as package.module:Class")
    ] = None,
    method_file: Annotated[
        Path | None, typer.Option(help="your own methods: a Python file, of which MyMethod goes by my-method")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="what rounds and methods are judged by, e.g. auroc; none: as the labels are")
    ] = None,
    unseen: Annotated[float | None, typer.Option(help="share of the silos that arrive only after training")] = None,
    device: options.Device = None,
    rows: Annotated[str | None, typer.Option(help="silos trained in one call: auto, all or a number")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the results; none: runs/STUDY-TIME")] = None,
    unfinished: Annotated[
        Path | None, typer.Option("--resume", help="go on with a run that was stopped: its folder, and nothing else")
    ] = None,
    tune: options.Tune = "auto",
    track: Annotated[
        str | None, typer.Option(help="report to TensorBoard or MLflow: tensorboard, mlflow or both")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar and no table")] = False,
) -> None:
    """Train and compare methods on a simulated federation.

    STUDY is a built-in study or a .toml file; without one it is digits, or with --silos FOLDER --label COLUMN your own
    data: one file or folder for each silo.
    """
    from coterie.engine.ranks import from_first, join
    from coterie.models.code import is_code
    from coterie.report.table import differences_table
    from coterie.report.terminal import show_outcome
    from coterie.run import experiment
    from coterie.run.method_file import lend_methods
    from coterie.run.progress import shown
    from coterie.run.tracking import check_trackers, tracked
    from coterie.runs.folder import default_folder, stopped
    from coterie.studies import study as studies
    from coterie.studies.own import on_folder

    trackers = options.split(track) or []
    check_trackers(trackers)
    options.check_tune(tune)
    if cell == ALL and unfinished is None:
        left_out = dict[str, BadInput]()
        for each in studies.cells(studies.read(study)):
            into = None if out is None else out / each
            try:
                run(
                    study, methods, assignments, rounds, seeds, repeats, each, scale, model=model,
                    method_file=method_file, metric=metric, unseen=unseen, device=device, rows=rows, out=into,
                    tune=tune, track=track, quiet=quiet,
                )  # fmt: skip
            except BadInput as error:  # as when one of the data sets is not at hand
                if torchrun.used():
                    raise  # the other processes may be at work on this one
                left_out[each] = error
        if left_out:
            raise BadInput("left out " + "; ".join(f"{each} ({error})" for each, error in left_out.items()))
        return
    console, code = Console(), model if is_code(model) else None
    lend_methods(method_file)

    def say(line: str) -> None:
        if not quiet:
            console.print(escape(line), highlight=False)

    own = {"label": label, "task": task, "drop": options.split(drop), "text": options.split(text), "resize": resize}
    own |= {"standardize": standardize, "group": group, "time": time, "split_column": split_column}
    own |= {"incumbent": incumbent}
    parts = subgroup or None
    if unfinished is not None:
        given = (study, methods, assignments, rounds, seeds, repeats, cell, metric, unseen, device, rows, out)
        if any(each is not None for each in (*given, silos, *own.values(), parts, None if code else model)):
            raise BadInput(f"--resume {unfinished}: the folder says what to run; leave out all but --track and --quiet")
        if torchrun.used():
            join()
        folder, begun = unfinished, experiment.unfinished(unfinished, code)
    else:
        read = None if silos is not None and study is None else studies.select(studies.read(study), cell, scale)
        if silos is not None:
            read = on_folder(read, silos, own)
        elif any(value is not None for value in (*own.values(), parts)):
            given_own = {**own, "subgroup": parts}
            lost = ", ".join(f"--{key.replace('_', '-')}" for key, value in given_own.items() if value is not None)
            raise BadInput(f"{lost}: go with --silos FOLDER, your own data")
        named = read or {}
        if model is not None:  # before what --set says of it
            named = {**named, "model": {"name": model}}
        table = studies.override(named, assignments or [])
        table = _into(table, "train", {"rounds": rounds, "unseen": unseen})
        table = _into(table, "measure", {"by": metric, "subgroups": parts})
        table = _into(table, "engine", {"device": device, "rows": _rows(rows)})
        if seeds is not None or repeats is not None:
            table["seeds"] = _seeds(seeds, repeats)
        begun = studies.check(table, None if methods is None else _names(methods), code)
        begun = begun if tune == "auto" else begun.fixed()
        folder = out if out is not None else default_folder(begun)
        if torchrun.used():
            join()
            folder = Path(from_first(str(folder)))  # which may be named by the clock
    if torchrun.follower():
        with promptly(""):
            experiment.accompany(begun, folder)
        return
    with (
        promptly(stopped(folder)),
        shown(begun, console, quiet) as bar,
        tracked(begun, trackers, folder, bar, resumed=unfinished is not None) as watch,
    ):
        if unfinished is not None:
            finished = experiment.resume(folder, watch, code, say)
        else:
            finished = experiment.run_into(begun, folder, shlex.join(["coterie", *sys.argv[1:]]), watch, say)
    if not quiet:
        if finished.differences:
            console.print(differences_table(finished.differences))
            console.print()
        show_outcome(finished.summary, console)
        if finished.study.shows:
            console.print(f"At this scale: {escape(finished.study.shows)}", highlight=False)
        page = folder / "report.html"
        console.print(f"Results in [bold]{escape(str(folder))}[/]", highlight=False)
        if page.exists():
            console.print(f"Report:   [bold]{escape(str(page))}[/]", highlight=False, soft_wrap=True)


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="a method, for its details")] = None) -> None:
    """The methods, by what their silos share.

    With NAME one of them: its paper, its hyper-parameters, what leaves the silo.
    """
    from coterie.commands.describe import credits, method_page
    from coterie.methods import METHODS, grouped, method_class

    console = Console()
    if name is not None:
        method_page(name, method_class(name), console)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("method", "what it does", "paper"):
        table.add_column(heading, no_wrap=heading == "method")
    for what, names in grouped().items():
        table.add_section()
        table.add_row("", f"[italic]share {escape(what)}[/]" if what != "brought by packages" else f"[italic]{what}[/]")
        for each in names:
            kind = METHODS[each]
            table.add_row(f"[bold]{each}[/]", escape(kind.summary), f"[dim]{credits(METHODS, each, kind.paper)}[/]")
    console.print(table)


@app.command(name="studies")
def list_studies(
    name: Annotated[str | None, typer.Argument(help="a study, to print it resolved")] = None,
    cell: options.Cell = None,
    scale: options.Scale = "full",
) -> None:
    """The built-in studies.

    Their papers, cells and cost; with NAME one of them, with every default written back.
    """
    from coterie.commands.describe import studies_table
    from coterie.studies import study as known

    if name is None:
        studies_table(Console())
    else:
        typer.echo(known.check(known.select(known.read(name), cell, scale)).as_toml(), nl=False)


app.add_typer(data.app, name="data")
app.add_typer(federation.federation, name="federation")
for command_of in (
    models.predict, models.export, new_method, report.report, report.compare, report.figures, report.watch,
    doctor.doctor, federation.coordinator, silo.silo,
):  # fmt: skip
    app.command()(command_of)  # in the order of `--help`


def _into(table: dict[str, Any], key: str, given: dict[str, Any]) -> dict[str, Any]:
    """A study's table with the options that the command line gave."""
    options_given = {name: value for name, value in given.items() if value is not None}
    inner = table.get(key, {})
    if not options_given or not isinstance(inner, dict):  # what is wrong with it the study's own check says
        return table
    return {**table, key: {**inner, **options_given}}


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise BadInput(f"--methods {text}: expected names, e.g. fedamp,separate")
    return names


def _rows(text: str | None) -> int | str | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return text


def _seeds(text: str | None, repeats: int | None) -> list[int]:
    if repeats is None:
        try:
            return [int(part) for part in str(text).split(",")]
        except ValueError:
            raise BadInput(f"--seeds {text}: expected whole numbers, e.g. 0,1,2") from None
    if text is not None:
        raise BadInput("--repeats and --seeds both set the seeds; give one of them")
    if repeats < 1:
        raise BadInput(f"--repeats {repeats}: give 1 or more")
    return list(range(repeats))


def main() -> None:
    """The `coterie` command: bad input is one line on stderr and exit code 2, never a traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to end as with Ctrl-C: nothing half-written
    show_errors = torchrun.hush()
    try:
        for word in sys.argv[1:]:
            if any("\ud800" <= letter <= "\udfff" for letter in word):
                raise BadInput(f"{word.encode(errors='replace').decode()}: not text in UTF-8; name it otherwise")
        stopped = app(sys.argv[1:] or ["--help"], standalone_mode=False) == STOPPED  # what Typer makes of Ctrl-C
    except BadInput as error:
        _show_differences(getattr(error, "differences", ()))
        _fail(str(error))
    except Stopped as stop:
        _fail(str(stop), STOPPED)
    except (KeyboardInterrupt, typer.Abort):  # Typer's at a question: Ctrl-C, or nobody there who could answer
        stopped = True
    except OSError as error:  # of a disk, a folder or a network that nothing nearer knew how to speak of
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    except Exception as error:
        # Typer's own errors about the command line know how to say themselves.
        if (message := getattr(error, "format_message", None)) is not None:
            _fail(message() or "see --help")
        from coterie.runs.folder import shortage  # here, because it brings PyTorch

        if (short := shortage(error)) is not None:
            _fail(short)
        show_errors()  # nobody foresaw it
        raise
    if stopped:
        _fail("stopped", STOPPED)


def command() -> None:
    """`main` as a program: one that was stopped ends at once, without the seconds that PyTorch's exit may take."""
    code = 0
    try:
        main()
    except SystemExit as end:
        if end.code != STOPPED and not torchrun.used():
            raise
        code = end.code if isinstance(end.code, int) else 2
    if code == STOPPED or torchrun.used():  # while Python takes gloo's threads down, one aborts once in a while
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _show_differences(differences: Sequence[Any]) -> None:
    """Where silos differ, as a table above the one line that says so."""
    if differences:
        from coterie.report.table import differences_table

        Console(stderr=True).print(differences_table(differences))


def _fail(message: str, code: int = 2) -> NoReturn:
    print(f"coterie: {plain(message, LONGEST)}", file=sys.stderr)  # noqa: T201
    if torchrun.follower() and code != STOPPED:
        torchrun.let_the_first_speak()
    sys.exit(code)
