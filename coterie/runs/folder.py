"""The folder of a run: taken by one run at a time, resumable from its first moment, looked into at any."""

import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import pandas as pd
import torch

from coterie.durable import sync_all, write_whole
from coterie.errors import BadInput, Stopped, refused
from coterie.lock import locked
from coterie.options import parse
from coterie.personal.export import file_name
from coterie.runs.checkpoint import results_in
from coterie.studies.study import Study

UNFINISHED = ".unfinished"  # in a folder until its run has ended: all that determines the run
CHECKPOINTS = ".checkpoints"
LOCK = ".lock"  # in a folder while a process runs there
RESULTS = "results.parquet"
COLUMNS = ["method", "seed", "round", "silo", "split", "measure", "value"]


@dataclass(frozen=True)
class Begun:
    """What a run needs to go on in another process."""

    study: str  # as TOML
    command: str
    machine: dict[str, str] = field(default_factory=dict)  # device and versions, from when training began
    data: dict[str, str] = field(default_factory=dict)  # checksums of the silos' data, by seed

    def write(self, out: Path) -> None:
        """Leave it in the folder of the run."""
        write_whole(out / UNFINISHED, json.dumps(asdict(self), indent=1, ensure_ascii=False).encode())

    @staticmethod
    def read(out: Path) -> "Begun":
        """What an unfinished run left in its folder."""
        try:
            return parse(Begun, json.loads((out / UNFINISHED).read_text("utf-8")), f"--resume {out}: {UNFINISHED}")
        except FileNotFoundError:
            why = "this run has finished" if (out / RESULTS).exists() else "no unfinished run is there"
            raise BadInput(f"--resume {out}: {why}; give the folder of a run that was stopped") from None
        except OSError as error:
            raise BadInput(
                f"--resume {out}: {error.strerror or error}; give the folder of a run that was stopped"
            ) from None
        except (ValueError, RecursionError, BadInput):
            raise BadInput(f"--resume {out}: its {UNFINISHED} is damaged; start the run anew") from None


def partial_results(out: Path) -> pd.DataFrame:
    """The results of a run so far, finished or not: a row is one value, as in results.parquet."""
    if (out / RESULTS).exists() and not (out / UNFINISHED).exists():
        return pd.read_parquet(out / RESULTS)
    table = results_in(out / CHECKPOINTS)
    return pd.DataFrame(columns=COLUMNS) if table is None else table.select(COLUMNS).to_pandas()


def checkpoint_folder(out: Path, place: int, method: str, seed: int) -> Path:
    """Where a run keeps one method on one seed, `place` being its place in the study."""
    return out / CHECKPOINTS / f"{place:04}-{file_name(method)}-{seed}"


def claim(out: Path) -> list[Path]:
    """Make the folder of a run; returned are all folders made. One that holds anything is never written over."""
    made = list[Path]()
    try:
        if out.exists() and (not out.is_dir() or any(path.name != LOCK for path in out.iterdir())):
            raise BadInput(f"--out {out}: exists already and is not overwritten; give another folder or remove it")
        made = [folder for folder in (out, *out.parents) if not folder.exists()]
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove(made)
        raise BadInput(f"--out {out}: {error.strerror or error}; give a folder that can be written") from None
    return made


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep other runs out of a folder."""
    with ExitStack() as stack:
        with refused(f"--out {out}", "give a folder that can be written"):
            mine = stack.enter_context(locked(out / LOCK, wait=False))
        if not mine:
            raise BadInput(f"{out}: another process is running in this folder; wait for it or stop it")
        try:
            yield
        finally:
            if not (out / UNFINISHED).exists():
                with suppress(OSError):  # Windows removes no file that is open
                    (out / LOCK).unlink()


@contextmanager
def cleanup_on_error(out: Path, made: list[Path] | None = None) -> Iterator[None]:
    """Whatever ends a run early: the folder stays, and the error is how to go on. Before any training nothing stays.

    `made` are the folders that a new run has made.
    """
    try:
        yield
    except BaseException as error:
        kept = made is None or (out / CHECKPOINTS).exists()
        if made is not None and not kept:
            release(out, made)
        if isinstance(error, OSError):
            remedy = f"when that is mended, {go_on(out)}" if kept else "give a folder that can be written"
            raise BadInput(f"--out {out}: {error.strerror or error}; {remedy}") from None
        if isinstance(error, KeyboardInterrupt) and kept:
            raise Stopped(stopped(out)) from None
        if (short := shortage(error)) is not None:
            raise BadInput(f"{short}{f'; when there is room, {go_on(out)}' if kept else ''}") from None
        raise


def shortage(error: BaseException) -> str | None:
    """The message about memory that ran out, if that was the error."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory on the GPU; wait if others use it, or take fewer silos, a smaller model or --device cpu"
    # PyTorch has no error of its own for a CPU that has no more.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)):
        return "out of memory; take fewer silos, a smaller model or smaller data"
    return None


def stopped(out: Path) -> str:
    """The message about a run that was stopped."""
    return f"stopped; {go_on(out)}"


def go_on(out: Path) -> str:
    """How to go on with a run."""
    return f"go on with: coterie run --resume {shlex.quote(str(out))}"


def release(out: Path, made: list[Path]) -> None:
    """Undo `claim`, and all that was written since: nothing half-written stays."""
    for entry in out.iterdir() if out.is_dir() else ():
        with suppress(OSError):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    _remove(made)


def close(out: Path) -> None:
    """The run has finished: what it kept to go on is needed no more."""
    sync_all(out)
    (out / UNFINISHED).unlink()  # first: without its checkpoints an unfinished run would begin anew
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)


def default_folder(study: Study) -> Path:
    """Where a run goes without --out."""
    name = f"{study.name}-{study.cell}" if study.cell else study.name
    return Path("runs") / f"{file_name(name)}-{datetime.now():%Y%m%d-%H%M%S}"


def _remove(folders: list[Path]) -> None:
    """Empty folders, the innermost first."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
