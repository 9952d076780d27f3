"""A silo's data as a model takes them, kept on its own disk: every message is answered by a process of its own."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import safe_open

from coterie.data.own.incumbent import incumbent_file
from coterie.data.own.schema import Schema
from coterie.data.own.statistics import Description, description_of
from coterie.data.silo import Array, HoldsData, Part, Silo
from coterie.deploy.home import write_whole
from coterie.deploy.own import Raw, SiloSource, own_silo
from coterie.deploy.policy import judge_schema
from coterie.deploy.vault import DAMAGED
from coterie.engine.store import SPLITS
from coterie.errors import BadInput
from coterie.options import parse
from coterie.version import build

FILE, FACTS = "state/data.safetensors", "state/data.json"  # in a silo's folder


@dataclass(frozen=True, repr=False)
class Encoded(HoldsData):
    """A silo, its number of classes (0: targets are numbers) and, unless it holds arrays, how rows were encoded."""

    silo: Silo
    classes: int
    schema: Schema | None

    def about(self) -> str:
        return self.silo.about()


@dataclass(frozen=True)
class DataFacts:
    """What decides whether a study fits a silo's data, before its owner has approved that any row is encoded for it."""

    rows: int  # that it trains on
    shape: tuple[int, ...] = ()  # of a sample of arrays
    classes: int = 0  # of arrays
    columns: Description | None = None  # of a table or pictures


def facts_of(folder: Path, name: str, source: SiloSource) -> DataFacts:
    """These of a silo; its data are read for them only when they, or how to read them, have changed."""
    path, key = folder / FACTS, _key(name, source, {})
    with suppress(*DAMAGED, BadInput):
        kept = json.loads(path.read_text("utf-8"))
        if kept["key"] == key:
            return parse(DataFacts, kept["facts"], str(path))
    if source.archive:
        silo, classes = own_silo(name, source.path)
        found = DataFacts(len(silo.train), silo.train.x.shape[1:], classes)
    else:
        raw = Raw(name, source)
        found = DataFacts(len(raw.split.train), columns=description_of(raw.statistics()))
    with suppress(OSError):  # on a full disk they are read for every message
        write_whole(path, json.dumps({"key": key, "facts": asdict(found)}).encode())
    return found


def encoded_silo(folder: Path, name: str, source: SiloSource, agreed: Mapping[str, Any]) -> Encoded:
    """A silo's data, encoded as all silos agreed; read anew only when they, or how to read them, have changed."""
    path, key = folder / FILE, _key(name, source, agreed)
    found = _kept(path, name, key)
    if found is None:
        found = _read(name, source, agreed)
        with suppress(OSError):  # on a full disk it is read for every message
            _keep(path, found, key)
    return found


def _read(name: str, source: SiloSource, agreed: Mapping[str, Any]) -> Encoded:
    if not agreed:
        return Encoded(*own_silo(name, source.path), None)
    raw, wanted = Raw(name, source), Schema.read(agreed, "the run's schema")
    judge_schema(wanted, description_of(raw.statistics()))
    silo, schema = raw.encoded(wanted)
    return Encoded(silo, len(schema.classes), schema)


def _key(name: str, source: SiloSource, agreed: Mapping[str, Any]) -> str:
    """The same only for the same files, read and encoded in the same way."""
    files = [source.path] if source.path.is_file() else sorted(p for p in source.path.rglob("*") if p.is_file())
    if (path := incumbent_file(source.incumbent, name)) is not None and path.is_file():
        files += sorted(path.parent.glob(f"{path.name}*"))  # large weights of an ONNX file lie beside it
    stamps = [(str(path), stat.st_size, stat.st_mtime_ns) for path in files for stat in [path.stat()]]
    known = [build(), name, asdict(source), agreed, stamps]
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


def _keep(path: Path, data: Encoded, key: str) -> None:
    parts = {split: getattr(data.silo, split) for split in SPLITS}
    arrays = {f"{split}.{f.name}": getattr(part, f.name) for split, part in parts.items() for f in fields(part)}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    arrays |= {f"trees.{name}": array for name, array in (data.silo.trees or {}).items()}
    schema = json.dumps(None if data.schema is None else data.schema.as_table())
    about = {"key": key, "classes": str(data.classes), "schema": schema}
    write_whole(path, safetensors.numpy.save(arrays, about | {"sha256": _digest(arrays, about)}))


def _kept(path: Path, name: str, key: str) -> Encoded | None:
    """What was kept under this key; None where nothing was, or not as it is there now."""
    try:
        with safe_open(path, "numpy") as file:
            about = dict(file.metadata())
            digest = about.pop("sha256")
            if about["key"] != key:
                return None
            arrays = {each: file.get_tensor(each) for each in file.keys()}  # noqa: SIM118
        if _digest(arrays, about) != digest:
            return None
        parts = [Part(**_part(arrays, f"{split}.")) for split in SPLITS]
        silo = Silo(name, *parts, trees=_part(arrays, "trees.") or None)
        schema = json.loads(about["schema"])
        return Encoded(silo, int(about["classes"]), None if schema is None else Schema.read(schema, str(path)))
    except (*DAMAGED, BadInput):
        return None


def _part(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _digest(arrays: Mapping[str, Array], about: Mapping[str, str]) -> str:
    total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        total.update(f"\0{name},{array.dtype.str},{array.shape},".encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()
