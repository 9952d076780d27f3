"""What is kept of a method while it trains, so that a run that was killed goes on where it was, bit for bit.

After a round the server's state and the silos' private state go into one file, whose name ends with its checksum; the
last two files stay. The models of the picked round have a file of their own, written when another round is picked. What
was measured goes into a journal. There is no random state to keep: every draw is keyed.

Of several processes each writes files of its own, with the rows of its silos and its columns of the server; the first
keeps the journal, and says which files a run goes on from. Another number of processes may go on (`runs/redealt.py`).
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from coterie.codec import save_tensors
from coterie.durable import sync
from coterie.engine import ranks
from coterie.engine.exchange import Engine, Kept
from coterie.engine.predictors import restored
from coterie.engine.rounds import Outcome, Picked
from coterie.engine.simulate import Simulator
from coterie.errors import warn
from coterie.measure.metrics import Pick, Rank
from coterie.runs.journal import Journal, Mark, entries
from coterie.runs.redealt import models_of, redealt
from coterie.wire import Deployable, Predictor, under

KEPT = 2  # checkpoints of a method
SMALL = 1 << 26  # bytes of a state that is written after every round
SHARE = 10  # a larger one when training since the last has taken this many times what writing that took
JOURNAL = "journal"
RESULTS, TRACES = b"r", b"t"  # kinds of entries
ELSEWHERE = ("server", "results", "traces", "models", "picked")  # fields of an outcome that are not in `about`
FILLED = {f.name for f in fields(Outcome)} - {"server", "results", "traces", "models"}  # from `about`
PICKED = "picked"  # tensors: what the models give for the samples of all silos, end to end, by split
ENGINE = "engine"  # what the engine keeps beside tensors
MODELS = "models"  # the file of the picked round's models that a checkpoint counts on
COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)  # a table is small


class Checkpoint:
    """One method on one seed; written every so many rounds, or as often as costs little."""

    def __init__(self, folder: Path, method: str, seed: int, every: int | Literal["auto"] = "auto") -> None:
        self.folder, self.method, self.seed, self.every = folder, method, seed, every
        self.journal = Journal(folder / JOURNAL)
        self._next = 0.0  # on the clock, when a large state is worth writing again
        self._models: tuple[int, str] | None = None  # the round whose models are on the disk, and their file
        self._part = "" if ranks.count() == 1 else f"-{ranks.rank()}of{ranks.count()}"  # of a file's name

    def keep(self, outcome: Outcome, engine: Engine, done: int) -> None:
        """Write where a run stands after so many rounds."""
        kept = engine.kept()
        state = {f"server.{name}": t for name, t in outcome.server.tensors().items()}
        state |= {f"engine.{name}": t for name, t in kept.tensors.items()}
        models = self._unwritten(outcome)
        if ranks.from_first(self._due(done, sum(t.nbytes for t in (*state.values(), *models.values())))):
            began = time.monotonic()
            if models:
                self._write_models(outcome, models, kept.about.get("silos"))
            self._write(f"round-{done:06}", state, outcome, kept.about)
            ended = time.monotonic()
            self._next = ended + SHARE * (ended - began)
            self._tidy()

    def restore(self, outcome: Outcome, engine: Engine) -> int | None:
        """Bring a run that has not begun to where it was kept last: the rounds done, or None if it begins anew."""
        names = ranks.from_first(self._sound() if ranks.rank() == 0 else [])
        if not names:
            return None
        paths = [self.folder / name for name in names]
        abouts = [_about(path) for path in paths]
        alike = len(paths) == ranks.count()  # as many processes as wrote it
        own = ranks.rank() if alike else 0
        with safe_open(paths[own], "pt", device=str(engine.model.device)) as file:
            wanted = [name for name in file.keys() if alike or name.startswith(PICKED)]  # noqa: SIM118
            named = {name: file.get_tensor(name).clone() for name in wanted}
        if alike:
            server, silos = under("server.", named), under("engine.", named)
        else:
            assert isinstance(engine, Simulator)
            server, silos = redealt(paths, outcome.server, engine)
        outcome.server = outcome.server.with_tensors(server)
        engine.restore(Kept(silos, abouts[own][ENGINE]))
        _fill(outcome, abouts[0], under(f"{PICKED}.", named))
        models = [self.folder / about[MODELS] for about in abouts if about[MODELS] is not None]
        if alike and abouts[own][MODELS] is not None and outcome.picked is not None:
            outcome.models = _read_models(self.folder / abouts[own][MODELS])
            self._models = outcome.picked.round, abouts[own][MODELS]
        elif models and isinstance(engine, Simulator) and not alike:
            form = _about(models[0]).get("kind", Predictor.kind)
            outcome.models = restored(form, models_of(models, engine.store.names, engine.roster.names))
        return _round(paths[0])

    def _sound(self) -> list[str]:
        """The files of the newest checkpoint that is whole; those after it that are damaged go."""
        damaged = list[Path]()
        for paths in self._sets():
            broken = [path for path in paths if self._read(path) is None]
            if not broken:
                self._discard(damaged, f"going on from the one after round {_round(paths[0])}")
                return [path.name for path in paths]
            damaged += broken
        self._discard(damaged, f"training {self.method} (seed {self.seed}) from its start")
        return []

    def _sets(self) -> list[list[Path]]:
        """The checkpoints of which all processes have written their files, the newest first."""
        found = dict[tuple[str, str], dict[str, Path]]()
        for path in self._files("round"):
            _, round, *part, _ = path.stem.split("-")
            which, _, count = part[0].partition("of") if part else ("0", "", "1")
            found.setdefault((round, count), {})[which] = path
        return [
            [parts[str(i)] for i in range(int(count))]
            for (_, count), parts in sorted(found.items(), reverse=True)
            if parts.keys() == {str(i) for i in range(int(count))}
        ]

    def end(self, outcome: Outcome, server: bool = False) -> None:
        """Write that a run has ended; of its last state only the server's stays, and that where it is asked for."""
        self.note(outcome)
        ranks.from_all(None)  # all have written their models
        if ranks.rank():
            return
        self._models = None
        state = {f"server.{name}": t for name, t in outcome.server.tensors().items()} if server else {}
        self._write("ended", state, outcome, {})
        for old in (*self._files("round"), *self._files(PICKED)):
            old.unlink()

    def ended(self) -> Outcome | None:
        """What is known of a run that has ended, but for what is in its journal; None if it has not."""
        damaged = list[Path]()
        for path in self._files("ended"):
            about = self._read(path)
            if about is not None:
                return _fill(Outcome(None), about, under(f"{PICKED}.", safetensors.torch.load_file(path)))
            damaged.append(path)
        self._discard(damaged, f"training {self.method} (seed {self.seed}) from its start")
        return None

    def _due(self, done: int, size: int) -> bool:
        if self.every != "auto":
            return done % self.every == 0
        return size <= SMALL or time.monotonic() >= self._next

    def note(self, outcome: Outcome) -> None:
        """Append what was measured to the journal: it leaves memory for the disk."""
        if ranks.rank():  # the first process has it too
            outcome.results, outcome.traces = [], {}
            return
        written = list[tuple[bytes, bytes]]()
        for table in outcome.results:
            if len(table):
                named = table.assign(method=self.method, seed=self.seed)
                written.append((RESULTS, _packed(pa.Table.from_pandas(named, preserve_index=False, nthreads=1))))
        if outcome.traces:
            stacked = {name: torch.from_numpy(np.stack(values)) for name, values in outcome.traces.items()}
            written.append((TRACES, safetensors.torch.save(stacked)))
        self.journal.append(written)
        outcome.results, outcome.traces = [], {}

    def _write(self, name: str, state: Mapping[str, Tensor], outcome: Outcome, engine: Mapping[str, Any]) -> None:
        about = {f.name: getattr(outcome, f.name) for f in fields(outcome) if f.name not in ELSEWHERE}
        about |= {JOURNAL: None if ranks.rank() else asdict(self.journal.mark()), ENGINE: engine}
        about |= {"names": engine["silos"]} if "silos" in engine else {}
        about[MODELS] = None if self._models is None else self._models[1]
        if outcome.picked is not None:
            outputs = {split: each for split, each in outcome.picked.outputs.items() if each}
            sizes = {split: {silo: len(rows) for silo, rows in each.items()} for split, each in outputs.items()}
            pick = outcome.picked.pick
            about[PICKED] = {"round": pick.round, "rank": pick.rank, "best": pick.best, "outputs": sizes}
            ends = {f"{PICKED}.{s}": torch.from_numpy(np.concatenate([*each.values()])) for s, each in outputs.items()}
            state = {**state, **ends}
        self._save(name, state, about)

    def _unwritten(self, outcome: Outcome) -> dict[str, Tensor]:
        """The models of the picked round where they are not on the disk; of rows that are all the same, one."""
        if outcome.models is None or outcome.picked is None:
            return {}
        if self._models is not None and self._models[0] == outcome.picked.round:
            return {}
        return {name: t[:1] if _one_for_all(t) else t for name, t in outcome.models.tensors().items()}

    def _write_models(self, outcome: Outcome, models: Mapping[str, Tensor], silos: list[str] | None) -> None:
        assert outcome.models is not None and outcome.picked is not None
        about = {"silos": outcome.models.count, "kind": outcome.models.form, **({"names": silos} if silos else {})}
        path = self._save(f"{PICKED}-{outcome.picked.round:06}", models, about)
        self._models = outcome.picked.round, path.name

    def _save(self, name: str, state: Mapping[str, Tensor], about: Mapping[str, Any]) -> Path:
        """Write a file so that it is there whole, under a name that ends with its checksum, or not at all."""
        part = self.folder / f"part{self._part}"
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            save_tensors(state, part, {"about": json.dumps(about)})
            sync(part)
            path = part.replace(self.folder / f"{name}{self._part}-{_checksum(part)}.safetensors")
        except OSError:
            part.unlink(missing_ok=True)  # a full disk has no room for it
            raise
        sync(self.folder)
        return path

    def _read(self, path: Path) -> dict[str, Any] | None:
        """What a checkpoint says beside its tensors; None if it is damaged, or the journal or models it counts on."""
        about = _about(path) if _whole(path) else {}
        try:
            models = about[MODELS]
            whole = models is None or _whole(self.folder / models)
            mark = about[JOURNAL]
            return about if whole and (mark is None or self.journal.back_to(Mark(**mark))) else None
        except (KeyError, TypeError):
            return None

    def _tidy(self) -> None:
        """Remove all but this process's last checkpoints, and the models that none of these counts on."""
        mine = [path for path in self._files("round") if _part_of(path) == self._part]
        named = {_about(path).get(MODELS) for path in mine[:KEPT]}
        models = [path for path in self._files(PICKED) if _part_of(path) == self._part and path.name not in named]
        for path in (*mine[KEPT:], *models):
            path.unlink()

    def _files(self, name: str) -> list[Path]:
        """Those of a name, the newest first."""
        return sorted(self.folder.glob(f"{name}-*.safetensors"), reverse=True)

    def _discard(self, damaged: list[Path], consequence: str) -> None:
        for path in damaged:
            warn(f"{path}: it or a file beside it is damaged, so it is not used; {consequence}")
            path.unlink()


