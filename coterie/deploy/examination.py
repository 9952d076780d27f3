"""How a silo's model may run over rows, kept on its own disk: every message is answered by a process of its own."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from coterie.deploy.home import write_whole
from coterie.deploy.messages import Job
from coterie.deploy.vault import DAMAGED
from coterie.engine.examine import recalled
from coterie.engine.rows import Model
from coterie.version import build

FILE = "state/examined.json"  # in a silo's folder


def probe(folder: Path, job: Job, model: Model, x: Tensor) -> None:
    """Find out from a few samples how the model of a job may run over rows, or recall what was found before."""
    path, key = folder / FILE, _key(job, model, x)
    with suppress(*DAMAGED):  # then it is found out again
        kept = json.loads(path.read_text("utf-8"))
        if kept["key"] == key:
            model.know(recalled(kept["found"], model.module, model.layout))
    known = model.found is not None
    model.probe(x)
    if not known and model.found is not None:
        with suppress(OSError):  # on a full disk it is found out for every message
            write_whole(path, json.dumps({"key": key, "found": model.found.as_table()}).encode())


def _key(job: Job, model: Model, x: Tensor) -> str:
    """The same only for a model of the same table and code, on the same device and with the same types of numbers."""
    code = [build(), torch.__version__, job.plugins]
    known = [code, job.model, job.shape, job.outputs, job.classes, str(model.device), str(model.dtype), str(x.dtype)]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
