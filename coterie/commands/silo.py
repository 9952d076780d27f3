"""`coterie silo`: take part in a federation, and look after what leaves."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.commands import federation, options
from coterie.deploy.home import check_account
from coterie.errors import LONGEST, BadInput, nearest, plain
from coterie.options import resolved

if TYPE_CHECKING:
    from coterie.data.own.schema import Column
    from coterie.deploy.approval import Proposal
    from coterie.deploy.messages import Job
    from coterie.methods.wrappers.privacy import Privacy

LONGEST_NAME = 300  # characters of a column's
TRAINS = ("rounds", "local_epochs", "batch_size", "measure")  # of [train], which have lines of their own
OF_A_SILO = ("settings.json", "silo.toml", "key", "ledger.jsonl")  # one of which a silo's folder has, however damaged


def silo(
    arguments: Annotated[list[str], typer.Argument(metavar="[ACTION] DIR", help="the silo's folder")],
    data: Annotated[
        Path | None,
        typer.Option(help="its data: .npz, .csv, .parquet, a folder of pictures or tables; none: data.npz there"),
    ] = None,
    label: options.Label = None,
    drop: options.Drop = None,
    group: options.Group = None,
    time: options.Time = None,
    split_column: options.SplitColumn = None,
    text: options.Text = None,
    resize: options.Resize = None,
    task: options.Kind = None,
    device: options.Device = None,
    coordinator: Annotated[str, typer.Option(help="of init: where it is, e.g. fed.example.org:9443")] = "",
    ca: Annotated[Path | None, typer.Option(help="of init: the federation's ca.crt")] = None,
    keys: options.Keys = False,
    log: options.Log = "plain",
    metrics: options.Metrics = None,
    shared_host_ok: options.SharedHost = False,
) -> None:
    """Take part in a federation until Ctrl-C, or look after it.

    \b
    Without an ACTION it takes part. Others:
    init DIR            make its folder, with a key that never leaves it
    approve DIR [HASH]  show the studies that wait and ask about each,
                        or approve the one with that hash
    ledger DIR          show and verify what has left this silo
    health DIR          whether its service is well
    rotate DIR          make another key
    trust DIR KEY.pub   answer only runs that this operator has signed
    rejoin DIR RUN      go on in a run from an older state
    repair DIR          find what is damaged, and mend what can be
                        without losing the budget
    backup DIR FILE     write the folder to one file, between two answers
    restore DIR FILE    make it again

    \b
    For runs that hide models from the server:
    group DIR KEY.pub ...         make a group key, sealed to each
                                  member's public key
    join DIR FILE.sealed KEY.pub  take the group key that the silo with
                                  that public key sealed to this one
    meet DIR KEY.pub ...          keep other silos' public keys: the
                                  server sees the sum of uploads alone
    """
    action, *rest = arguments
    if action == "init" and len(rest) == 1:
        return init(Path(rest[0]), coordinator, ca)
    if action == "restore" and len(rest) == 2:
        return restore(Path(rest[0]), Path(rest[1]))
    if action == "backup" and len(rest) == 2:
        check_account(Path(rest[0]))
        return federation.show_backup(Path(rest[0]), Path(rest[1]), keys)
    if action in ACTIONS and rest:
        folder = Path(rest[0])
        if not folder.is_dir():
            raise BadInput(f"{folder}: no such folder")
        if not any((folder / name).exists() for name in OF_A_SILO):
            raise BadInput(f"{folder}: is no silo's folder; give the one that `coterie silo init` made")
        if action not in ("health", "ledger"):
            check_account(folder)
        return ACTIONS[action](folder, rest[1:])
    if rest:
        known = ("init", *ACTIONS, "backup", "restore")
        raise BadInput(f"silo {action}: no such action, or it needs more arguments (--help); {nearest(action, known)}")
    federation.need_flower()
    from coterie.deploy.flower import services

    if task not in (None, "auto", "classification", "regression"):
        raise BadInput(f"--task {task}: take auto, classification or regression")
    folder = Path(action)
    path = folder / "data.npz" if data is None else data
    columns = {"drop": options.split(drop) or [], "text": options.split(text) or []}
    by = {"group": group or "", "time": time or "", "split_column": split_column or ""}
    if path.suffix.lower() == ".npz" and any(by.values()):
        raise BadInput(f"{path}: is no table to split by a column; leave out --group, --time and --split-column")
    source: dict[str, Any] = {
        "path": str(path.resolve()),
        "label": label or "",
        "task": task or "auto",
        "device": device or "auto",
    }
    source |= {"resize": resize or 0, **columns, **by}
    services.silo(folder, json.dumps(source), options.checked_form(log), metrics, shared_host_ok)


def init(folder: Path, coordinator: str, ca: Path | None) -> None:
    """Make a silo's folder where it is used."""
    federation.need_flower()
    from coterie.deploy.parties import init_silo

    if ca is None or not coordinator:
        raise BadInput("silo init: give --coordinator HOST:PORT and --ca ca.crt, which the coordinator sends")
    key, authority = init_silo(folder, coordinator, ca)
    typer.echo(f"{folder / 'key.pub'}: send it to the coordinator, who enrolls it\nkey: {key}\nCA:  {authority}")
    typer.echo("Compare both with the coordinator, by phone or in person; then read silo.toml.")


