"""The commands of a federation between real organisations."""

import json
import os
import shlex
import sys
import time
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from coterie.commands import options
from coterie.deploy.home import check_account
from coterie.errors import BadInput

federation = typer.Typer(
    help="Real silos: set up, run and watch a federation.", no_args_is_help=True, rich_markup_mode=None
)
WATCH = 1.0  # seconds between two looks at a run
ASK = 5.0  # seconds between two questions to Flower which silos are connected


def written(folder: Path) -> Path:
    """The folder of a federation in which a command writes."""
    check_account(folder / "coordinator")
    return folder


Place = Annotated[Path, typer.Argument(metavar="DIR", help="the federation's folder")]
Written = Annotated[Path, typer.Argument(metavar="DIR", help="the federation's folder", callback=written)]


@federation.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the folder to make")],
    silos: Annotated[
        str, typer.Option(help="names, e.g. north,south,east, whose keys to make here, to try things out")
    ] = "",
    host: Annotated[str, typer.Option(help="where silos reach the coordinator")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="its port")] = 9443,
    proxy: Annotated[
        bool | None,
        typer.Option("--proxy/--no-proxy", help="publish by nginx only what silos need; default: unless on loopback"),
    ] = None,
    insecure: Annotated[bool, typer.Option(help="no TLS and no keys, to try on this machine alone")] = False,
) -> None:
    """Make the coordinator's folder.

    In it are certificates, settings, and a README with the one command that starts it.

    With --silos also one for each silo, with its key and a policy that approves every study: to try things out. Silos
    that shall trust nobody make their own with `coterie silo init`, and are let in with `coterie federation enroll`.
    """
    need_flower()
    from coterie.deploy.parties import new_federation

    names = [name.strip() for name in silos.split(",")] if silos else []
    new_federation(folder, names, host, port, proxy, insecure)
    typer.echo(f"coordinator: {folder / 'coordinator'}")
    if names:
        typer.echo(f"silos:       {folder / 'silos'}/…  (hand each its own folder)")
        typer.echo(
            'Their keys were made here and their policies approve every study (approve = "all"): to try things out.'
        )
    else:
        typer.echo(f"Give silos {folder / 'coordinator' / 'ca.crt'}; they make their folders with `coterie silo init`.")


@federation.command()
def add(folder: Written, silo: Annotated[str, typer.Argument(metavar="SILO", help="its name")]) -> None:
    """Make the folder of one more silo.

    A running coordinator registers its key within seconds.
    """
    need_flower()
    from coterie.deploy.parties import add_silo

    add_silo(folder, silo)
    typer.echo(f"{folder / 'silos' / silo}: hand it to {silo}")


@federation.command()
def enroll(
    folder: Written,
    key: Annotated[Path, typer.Argument(metavar="KEY", help="key.pub of a folder that `coterie silo init` made")],
    name: Annotated[str, typer.Option(help="the silo's name; none: as the key's file has it")] = "",
) -> None:
    """Let a silo in by the public key that it made, or by a new one.

    A running coordinator does so within seconds.
    """
    need_flower()
    from coterie.deploy.certificates import read_authority
    from coterie.deploy.parties import enroll

    known, printed, before = enroll(folder, key, name)
    _, authority = read_authority(folder / "coordinator" / "ca.crt")
    typer.echo(f"{known}: {printed}\nCA: {authority}\nCompare both with what {known} was shown, by phone or in person.")
    if before:
        typer.echo(f"This key is in place of {before}, which is locked out for good: has {known} made another?")


@federation.command()
def operator(key: Annotated[Path, typer.Argument(metavar="KEY", help="the file to make, named after you")]) -> None:
    """Make an operator's key, with which runs are signed.

    Silos trust its public part with `coterie silo trust`.
    """
    need_flower()
    from coterie.deploy.parties import make_operator

    asked = typer.prompt(
        "Its password (empty: none)", "", hide_input=True, show_default=False, confirmation_prompt=True
    )
    printed = make_operator(key, asked)
    typer.echo(f"{key}.pub: send it to the silos, who trust it with `coterie silo trust`\nkey: {printed}")


