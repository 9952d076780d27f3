"""Run a study: every method and seed, and everything a person wants of it afterwards in one folder."""

import json
import math
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import coterie
from coterie.data import catalog
from coterie.data.silo import Silo
from coterie.engine.rounds import Outcome, Progress, traces
from coterie.errors import BadInput
from coterie.export import file_name, save_models
from coterie.federation import Federation
from coterie.measure.beside import set_beside
from coterie.measure.blocks import block_scores
from coterie.measure.metrics import summarize
from coterie.models import build
from coterie.report.page import render
from coterie.study import Study

UNFINISHED = ".unfinished"  # in a folder while a run writes to it, so that no other run takes it

Watch = Callable[[str, int, Progress], None]  # method, seed, progress


@dataclass(frozen=True)
class Finished:
    """A study that has run."""

    study: Study  # with everything written back
    results: pd.DataFrame
    summary: dict[str, Any]
    traces: dict[str, dict[str, np.ndarray]]  # of the first seed
    labels: pd.DataFrame


def prepare(study: Study, seed: int, like: Federation | None = None) -> tuple[Study, Federation]:
    """The federation of one seed; everything a study can get wrong is found here, before any training.

    `like` is that of another seed, whose model (and what was compiled for it) serves again.
    """
    data = catalog.load(study.data["name"], study.data, seed)
    sample = data.silos[0].train
    factory, model = build(study.model, sample.x.shape[1:], data.classes or math.prod(sample.y.shape[1:]))
    machine = study.machine
    federation = Federation(
        data.silos,
        like.model if like is not None else factory,
        data.classes,
        study.training,
        seed,
        machine.device,
        machine.rows,
        machine.precision,
    )
    return replace(study, model=model), federation


def run(study: Study, watch: Watch, save: Callable[[str, int, Outcome, Federation], None]) -> Finished:
    """Every method on every seed."""
    began = time.perf_counter()
    federations: dict[int, Federation] = {}
    for seed in study.seeds:
        study, federations[seed] = prepare(study, seed, federations.get(study.seeds[0]))
    first = federations[study.seeds[0]]
    for name, method in study.methods.items():
        for federation in federations.values():
            federation.rows = first.rows  # measured once, so that a study written back says how all of it was computed
            engine = federation.engine(method, study.training_of(name))
            first.rows = engine.rows
            reason = method.refusal(engine.roster, federation.model)
            if reason is not None:
                raise BadInput(f"[methods.{name}] {reason}")
    results, extras, kept = list[pd.DataFrame](), dict[str, list[dict[str, Any]]](), dict[str, dict[str, Any]]()
    for name, method in study.methods.items():
        for seed, federation in federations.items():
            try:
                told = partial(watch, name, seed)
                outcome = federation.train(method, told, study.training_of(name))
            except BadInput as error:
                raise BadInput(f"[methods.{name}] {error}") from None
            table = pd.concat(outcome.results, ignore_index=True)
            results.append(table.assign(method=name, seed=seed))
            costs = ("bytes_up", "bytes_down", "train_seconds", "missing")
            extras.setdefault(name, []).append({"seed": seed, **{key: getattr(outcome, key) for key in costs}})
            if name not in kept and outcome.traces:
                silos = np.array([silo.name for silo in federation.members])
                groups = np.array([silo.group for silo in federation.members])
                about = {"silos": silos, "groups": groups, "rounds": np.array(outcome.measured)}
                kept[name] = {**about, **traces(outcome)}
            save(name, seed, outcome, federation)
    columns = ["method", "seed", "round", "silo", "split", "measure", "value"]
    whole = pd.concat(results, ignore_index=True)[columns]
    study = replace(study, machine=replace(study.machine, device=first.model.device.type, rows=outcome.rows))
    sizes = {seed: {silo.name: len(silo.test) for silo in f.silos} for seed, f in federations.items()}
    summary: dict[str, Any] = {
        "study": study.name,
        "device": device_name(first.model.device),
        "versions": versions(),
        "seconds": time.perf_counter() - began,
        "methods": summarize(whole, sizes, extras),
    }
    set_beside(summary["methods"], study)
    for name, arrays in kept.items():
        if "collaboration" in arrays:
            summary["methods"][name] |= block_scores(arrays["collaboration"][-1], arrays["groups"])
    return Finished(study, whole, summary, kept, label_counts(first.silos))


