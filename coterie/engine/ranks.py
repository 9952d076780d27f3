"""Silos sharded over several processes: each trains its share, and then holds what all have found.

The server's half runs in every process alike: it is deterministic, and its draws are keyed. What processes tell one
another are tensors and, as JSON, what these are.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from coterie.engine.exchange import Measures
from coterie.engine.method import Cohort
from coterie.engine.predictors import restored
from coterie.engine.simulate import Simulator
from coterie.engine.task import Task
from coterie.errors import BadInput, Stopped
from coterie.wire import Deployable, Record, assembled

R = TypeVar("R", bound=Record)
OUTPUTS = "outputs of "  # all silos of a share, end to end, by split
LONGEST = timedelta(days=7)  # one process may train, or write its report, for long while others wait


def join() -> None:
    """Meet the other processes that `torchrun` started: over gloo what is on a CPU, over nccl what is on a GPU."""
    if dist.is_initialized():
        return  # for a study's cell before this one
    local = int(os.environ["LOCAL_RANK"])
    if local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    dist.init_process_group(timeout=LONGEST)


def simulator() -> type[Simulator]:
    """What simulates silos here: over several processes where they have met."""
    return Sharded if dist.is_available() and dist.is_initialized() else Simulator


class Sharded(Simulator):
    """A simulator that does its share of the work, and tells the others."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        device = self.model.device
        here, there = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
        if device.type == "cuda" and (device.index is not None or here > there):
            raise BadInput(
                f"--device {device}: {here} processes here and {there} GPUs; start one for each GPU, with --device cuda"
            )

    @torch.no_grad()
    def measure(self, cohort: Cohort, down: Any, splits: tuple[str, ...], hold: tuple[int, ...] = ()) -> Measures:
        shares = self._shares(cohort)
        mine, own = shares[dist.get_rank()], list[Measures]()

        def measured() -> dict[str, Tensor]:
            found = super(Sharded, self).measure(replace(cohort, ids=cohort.ids[mine]), down.take(mine), splits)
            own.append(found)
            named = {"/".join(key): torch.from_numpy(value) for key, value in found.values.items()}
            for split, each in found.outputs.items():
                if each:
                    named[OUTPUTS + split] = torch.from_numpy(np.concatenate(list(each.values())))
            return named

        values = dict[tuple[str, str], np.ndarray]()
        outputs: dict[str, dict[str, np.ndarray]] = {split: {} for split in splits if split != "train"}
        for share, named in zip(shares, _exchanged(measured, cohort, len(shares), torch.device("cpu")), strict=True):
            ids = cohort.ids[share].tolist()
            for split, found in outputs.items():
                if OUTPUTS + split in named:
                    some = [i for i in ids if self.store[split].count[i]]
                    ends = np.cumsum(self.store[split].count[some])[:-1]
                    each = np.split(named.pop(OUTPUTS + split).numpy(), ends)
                    found |= dict(zip((cohort.roster.names[i] for i in some), each, strict=True))
            for name, value in named.items():
                split, _, measure = name.partition("/")
                values.setdefault((split, measure), np.full(len(cohort.ids), np.nan))[share.cpu()] = value
        names = [cohort.roster.names[i] for i in cohort.ids.tolist()]
        ordered = {split: {name: each[name] for name in names if name in each} for split, each in outputs.items()}

        def models() -> Deployable:
            """All processes pick the same round, so all come here together."""
            busy = [share.cpu() for share in shares if len(share)]
            handed = own[0].models
            found = _exchanged(lambda: handed().tensors() if handed else {}, cohort, len(busy), torch.device("cpu"))
            form = json.loads(_text(json.dumps(handed().form if handed else None).encode(), 0))
            return assembled([restored(form, named) for named in found], busy)

        return Measures(cohort, values, ordered, models if self.models else None)

    def _whole(self, cohort: Cohort, work: Callable[[Task, Tensor], R]) -> R:
        shares = self._shares(cohort)
        mine, record = shares[dist.get_rank()], list[R]()
        mine = mine if len(mine) else shares[0][:1]  # which tells this process what such a record looks like

        def worked() -> dict[str, Tensor]:
            part = replace(cohort, ids=cohort.ids[mine])
            record.append(super(Sharded, self)._whole(part, lambda task, place: work(task, mine[place])))
            return record[0].tensors()

        busy = [share for share in shares if len(share)]
        found = _exchanged(worked, cohort, len(busy), self.model.device)
        return assembled([record[0].with_tensors(named) for named in found], busy)

    def _shares(self, cohort: Cohort) -> list[Tensor]:
        """By process: the places in the cohort of the silos it works on, dealt out from the one with most data down."""
        count = self.store["train"].count[cohort.ids.cpu().numpy()]
        order = torch.from_numpy(np.argsort(-count, kind="stable")).to(cohort.ids.device)
        return [order[rank :: dist.get_world_size()] for rank in range(dist.get_world_size())]


def _exchanged(
    work: Callable[[], Mapping[str, Tensor]], cohort: Cohort, senders: int, device: torch.device
) -> list[dict[str, Tensor]]:
    """What the work gave in each of the first so many processes; what went wrong in one is wrong in all."""
    failed, mine = "", dict[str, Tensor]()
    try:
        mine = {name: tensor.contiguous() for name, tensor in work().items()}
    except BadInput as error:
        failed = str(error)
    shapes = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in mine.items()}
    where = [cohort.round, cohort.ids.tolist()]
    own = json.dumps({"failed": failed, "where": where, "shapes": shapes}).encode()
    abouts = [json.loads(_text(own, sender)) for sender in range(dist.get_world_size())]
    for about in abouts:
        if about["failed"]:
            raise BadInput(about["failed"])
        if about["where"] != where:
            raise RuntimeError(f"processes went apart: one is at {about['where']}, another at {where}")
    return [_tensors(mine, sender, about["shapes"], device) for sender, about in enumerate(abouts[:senders])]


def _tensors(
    mine: dict[str, Tensor], sender: int, shapes: Mapping[str, Any], device: torch.device
) -> dict[str, Tensor]:
    named = mine
    if sender != dist.get_rank():
        named = {name: torch.empty(s, dtype=getattr(torch, t), device=device) for name, (t, s) in shapes.items()}
    for tensor in named.values():
        if tensor.numel():
            _broadcast(tensor.view(-1).view(torch.uint8), sender)  # as bytes: not all types can travel
    return named


def _text(text: bytes, sender: int) -> bytes:
    size = torch.tensor([len(text)])
    _broadcast(size, sender)
    mine = sender == dist.get_rank()
    body = torch.frombuffer(bytearray(text), dtype=torch.uint8) if mine else torch.empty(int(size), dtype=torch.uint8)
    _broadcast(body, sender)
    return body.numpy().tobytes()


def _broadcast(tensor: Tensor, sender: int) -> None:
    try:
        dist.broadcast(tensor, sender)
    except RuntimeError:  # gloo has no other kind
        raise Stopped("another process that torchrun started has ended, or the network to it has failed") from None