@federation.command()
def remove(folder: Written, silo: Annotated[str, typer.Argument(metavar="SILO", help="its name")]) -> None:
    """Lock a silo out for good.

    At once if the coordinator runs; its key is not taken again.
    """
    need_flower()
    from coterie.deploy.parties import remove

    remove(folder, silo)
    typer.echo(f"{silo}: removed")


@federation.command()
def renew(folder: Written) -> None:
    """Renew the coordinator's certificate, by the same CA.

    A running coordinator takes it up by itself.
    """
    need_flower()
    from coterie.deploy.parties import renew

    renew(folder)
    typer.echo(f"{folder / 'coordinator' / 'server.pem'}: renewed; a running coordinator takes it up within seconds")


@federation.command()
def share(folder: Written, study: Annotated[str, typer.Argument(metavar="STUDY", help="a study")]) -> None:
    """Give every silo a share of a study's data.

    To try a federation on one machine.
    """
    from coterie.data import catalog
    from coterie.deploy.home import owner_only
    from coterie.deploy.own import save_silo
    from coterie.studies import study as studies

    checked = studies.check(studies.read(study))
    dealt = catalog.load(checked.data["name"], checked.data, checked.seeds[0]).silos
    homes = sorted(path for path in (folder / "silos").glob("*") if path.is_dir())
    if not homes or len(homes) > len(dealt):
        raise BadInput(f"{folder}: {len(homes)} silos, and the study's data are for {len(dealt)}; take another study")
    for home, part in zip(homes, dealt, strict=False):
        with owner_only():
            save_silo(part, home / "data.npz")
        typer.echo(f"{home / 'data.npz'}: {len(part.train)} training samples")


@federation.command()
def run(
    folder: Written,
    study: Annotated[str | None, typer.Argument(metavar="STUDY", help="a built-in study or a .toml file")] = None,
    methods: options.Methods = None,
    assignments: options.Assignments = None,
    rounds: options.Rounds = None,
    gather: Annotated[float, typer.Option(help="seconds to wait for all silos before the first round")] = 120.0,
    reply: Annotated[float, typer.Option(help="seconds to wait for a silo's answer")] = 600.0,
    largest_silo: Annotated[
        int | None, typer.Option(help="samples that a silo may declare; none: 1000 times the median of the others")
    ] = None,
    tune: options.Tune = "auto",
    operator: Annotated[
        Path | None, typer.Option(help="your key, to sign the run with, for silos that trust operators")
    ] = None,
    resume: Annotated[str | None, typer.Option(help="the name of a run that was stopped")] = None,
) -> None:
    """Run a study on a federation.

    Its coordinator must be running on this machine. The study's [data] are left aside: every silo brings its own.
    Silos missing when it begins arrive after training.
    """
    need_flower()
    from coterie.commands.federation_view import View
    from coterie.deploy.drive import study_of
    from coterie.deploy.flower.launch import ask_run, follow
    from coterie.deploy.flower.monitoring import running_coordinator
    from coterie.deploy.patience import Patience
    from coterie.deploy.search import announced
    from coterie.options import parse
    from coterie.report.terminal import show_outcome
    from coterie.studies import study as studies

    options.check_tune(tune)
    console = Console()
    if resume is not None:
        where = running_coordinator(folder) / "runs" / Path(resume).name
        if not (where / "asked.toml").exists():
            raise BadInput(f"--resume {resume}: no such run; see {where.parent}")
    else:
        table = studies.override(studies.read(study), assignments or [])
        if rounds is not None:
            table = studies.override(table, [f"train.rounds={rounds}"])
        chosen = None if methods is None else [name.strip() for name in methods.split(",")]
        command = shlex.join(["coterie", *sys.argv[1:]])
        limits = {"gather": gather, "reply": reply, "largest_silo": largest_silo}
        patience = parse(Patience, limits, "federation run")
        where = ask_run(folder, table, chosen, patience, command, tune == "auto", operator)
        for each in announced(study_of(table, chosen, tune == "auto")):
            console.print(escape(each), highlight=False, soft_wrap=True)
    console.print(f"Run [bold]{escape(where.name)}[/]", highlight=False)
    try:
        with View(console) as view:
            follow(where, view)
    except KeyboardInterrupt:
        again = f"coterie federation run {shlex.quote(str(folder))} --resume {shlex.quote(where.name)}"
        console.print(f"Stopped; go on with: {escape(again)}", highlight=False, soft_wrap=True)
        raise
    show_outcome(json.loads((where / "summary.json").read_text("utf-8")), console)
    console.print(f"Results in [bold]{escape(str(where))}[/]", highlight=False, soft_wrap=True)