def run_into(study: Study, out: Path, command: str, watch: Watch) -> Finished:
    """Run a study and write its folder."""
    made = claim(out)
    try:

        def save(name: str, seed: int, outcome: Outcome, federation: Federation) -> None:
            if seed == study.seeds[0] and outcome.models is not None:
                about = {"method": name, "study": study.name, "round": study.training.rounds, "seed": seed}
                silos = [silo.name for silo in federation.members]
                save_models(out / "models" / name, federation.model.layout, outcome.models, silos, about)

        finished = run(study, watch, save)
        write(finished, out, command)
        (out / UNFINISHED).unlink()
    except OSError as error:
        release(out, made)
        raise BadInput(f"--out {out}: {error.strerror or error}; give a folder that can be written") from None
    except BaseException:
        release(out, made)
        raise
    return finished


def write(finished: Finished, out: Path, command: str) -> None:
    """The files of a finished study."""
    text = finished.study.as_toml()
    (out / "study.toml").write_text(text, "utf-8")
    finished.results.to_parquet(out / "results.parquet", index=False)
    summary = {"command": command, **finished.summary}
    (out / "summary.json").write_text(json.dumps(_finite(summary), indent=1, ensure_ascii=False) + "\n", "utf-8")
    (out / "collaboration").mkdir(exist_ok=True)
    for name, arrays in finished.traces.items():
        np.savez_compressed(out / "collaboration" / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    if find_spec("plotly"):  # a training machine may lack it; the report can be made elsewhere from these files
        about = {"name": finished.study.name, "command": command, "toml": text}
        methods = finished.summary["methods"]
        render(methods, finished.results, finished.traces, finished.labels, about, out / "report.html")


def claim(out: Path) -> list[Path]:
    """Make the folder of a run, and say which folders that took. One that holds anything is never written over."""
    made = list[Path]()
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadInput(f"--out {out}: exists already and is not overwritten; give another folder or remove it")
        made = [folder for folder in (out, *out.parents) if not folder.exists()]
        out.mkdir(parents=True, exist_ok=True)
        (out / UNFINISHED).touch(exist_ok=False)
    except OSError as error:
        _remove(made)
        raise BadInput(f"--out {out}: {error.strerror or error}; give a folder that can be written") from None
    return made


def release(out: Path, made: list[Path]) -> None:
    """Undo `claim`, and all that was written since: nothing half-written stays."""
    with suppress(OSError):
        for entry in out.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    _remove(made)


def default_folder(study: Study) -> Path:
    """Where a run goes that was not told."""
    name = f"{study.name}-{study.cell}" if study.cell else study.name
    return Path("runs") / f"{file_name(name)}-{datetime.now():%Y%m%d-%H%M%S}"


def label_counts(silos: list[Silo]) -> pd.DataFrame:
    """How many training samples of each label every silo has."""
    parts = []
    for silo in silos:
        if silo.train.y.ndim == 1 and silo.train.y.dtype.kind in "iu":
            labels, counts = np.unique(silo.train.y, return_counts=True)
            parts.append(pd.DataFrame({"silo": silo.name, "label": labels, "count": counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["silo", "label", "count"])


def device_name(device: torch.device) -> str:
    """What the numbers were computed on."""
    if device.type == "cuda":
        return f"{device.type} ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({torch.get_num_threads()} threads, {platform.machine()})"


def versions() -> dict[str, str]:
    """What the numbers were computed with."""
    return {
        "coterie": coterie.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _remove(folders: list[Path]) -> None:
    """Empty folders, the innermost first."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _finite(value: Any) -> Any:
    """JSON has no infinity: the loss of a model that diverged is null."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
