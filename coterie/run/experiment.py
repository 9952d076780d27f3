"""Run a study: every method and seed, into a folder from which a run that was stopped goes on."""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib.metadata import distributions
from itertools import product
from pathlib import Path

import numpy as np
import torch

from coterie.data import catalog
from coterie.data.mapped import holding
from coterie.data.own.agree import Difference
from coterie.data.own.ready import OwnData, ready
from coterie.data.silo import FederatedData, named
from coterie.engine import ranks
from coterie.engine.method import Method
from coterie.engine.over_processes import columnwise
from coterie.engine.rehearsal import held_at_peak, peak_memory
from coterie.engine.rounds import Outcome, Progress
from coterie.engine.training import Training, suited
from coterie.errors import BadInput, warn
from coterie.measure.predictions import Key, Rows
from coterie.methods import METHODS
from coterie.methods.stack import Stack
from coterie.models import build, code, split_parts
from coterie.models.parts import Blueprint
from coterie.options import parse
from coterie.run import torchrun
from coterie.run.assembly import Assembly
from coterie.run.baselines import all_fit, baselines, suits
from coterie.run.finished import (
    TUNING,
    Facts,
    Finished,
    collected,
    device_name,
    label_counts,
    split_rows,
    versions,
    write,
)
from coterie.run.method_file import CHECKSUM
from coterie.run.seeds import models_of, with_seeds
from coterie.run.spread import Tell, spread
from coterie.run.trained import keeps_models, train_one
from coterie.run.tuning import tuned
from coterie.runs.checkpoint import Checkpoint
from coterie.runs.folder import Begun, checkpoint_folder, claim, cleanup_on_error, close, held
from coterie.studies.study import Study, check, loads

Watch = Callable[[str, int, Progress], None]  # method, seed, progress
Say = Callable[[str], None]  # a line for whoever waits
WORTH_REHEARSING = 50  # rounds; of fewer on a CPU a rehearsal would be a good part


def prepare(study: Study, seed: int, like: Assembly | None = None) -> tuple[Study, Assembly]:
    """The federation of one seed; everything a study can get wrong is found here, before any training.

    `like` was prepared before: its model (and what was compiled for it) serves again, and of the same seed its data.
    """
    with holding(study.machine.in_memory):
        return _prepared(study, seed, like)


def _prepared(study: Study, seed: int, like: Assembly | None) -> tuple[Study, Assembly]:
    data = like.data if like is not None and like.seed == seed and like.data is not None else read(study, seed)
    sample = data.silos[0].train
    shape, outputs = sample.x.shape[1:], data.classes or math.prod(sample.y.shape[1:])
    samples = float(np.median([len(silo.train) for silo in data.silos]))
    if study.code is None:
        factory, model = build(study.model, shape, outputs, samples)
    else:
        parts = split_parts(study.model)[1].with_checksum()
        factory = Blueprint(code.factory(study.code, shape, outputs), parts)
        model = {"name": study.model["name"], **parts.as_table()}
    study = replace(study, model=model, training=_suited(study.training, data), methods=_with_incumbent(study, data))
    # Errors are reported in the unit of the label, which another seed's training rows may put otherwise.
    again = like is not None and all(schema.unit == like.model.unit for schema in data.schemas.values())
    made = like.model if like is not None and again else None
    how = (study.machine.device, study.machine.rows, study.machine.precision)
    federation = Assembly(data.silos, made or factory, data.classes, study.training, seed, *how, data)
    federation.table = model
    federation.differences = (*federation.differences, *_taken_in_part(federation))
    return study, federation


def _taken_in_part(federation: Assembly) -> list[Difference]:
    """Silos that take part in a round with some of their training rows."""
    training, found = federation.training, list[Difference]()
    for silo in federation.silos:
        if (taken := training.taken(len(silo.train))) < len(silo.train):
            what = f"each round trains on {taken:,} of its {len(silo.train):,} training rows, drawn anew"
            found.append(Difference("rows", silo.name, f"{what} (train.round_samples)"))
    return found