@federation.command()
def status(
    folder: Place, watch: Annotated[bool, typer.Option("--watch", help="go on showing it, until Ctrl-C")] = False
) -> None:
    """Which silos are there, and how far the newest run is."""
    need_flower()
    from coterie.commands.federation_view import View, line, picture
    from coterie.deploy.certificates import expiry
    from coterie.deploy.flower.monitoring import newest_run, running_coordinator, silo_states
    from coterie.deploy.home import progress

    coordinator = running_coordinator(folder)
    console = Console()
    if remark := expiry(coordinator):
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
    if not watch:
        console.print(picture({}, silo_states(coordinator), 0))
        latest = newest_run(coordinator)
        if latest is not None:
            console.print(f"{latest.name}: {line(progress(latest))}", highlight=False, markup=False, soft_wrap=True)
        return
    asked, states = -ASK, dict[str, str]()
    with suppress(KeyboardInterrupt), View(console) as view:
        while True:
            if time.monotonic() - asked > ASK:
                states, asked = silo_states(coordinator), time.monotonic()
            latest = newest_run(running_coordinator(folder))
            view({} if latest is None else progress(latest), states)
            time.sleep(WATCH)


@federation.command()
def backup(
    folder: Written,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the file to make")],
    keys: options.Keys = False,
) -> None:
    """Back the coordinator up to one file.

    Certificates, members and runs; refused while a run goes on.
    """
    need_flower()
    show_backup(folder / "coordinator", file, keys)


@federation.command()
def restore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the federation's folder to make")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a backup")],
) -> None:
    """Make a coordinator's folder from a backup.

    Runs go on with `coterie federation run --resume`.
    """
    need_flower()
    show_restored(file, folder / "coordinator", "coordinator")


def show_backup(folder: Path, file: Path, keys: bool) -> None:
    """Back a party up, and print what is not in the file."""
    from coterie.deploy.backup import back_up

    passphrase = partial(typer.prompt, "Passphrase of its keys", hide_input=True, confirmation_prompt=True)
    missing = back_up(folder, file, passphrase if keys else None)
    typer.echo(f"{file}: {folder} without logs and data")
    if missing:
        typer.echo(f"{', '.join(missing)} are not in it: keep them elsewhere, or give --keys")


def show_restored(file: Path, folder: Path, kind: str) -> str:
    """Restore a party, and print what is missing; when it was backed up."""
    from coterie.deploy.backup import restore

    asked = "Passphrase of its keys (empty: without them)"
    passphrase = partial(typer.prompt, asked, "", hide_input=True, show_default=False)
    when, missing = restore(file, folder, kind, passphrase)
    typer.echo(f"{folder}: as it was at {when}")
    if missing:
        typer.echo(f"Without its keys: put {', '.join(missing)} there before it starts")
    return when


@federation.command()
def health(folder: Place) -> None:
    """Whether the coordinator on this machine is well.

    Exit code 0, or 1 and a line that tells what is wrong.
    """
    show_health(folder / "coordinator")


def show_health(folder: Path) -> None:
    """Print whether a party is well, and end with 1 where it is not."""
    from coterie.deploy.flower.monitoring import ailment

    wrong = ailment(folder)
    typer.echo(wrong or "well")
    if wrong:
        sys.exit(1)


def coordinator(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the coordinator's folder")],
    log: options.Log = "plain",
    metrics: options.Metrics = None,
    shared_host_ok: options.SharedHost = False,
) -> None:
    """Run the coordinator of a federation until Ctrl-C."""
    need_flower()
    from coterie.deploy.flower import services

    services.coordinator(folder, options.checked_form(log), metrics, shared_host_ok)


def need_flower() -> None:
    """Refuse a machine that cannot run real silos."""
    if not hasattr(os, "fork"):
        raise BadInput("real silos need Linux or macOS; on Windows run coterie in WSL")
    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise BadInput("real silos need Flower; install it with: pip install 'coterie[flower]'")
