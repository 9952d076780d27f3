"""Several processes that `torchrun` started: how they meet, what one sends to all, and how rows change hands.

What they exchange are tensors and, as JSON, what these are.
"""

import json
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import prod
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from coterie.errors import BadInput, Stopped, first_line
from coterie.wire import placed

T = TypeVar("T")
LONGEST = timedelta(days=7)  # one process may train, or write its report, for long while others wait


def join() -> None:
    """Meet the other processes that `torchrun` started: over gloo what is on a CPU, over nccl what is on a GPU."""
    if dist.is_initialized():
        return  # for a study's cell before this one
    local = int(os.environ["LOCAL_RANK"])
    if local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    dist.init_process_group(timeout=LONGEST)


def joined() -> bool:
    """Whether there are several processes that have met."""
    return dist.is_available() and dist.is_initialized()


def count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if joined() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if joined() else 0


def check_device(device: torch.device) -> None:
    """Refuse processes of which several would share a GPU."""
    here, there = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if device.type == "cuda" and (device.index is not None or here > there):
        raise BadInput(
            f"--device {device}: {here} processes here and {there} GPUs; start one for each GPU, with --device cuda"
        )


def from_all(value: Any) -> list[Any]:
    """What each process gives, as JSON, in their order."""
    if not joined():
        return [value]
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [torch.empty(1, dtype=torch.int64) for _ in range(count())]
    _called(dist.all_gather, sizes, torch.tensor([len(text)]))
    longest = max(int(size) for size in sizes)
    bodies = [torch.empty(longest, dtype=torch.uint8) for _ in sizes]
    _called(dist.all_gather, bodies, torch.nn.functional.pad(text, (0, longest - len(text))))
    return [json.loads(body[: int(size)].numpy().tobytes()) for body, size in zip(bodies, sizes, strict=True)]


def from_first(value: T) -> T:
    """What the first process gives."""
    given: T = from_all(value if rank() == 0 else None)[0]
    return given


def agreed(work: Callable[[], T], where: Any) -> T:
    """What work gives here, once it has ended in all processes; what is wrong in one is wrong in all."""
    failed, found = "", list[T]()
    try:
        found.append(work())
    except BadInput as error:
        failed = str(error)
    for each in from_all([failed, where]):
        if each[0]:
            raise BadInput(each[0])
        if each[1] != where:
            raise RuntimeError(f"processes went apart: one is at {each[1]}, another at {where}")
    return found[0]


def exchanged(parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """What each process has for this one, of these shapes; `parts` are what this one has for each."""
    first = parts[0]
    sent = torch.cat([part.contiguous().view(-1).view(torch.uint8) for part in parts])  # not all types can travel
    sizes = [prod(shape) * first.element_size() for shape in shapes]
    received = torch.empty(sum(sizes), dtype=torch.uint8, device=first.device)
    _called(dist.all_to_all_single, received, sent, sizes, [part.nbytes for part in parts])
    found = torch.split(received, sizes)
    return [body.view(first.dtype).view(shape) for body, shape in zip(found, shapes, strict=True)]


def gathered(values: Tensor, places: Sequence[Tensor]) -> Tensor:
    """What is known of the rows here, of which a process has those at its places, as of all rows."""
    values = values[: len(places[rank()])]
    return placed(exchanged([values] * count(), [(len(place), *values.shape[1:]) for place in places]), places)


def summed(part: Tensor) -> Tensor:
    """The sum over the processes."""
    whole = part.clone()
    _called(dist.all_reduce, whole)
    return whole


def _called(collective: Callable[..., Any], *given: Any) -> None:
    try:
        collective(*given)
    except RuntimeError as error:  # gloo has no other kind
        why = first_line(error)
        message = "another process that torchrun started has ended, or the network to it has failed"
        raise Stopped(f"{message} ({why})") from None