def _with_incumbent(study: Study, data: FederatedData) -> dict[str, Method]:
    """The methods; where silos have models of their own, these are among what a stack mixes."""
    if all(silo.train.incumbent is None for silo in data.silos):
        return study.methods
    return {
        name: replace(method, incumbent=True) if isinstance(method, Stack) else method
        for name, method in study.methods.items()
    }


def _suited(training: Training, data: FederatedData) -> Training:
    """Training with what the data decide."""
    if data.classes == 0 or data.silos[0].train.y.ndim > 1:
        counts = None
    else:
        counts = np.bincount(np.concatenate([silo.train.y for silo in data.silos]), minlength=data.classes).tolist()
    return suited(training, data.classes, counts, [len(silo.train) for silo in data.silos])


def read(study: Study, seed: int) -> FederatedData:
    """The data of a study: as its `[data]` says, or as they were given in Python."""
    if study.holdings is None:
        return catalog.load(study.data["name"], study.data, seed)
    options = {key: value for key, value in study.data.items() if key != "name"}
    return ready(study.holdings, parse(OwnData, options, "[data]"), seed)


def prepare_all(study: Study, like: Assembly | None = None) -> tuple[Study, dict[int, Assembly]]:
    """The federations of all seeds, every method tried on them, and the study with what that chose written back.

    `like` is that of one seed, where it was prepared before.
    """
    federations: dict[int, Assembly] = {}
    with holding(study.machine.in_memory):  # all of them together
        for seed in study.seeds:
            study, federations[seed] = prepare(study, seed, federations.get(study.seeds[0], like))
    first = federations[study.seeds[0]]
    for name, method in study.methods.items():
        for federation in federations.values():
            federation.rows = first.rows  # measured once, so that a study written back says how all of it was computed
            engine = federation.engine(method, study.training_of(name))
            first.rows = engine.rows
            reason = engine.method.refusal(engine.roster, federation.model)
            if reason is not None:
                raise BadInput(f"[methods.{name}] {reason}")
    machine = replace(study.machine, device=first.model.device.type, rows=int(first.rows))
    return replace(study, machine=machine), federations


def run(study: Study, federations: Mapping[int, Assembly], out: Path, watch: Watch) -> Finished:
    """Every method on every seed, each from where the folder says that it was."""
    began = time.perf_counter()
    cells = list(product(study.methods, federations))
    folders = {cell: checkpoint_folder(out, place, *cell) for place, cell in enumerate(cells)}

    def train(cell: tuple[str, int], tell: Tell) -> None:
        name, seed = cell
        train_one(study, name, federations[seed], folders[cell], out, lambda progress: tell(asdict(progress)))

    first = federations[study.seeds[0]]
    thin = ranks.count() == 1 and all(each.thin for each in federations.values())
    spread(
        cells,
        train,
        lambda cell, report: watch(cell[0], cell[1], Progress(**report)),
        thin,
        lambda cell: models_of(study.methods[cell[0]]),
    )
    outcomes = dict[tuple[str, int], Outcome]()
    for cell, folder in folders.items():
        ended = Checkpoint(folder, cell[0], cell[1]).ended()
        assert ended is not None  # what was trained is there
        outcomes[cell] = ended
    facts = {
        seed: Facts(
            {silo.name: silo.group for silo in f.members},
            {silo.name: len(silo.test) for silo in f.silos},
            {silo.name: silo for silo in f.members},
            f.schemas,
        )
        for seed, f in federations.items()
    }
    today = _baselines(study, federations)
    finished = collected(study, out, outcomes, facts, first.model.device, time.perf_counter() - began, today)
    names = next(iter(first.schemas.values())).classes if first.schemas else ()
    if first.schemas:
        finished.summary["data"] = {"note": first.note, "differences": [asdict(each) for each in first.differences]}
    if first.model.base:
        finished.summary["base"] = first.model.base_checksum
    silos = {seed: f.silos for seed, f in federations.items()}
    labels, splits = label_counts(silos, names), split_rows(silos)
    return replace(finished, labels=labels, differences=first.differences, splits=splits)


