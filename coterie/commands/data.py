"""`coterie data`: what there is, fetching it, importing it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

if TYPE_CHECKING:
    import click

SetName = Annotated[str, typer.Argument(metavar="NAME", help="a data set")]


class Group(TyperGroup):
    """Commands, and beside them names of data sets: `coterie data fetch mnist`, `coterie data mnist`."""

    def resolve_command(
        self, ctx: "click.Context", args: list[str]
    ) -> "tuple[str | None, click.Command | None, list[str]]":
        """An argument that is no command is a data set to show."""
        known = self.get_command(ctx, args[0]) is not None or args[0].startswith("-")
        return super().resolve_command(ctx, args if known else ["show", *args])


app = typer.Typer(cls=Group, invoke_without_command=True, rich_markup_mode=None, subcommand_metavar="[NAME | COMMAND]")


@app.callback()
def listed(context: typer.Context) -> None:
    """The data sets.

    With NAME one of them: size, licence, files, options.
    """
    from coterie.commands.describe import data_table

    if context.invoked_subcommand is None:
        data_table(Console())


@app.command(hidden=True)
def show(name: SetName) -> None:
    """One data set: size, licence, files, options."""
    from coterie.commands.describe import data_page

    data_page(name, Console())


@app.command()
def fetch(name: SetName) -> None:
    """Download a data set from its publisher."""
    from coterie.data.bar import shown
    from coterie.data.catalog import canonical
    from coterie.data.fetch import fetch as fetched

    console = Console()
    with shown(console) as watch:
        folder = fetched(canonical(name), watch)
    console.print(f"{canonical(name)} is in [bold]{escape(str(folder))}[/]", highlight=False, soft_wrap=True)


@app.command(name="import")
def take_in(
    name: SetName,
    path: Annotated[Path, typer.Argument(help="its official files or archive, an .npz, or pictures with labels")],
) -> None:
    """Take a data set from files on disk."""
    from coterie.data.catalog import canonical
    from coterie.data.importing import import_set

    console, name = Console(), canonical(name)
    made = import_set(name, path.expanduser())
    how = "as published (checksums agree)" if made.verified else "not verified: no published checksum fits these files"
    console.print(
        f"{name}: {made.samples:,} samples, {how}, in [bold]{escape(str(made.folder))}[/]",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