def results_in(folder: Path) -> pa.Table | None:
    """All that the runs below a folder have measured so far, in their folders' order; None if that is nothing."""
    tables = [
        pa.ipc.open_stream(body).read_all()
        for path in sorted(folder.glob(f"*/{JOURNAL}"))
        for body in entries(path, RESULTS)
    ]
    return pa.concat_tables(tables) if tables else None


def traces_in(folder: Path) -> dict[str, np.ndarray]:
    """What one run has kept for looking at, by name: (rounds, ...)."""
    parts = [safetensors.torch.load(body) for body in entries(folder / JOURNAL, TRACES)]
    names = sorted(parts[0]) if parts else []
    return {name: torch.cat([part[name] for part in parts]).numpy() for name in names}


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=COMPRESSED) as stream:
        stream.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _fill(outcome: Outcome, about: Mapping[str, Any], outputs: Mapping[str, Tensor]) -> Outcome:
    for name, value in about.items():
        if name in FILLED:
            setattr(outcome, name, value)
    if outcome.picked is not None:
        kept: dict[str, Any] = about[PICKED]
        found = {}
        for split, sizes in kept["outputs"].items():
            parts = np.split(outputs[split].cpu().numpy(), np.cumsum(list(sizes.values()))[:-1])
            found[split] = dict(zip(sizes, parts, strict=True))
        outcome.picked = Picked(Pick(kept["round"], Rank(*kept["rank"]), Rank(*kept.get("best", kept["rank"]))), found)
    return outcome


def _one_for_all(t: Tensor) -> bool:
    """Whether all silos' rows are the same, bit for bit, as those of a global model are."""
    rows = (row.contiguous().view(torch.uint8) for row in t.reshape(len(t), -1))
    first = next(rows)
    return all(torch.equal(row, first) for row in rows)


def _read_models(path: Path) -> Deployable:
    about = _about(path)
    named = {name: t.expand(about["silos"], *t.shape[1:]) for name, t in safetensors.torch.load_file(path).items()}
    return restored(about.get("kind", Predictor.kind), named)


def _about(path: Path) -> dict[str, Any]:
    """What a file says beside its tensors; of a damaged one nothing."""
    try:
        with safe_open(path, "pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["about"])
        return about
    except (SafetensorError, KeyError, TypeError, ValueError):
        return {}


def _part_of(path: Path) -> str:
    """Of a file's name what says which process wrote it."""
    middle = path.stem.split("-")[2:-1]
    return f"-{middle[0]}" if middle else ""


def _round(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _whole(path: Path) -> bool:
    """Whether a file is there, and is what its name says."""
    return path.exists() and path.stem.rpartition("-")[2] == _checksum(path)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