def _baselines(study: Study, federations: Mapping[int, Assembly]) -> dict[Key, Rows]:
    """What people use today, of silos with tables of their own; papers compare with other things."""
    found = dict[Key, Rows]()
    for seed, each in federations.items():
        if each.schemas and suits(each.members) and not all_fit(each.members):
            warn(
                "silos' samples are much of the memory, which plain models would take several times: they are left out"
            )
        elif each.schemas and suits(each.members):
            found |= dict(baselines(each.members, each.model.classes, seed, each.schemas, study.training.positive))
    return found


def run_into(
    study: Study, out: Path, command: str, watch: Watch, say: Say = lambda line: None, like: Assembly | None = None
) -> Finished:
    """Run a study and write its folder; `like` is the federation of one seed, where it was prepared before."""
    made = claim(out)
    with held(out), cleanup_on_error(out, made):
        Begun(study.as_toml(), command).write(out)
        return _go_on(study, out, watch, say, like)


def accompany(study: Study, out: Path) -> None:
    """Do this process's share of a study whose results another process writes: its silos, their models, checkpoints."""
    _meet(out)
    study, federations = prepare_all(study)
    study, _ = tuned(study, federations[study.seeds[0]])
    for federation in federations.values():
        federation.forget_others()
    rehearse(study, federations, lambda line: None)
    for place, (name, seed) in enumerate(product(study.methods, federations)):
        folder = checkpoint_folder(out, place, name, seed)
        train_one(study, name, federations[seed], folder, out, lambda progress: None)


def _meet(out: Path) -> None:
    """Wait until the folder of a run is there, and refuse one that not all processes see."""
    ranks.from_all(None)  # the first has made it
    if not all(ranks.from_all(out.is_dir())):
        raise BadInput(f"--out {out}: not all hosts see this folder; give one on a disk that they share")


def rehearse(study: Study, federations: Mapping[int, Assembly], say: Say) -> int | None:
    """Say how many bytes of memory the study will take, where that is worth the trial."""
    first = federations[study.seeds[0]]
    device = first.model.device.type
    if device == "cuda" or study.training.rounds >= WORTH_REHEARSING:
        kept = keeps_models(study, first)
        most = max(peak_memory(first.engine(m, study.training_of(name), kept)) for name, m in study.methods.items())
        if most:
            say(f"Memory at the peak: about {most / 2**30:.1f} GiB{' on the GPU' if device == 'cuda' else ''}")
        return most
    return None


def resume(out: Path, watch: Watch, code: str | None = None, say: Say = lambda line: None) -> Finished:
    """Go on with a run that was stopped or killed; it ends as if it had not been."""
    with held(out), cleanup_on_error(out):
        return _go_on(unfinished(out, code), out, watch, say)


def unfinished(out: Path, code: str | None = None) -> Study:
    """The study whose run was stopped or killed; `code` is its model, where that was one's own."""
    begun = Begun.read(out)
    _check_plugins(begun.machine, out)
    return check(loads(begun.study, str(out)), code=code)


def _check_plugins(machine: Mapping[str, str], out: Path) -> None:
    """Refuse to go on without the packages and the file of methods that a run began with."""
    for name, version in machine.items():
        if version.startswith(CHECKSUM):
            given, lent = METHODS.lent
            if given.version != version:
                other = f"; {given.name} is another" if lent else ""
                raise BadInput(
                    f"--resume {out}: its methods are from {name}; give --method-file {name} as it was{other}"
                )
        elif name not in ("device", *versions({})) and not any(distributions(name=name)):
            raise BadInput(
                f"--resume {out}: uses {name} {version}, which is not installed; pip install {name}=={version}"
            )


