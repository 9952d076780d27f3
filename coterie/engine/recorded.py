"""Local training on a GPU by a recording: a small step takes longer to launch than to compute, so launch it once."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from coterie.wire import Record

S = TypeVar("S", bound=Record)

LEAST = 16  # steps of one shape, from which on a recording pays
WARM = 2  # of them are taken as they are: what is compiled is compiled, what is allocated once is allocated
UNROLLED = 4  # steps of a recording, after which the state is copied back to where the next one reads it
LARGEST = 2**30  # bytes of a state: work enough for a GPU to be waited for, not to wait

_impossible: set[str] = set()  # steps that look at what they compute, which no recording can


def pays(device: torch.device, steps: int, step: Callable[..., object], state: Record) -> bool:
    """Whether so many steps alike are better recorded."""
    return device.type == "cuda" and steps >= LEAST and _name(step) not in _impossible and state.nbytes() <= LARGEST


def replayed(
    step: Callable[..., object], taken: Callable[[S, Tensor], S], state: S, first: int, last: int
) -> tuple[S, int]:
    """Take a step, by the state and its place (1,) among the steps, from `first` on: the state, and the place after.

    A few before `last` may be left, and all but a few where `step` cannot be recorded.
    """
    device = next(iter(state.tensors().values())).device
    stream, graph = _stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        at = torch.full((1,), first, device=device)
        held = state.map(torch.clone)
        for warm in range(WARM):
            new = taken(held, at)
            if not _fits(held, new):
                _impossible.add(_name(step))
                torch.cuda.current_stream(device).wait_stream(stream)
                return new, first + warm + 1
            _hold(held, new)
            at += 1
        try:
            graph.capture_begin(pool=_keeper(device).pool(), capture_error_mode="thread_local")
            try:
                after = held
                for _ in range(UNROLLED):
                    after = taken(after, at)
                    at += 1
                _hold(held, after)
                del after
            finally:
                graph.capture_end()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            _impossible.add(_name(step))
            times = 0
        else:
            times = (last - first - WARM) // UNROLLED
            for _ in range(times):
                graph.replay()
    torch.cuda.current_stream(device).wait_stream(stream)
    return held, first + WARM + times * UNROLLED


def _name(step: Callable[..., object]) -> str:
    return getattr(step, "__qualname__", repr(step))


def _fits(held: Record, new: Record) -> bool:
    """Whether a state can be copied to where the next step reads it: none of its parts changes its place or shape."""
    old, tensors = held.tensors(), new.tensors()
    places = {t.untyped_storage().data_ptr(): name for name, t in old.items()}
    stays = (places.get(t.untyped_storage().data_ptr(), name) == name for name, t in tensors.items())
    return _form(old) == _form(tensors) and all(stays)


def _form(tensors: Mapping[str, Tensor]) -> dict[str, object]:
    return {name: (t.shape, t.dtype) for name, t in tensors.items()}


def _hold(held: Record, new: Record) -> None:
    """Copy a state to where the next step reads it."""
    old = held.tensors()
    for name, t in new.tensors().items():
        if t is not old[name]:
            old[name].copy_(t)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@cache
def _keeper(device: torch.device) -> torch.cuda.CUDAGraph:
    """A recording of nothing, so that the memory of one recording stays for the next."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    torch.zeros(1, device=device)
    graph.capture_end()
    return graph
