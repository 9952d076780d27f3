"""Options that several commands take: one declaration and one help text of each."""

from typing import Annotated, cast

import typer

from coterie.deploy.logs import FORMS, Form
from coterie.errors import BadInput

# Of studies.
Methods = Annotated[str | None, typer.Option(help="which methods, e.g. fedamp,separate")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="key.path=value, e.g. train.lr=0.1; may be repeated")
]
Rounds = Annotated[int | None, typer.Option(help="rounds of the federation")]
Tune = Annotated[
    str, typer.Option(help="auto: search for what the study leaves to `auto`; off: take fixed values for it")
]
Cell = Annotated[
    str | None, typer.Option("--data", help="which cell of a study that has several, e.g. fmnist; or all to run")
]
Scale = Annotated[str, typer.Option(help="full, or small: what a laptop does in minutes")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda")]

# Of people's own data, in a simulation or at a silo.
Label = Annotated[str | None, typer.Option(help="own data: the column to predict")]
Kind = Annotated[str | None, typer.Option("--task", help="own data: auto, classification or regression")]
Drop = Annotated[str | None, typer.Option(help="own data: columns to leave out, e.g. id,name")]
Text = Annotated[str | None, typer.Option(help="own data: columns of free text, whose words are hashed")]
Resize = Annotated[
    int | None,
    typer.Option(help="own data: bring pictures to so many pixels, e.g. 64; 0: as they are", min=0, max=4096),
]
Group = Annotated[
    str | None, typer.Option(help="own data: the column whose values stay on one side of a split, e.g. patient")
]
Time = Annotated[
    str | None, typer.Option(help="own data: the column of dates or numbers: past rows train, the last test")
]
SplitColumn = Annotated[
    str | None, typer.Option(help="own data: the column that holds train, validation or test for each row")
]

# Of services.
Log = Annotated[str, typer.Option(help="how lines are logged, on the screen and in logs/service.log: plain or json")]
Metrics = Annotated[
    int | None, typer.Option(help="serve figures for Prometheus on this port of 127.0.0.1", min=1024, max=65535)
]
SharedHost = Annotated[
    bool, typer.Option("--shared-host-ok", help="where accounts look alike (macOS): start beside other people's")
]
Keys = Annotated[bool, typer.Option("--keys", help="of a backup: with the keys, under a passphrase")]


def split(text: str | None) -> list[str] | None:
    """What a comma separates."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def checked_form(log: str) -> Form:
    """The form of a service's log."""
    if log not in FORMS:
        raise BadInput(f"--log {log}: take {' or '.join(FORMS)}")
    return cast(Form, log)


def check_tune(tune: str) -> None:
    """Refuse what is neither of its two values."""
    if tune not in ("auto", "off"):
        raise BadInput(f"--tune {tune}: expected auto or off")