def _go_on(study: Study, out: Path, watch: Watch, say: Say, like: Assembly | None = None) -> Finished:
    _meet(out)
    begun = Begun.read(out)
    study, federations = prepare_all(study, like)
    seed = study.seeds[0]
    study, tried = tuned(study, federations[seed], lambda name, progress: watch(name, seed, progress))
    if len(tried):
        tried.to_parquet(out / TUNING, index=False)
    if study.auto_seeds:
        if len(tried) and not torchrun.used():  # whose other processes have their share of one seed alone
            study, why = with_seeds(study, federations[seed])
            say(why)
            if len(study.seeds) > 1:
                study, federations = prepare_all(study, federations[seed])
        study = replace(study, auto_seeds=False)
    machine = {"device": device_name(federations[study.seeds[0]].model.device), **versions(study.plugins)}
    now = Begun(study.as_toml(), begun.command, machine, {str(seed): f.checksum() for seed, f in federations.items()})
    if begun.data and begun.data != now.data:
        raise BadInput(f"--resume {out}: the data are not those that the run began with; bring them back or start anew")
    if begun.machine and begun.machine != now.machine:
        changed = ", ".join(
            f"{key} {begun.machine.get(key)} -> {each}"
            for key, each in now.machine.items()
            if each != begun.machine.get(key)
        )
        warn(f"{out}: going on with another {changed}; results may differ in their last bits from an unbroken run")
    now.write(out)
    (out / "study.toml").write_text(now.study, "utf-8")
    _warn_of_fixed(federations)
    _warn_of_adam(study)
    whole = [name for name, method in study.methods.items() if ranks.count() > 1 and not columnwise(method)]
    if whole:
        say(f"{', '.join(whole)}: the server is held whole in every process, as it needs all columns of the models")
    _room_for_models(study, federations[study.seeds[0]], out)
    stated = rehearse(study, federations, say)
    device = federations[study.seeds[0]].model.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    finished = run(study, federations, out, watch)
    if device.type == "cuda":  # on a CPU the peak of a process is not that of the study alone
        finished.summary["memory"] = {"stated": stated, "peak": held_at_peak(device)}
    if begun.machine:
        finished.summary["seconds"] = None  # how long the processes before this one took is not known
    write(finished, out, begun.command)
    close(out)
    return finished


def _warn_of_fixed(federations: Mapping[int, Assembly]) -> None:
    """Warn where seeds repeat the training alone, because own data came split or are split by time."""
    first, *others = ({s.name: s.test.rows for s in f.silos if s.test.rows is not None} for f in federations.values())
    fixed = [name for name, rows in first.items() if all(np.array_equal(rows, other[name]) for other in others)]
    if others and fixed:
        warn(f"{named(fixed)}: the same test rows with every seed, so seeds repeat the training alone")


def _warn_of_adam(study: Study) -> None:
    """Warn of methods whose equations are for plain gradient steps, where the steps are Adam's."""
    for name, method in study.methods.items():
        if method.plain_steps and study.training_of(name).optimizer == "adam":
            key = f"methods.{name}.train"
            warn(
                f"[methods.{name}] is made for plain gradient steps: with adam it may not learn, or may fall back; "
                f"give it sgd and a rate with --set {key}.optimizer=sgd --set {key}.lr=0.01"
            )


def _room_for_models(study: Study, federation: Assembly, out: Path) -> None:
    """Refuse before the training what would fill the disk after it."""
    missing = [name for name in study.methods if not (out / "models" / name).exists()] if study.machine.models else []
    layout, itemsize = federation.model.layout, federation.model.dtype.itemsize
    one = sum(column.size for column in (*layout.parameters, *layout.buffers)) * itemsize
    need, free = len(missing) * len(federation.members) * one, shutil.disk_usage(out).free
    if need > free:
        raise BadInput(
            f"--out {out}: the silos' models take {need / 1e9:.1f} GB or more and {free / 1e9:.1f} GB are free; "
            "make room, give another folder, or keep no models with --set engine.models=false"
        )