def rotate(folder: Path, more: list[str]) -> None:
    """Make another key; the old one is gone."""
    federation.need_flower()
    from coterie.deploy.parties import rotate_key

    typer.echo(f"{folder / 'key.pub'}: send it to the coordinator, who enrolls it\nkey: {rotate_key(folder)}")


def show_ledger(folder: Path, more: list[str]) -> None:
    """Every field that left, and whether the chain is whole."""
    from coterie.deploy.ledger import Ledger

    entries = Ledger(folder).entries()
    table = Table(box=None, pad_edge=False)
    for heading in ("time", "run", "operator", "what", "round", "field", "shape", "bytes", "sha256"):
        table.add_column(heading, justify="right" if heading in ("round", "bytes") else "left", no_wrap=True)
    for e in entries:
        shape, by = "×".join(map(str, e["shape"])), e.get("operator", "")
        row = (e["time"], e["run"], by, e["kind"], e["round"] + 1, e["field"], shape, e["bytes"], e["sha256"][:12])
        table.add_row(*(escape(str(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print(f"{len(entries)} fields left, {sum(e['bytes'] for e in entries)} bytes; the chain is whole")


def trust(folder: Path, more: list[str]) -> None:
    """Answer only runs that this operator has signed, or another that is trusted."""
    federation.need_flower()
    from coterie.deploy.parties import trust

    if len(more) != 1:
        raise BadInput("silo trust: give the silo's folder and the operator's public key, e.g. alice.pub")
    name, printed = trust(folder, Path(more[0]))
    typer.echo(f"{name}: {printed}\nCompare this with what {name} was shown, by phone or in person.")


def group(folder: Path, more: list[str]) -> None:
    """Make a group key and seal it to the members' keys."""
    federation.need_flower()
    from coterie.deploy.group import make_group

    if not more:
        raise BadInput("silo group: give the silo's folder and the public key of each other member, e.g. south.pub")
    files, printed = make_group(folder, [Path(each) for each in more])
    for file in files:
        typer.echo(f"{file}: hand it to {file.stem}, on any way; it opens with the key of {file.stem} alone")
    typer.echo(f"group key: {printed}\nCompare this with the members, by phone or in person, once they have joined.")


def join(folder: Path, more: list[str]) -> None:
    """Take a group key that another member made."""
    federation.need_flower()
    from coterie.deploy.group import join_group

    if len(more) != 2:
        raise BadInput("silo join: give the silo's folder, the sealed key and the public key of the silo that made it")
    typer.echo(f"group key: {join_group(folder, Path(more[0]), Path(more[1]))}\nCompare this with the other members.")


def meet(folder: Path, more: list[str]) -> None:
    """Keep other silos' public keys."""
    federation.need_flower()
    from coterie.deploy.group import meet

    if not more:
        raise BadInput("silo meet: give the silo's folder and the public key of each other member, e.g. south.pub")
    for name, printed in meet(folder, [Path(each) for each in more]).items():
        typer.echo(f"{name}: {printed}")
    typer.echo("Compare each with its silo, by phone or in person: the coordinator must not be the one who vouches.")


def approve(folder: Path, more: list[str]) -> None:
    """Approve a study by its hash, or ask about each that waits."""
    from coterie.deploy.approval import Approvals
    from coterie.deploy.budget import Budget
    from coterie.deploy.home import owner_only
    from coterie.deploy.policy import read_policy

    approvals, policy = Approvals(folder), read_policy(folder)
    with owner_only():
        if more:
            typer.echo(f"approved: {_title(approvals.approve(more[0]))}")
            return
        spent = Budget(folder, policy).spent()
        for each in approvals.waiting():
            if isinstance(each, BadInput):
                typer.echo(f"\na study that cannot be shown: {each}")
                continue
            try:
                typer.echo(_described(each, policy.runs))
            except BadInput as error:  # such as of a method whose package is gone
                typer.echo(f"\n{_title(each)}\n  cannot be shown: {error}")
                continue
            if typer.confirm("Approve it?"):
                approvals.approve(each.digest)
    hides = "record" if policy.demanded == "record" or (spent.steps and policy.demanded == "none") else "silo"
    allowed = f"; ε = {spent.epsilon(policy.delta, hides):.4g} of {policy.epsilon:g} for δ = {policy.delta:g}"
    allowed += " and each record" * (hides == "record")
    typer.echo(f"{spent.answers} of {policy.answers} answers given over all runs{allowed}")
    if policy.approve == "all":
        typer.echo('silo.toml has approve = "all": studies within its limits run without asking')


def _title(proposal: "Proposal") -> str:
    from coterie.deploy.approval import SHOWN

    return f"study '{proposal.job.study}', method {proposal.job.method}, hash {proposal.digest[:SHOWN]}"


def _described(proposal: "Proposal", runs: int) -> str:
    """What a person approves: what is computed on which columns, what of it leaves, and how often."""
    from coterie.data.own.schema import Schema
    from coterie.deploy.approval import PROPOSED, answers_of_a_run
    from coterie.methods import name_of, seen_of
    from coterie.methods.wrappers.spent import privacy_of
    from coterie.wire import every_field

    job = proposal.job
    method, training = job.made(), job.training
    schema = Schema.read(job.schema, "the run's schema")
    label = f"label {_exact(schema.centre)} ± {_exact(schema.unit)}" if job.schema else f"{job.outputs} outputs"
    classes = f"classes {', '.join(schema.classes)}" if schema.classes else label
    options = [f"{key} = {json.dumps(value)}" for key, value in resolved(training).items() if key not in TRAINS]
    privacy = privacy_of(method)
    before = "" if proposal.given is None else f"; approved before, and {proposal.given} were given"
    lines = {
        _title(proposal): "",
        "first asked": f"run {proposal.run}, with {', '.join(job.names)}",
        "runs": f"{name_of(method)} {json.dumps(job.options)}",
        "model": f"{json.dumps(job.model)} of samples {'×'.join(map(str, job.shape))}, {classes}",
        "reads": ", ".join(map(_column, schema.columns)) or "the arrays as they are",
        "trains": f"{training.rounds} rounds of {training.local_epochs} epochs, batches of {training.batch_size}",
        "how": ", ".join(options),
        "searches before": _search(job),
        "leaves each round": ", ".join(every_field(method.up)) or "nothing",
        "the server learns": seen_of(method),
        "noise": _noise(privacy),
        "measured on": ", ".join(training.measure),
        "answers": f"{runs * answers_of_a_run(job)} at most, for {runs} runs{before}",
    }
    whole = f" (all of it: {PROPOSED}/{proposal.digest}.json)"
    return "\n".join(_line(key, value, whole) for key, value in lines.items())


def _line(key: str, value: str, whole: str) -> str:
    """One of these, cut where it is long, but columns: those that were not shown would be approved unseen."""
    if not value:
        return f"\n{key}"
    longest = len(value) if key == "reads" else LONGEST
    return f"  {key}: {plain(value, longest)}{whole if len(value) > longest else ''}"


def _column(column: "Column") -> str:
    """A column and by what it is encoded."""
    by = ""
    if column.kind == "category":
        by = f" of {len(column.levels)}"
    elif column.kind != "text":
        by = f", {_exact(column.mean)} ± {_exact(column.scale)}{' days' if column.kind == 'date' else ''}"
    return f"{plain(column.name, LONGEST_NAME)} ({column.kind}{by})"


def _exact(number: float) -> str:
    """A number as short as it can be without another: the hash that is approved is of this one."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _search(job: "Job") -> str:
    """What a search for learning rates adds to what is trained and leaves."""
    from coterie.deploy.approval import SEARCHED
    from coterie.deploy.messages import MOST_CANDIDATES

    if not job.tuning:
        return "nothing"
    found = " and ".join(SEARCHED)
    return f"{job.tuning} rounds, in each of which {MOST_CANDIDATES} models may leave; {found} are what it finds"


def _noise(privacy: "Privacy | None") -> str:
    """What hides which data."""
    if privacy is None or privacy.noise == 0:
        return "none"
    epsilon, noise = (None if each is None else _exact(each) for each in (privacy.epsilon, privacy.noise))
    amount = f"what ε = {epsilon} needs" if noise is None else noise
    what = "every record's gradient" if privacy.level == "record" else "all changes of a round"
    return f"{amount}, on {what}, clipped to {_exact(privacy.clip)}"


def rejoin(folder: Path, more: list[str]) -> None:
    """Go on in a run from the state that is there, after a backup was restored."""
    from coterie.deploy.home import owner_only
    from coterie.deploy.vault import Vault

    if len(more) != 1:
        raise BadInput("silo rejoin: give the silo's folder and the run's name, as events.log has it")
    with owner_only():
        Vault(folder / "state", more[0]).rejoin()
    typer.echo(f"{more[0]}: this silo goes on from the state that it has")


def repair(folder: Path, more: list[str]) -> None:
    """Find what is damaged in this silo's folder, and mend what can be."""
    from coterie.deploy.repair import repair

    done, left = repair(folder)
    for line in done:
        typer.echo(f"mended: {line}")
    for line in left:
        typer.echo(f"for you to mend: {line}")
    if not done and not left:
        typer.echo("nothing is damaged")
    if left:
        sys.exit(1)


def restore(folder: Path, file: Path) -> None:
    """Make the silo's folder from a backup."""
    federation.need_flower()
    when = federation.show_restored(file, folder, "silo")
    typer.echo(
        f"spent.json and the ledger are those of {when}: answers since then are not counted. Put the newest there; "
        "without any, and with an epsilon in silo.toml, lower that by what runs since then have spent. "
        "If a run since then has summed uploads that its server does not see, make a new key (`coterie silo rotate`): "
        "this silo no longer knows for which rounds it has revealed its shares."
    )


ACTIONS: dict[str, Callable[[Path, list[str]], None]] = {
    "ledger": show_ledger,
    "approve": approve,
    "rejoin": rejoin,
    "rotate": rotate,
    "trust": trust,
    "health": lambda folder, more: federation.show_health(folder),
    "repair": repair,
    "group": group,
    "join": join,
    "meet": meet,
}
