# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What one step of an LSTM does between two products, of all rows at once, and its gradient (`lstm`)."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit(do_not_specialize=["step"])
def _cell(
    driven_ptr, recurrent_ptr, gates_ptr, memories_ptr, states_ptr,
    step, steps, count, KEPT: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of every sample's units: gates, memory and state after a step; unless KEPT, memories lie in one place."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = offs < count
    sample, unit = offs // UNITS, offs % UNITS
    drive = driven_ptr + (sample * steps + step) * 4 * UNITS + unit
    own = recurrent_ptr + sample * 4 * UNITS + unit
    i = tl.load(drive, mask=real).to(tl.float32) + tl.load(own, mask=real).to(tl.float32)
    f = tl.load(drive + UNITS, mask=real).to(tl.float32) + tl.load(own + UNITS, mask=real).to(tl.float32)
    g = tl.load(drive + 2 * UNITS, mask=real).to(tl.float32) + tl.load(own + 2 * UNITS, mask=real).to(tl.float32)
    o = tl.load(drive + 3 * UNITS, mask=real).to(tl.float32) + tl.load(own + 3 * UNITS, mask=real).to(tl.float32)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    place = sample * steps + step if KEPT else sample
    memories = memories_ptr + place * UNITS + unit
    old = tl.load(memories - UNITS if KEPT else memories, mask=real & (step > 0), other=0.0)
    memory = f * old + i * g
    tl.store(memories, memory, mask=real)
    state = o * _tanh(memory)
    tl.store(states_ptr + (sample * steps + step) * UNITS + unit, state.to(states_ptr.dtype.element_ty), mask=real)
    gates = gates_ptr + place * 4 * UNITS + unit
    tl.store(gates, i.to(gates_ptr.dtype.element_ty), mask=real)
    tl.store(gates + UNITS, f.to(gates_ptr.dtype.element_ty), mask=real)
    tl.store(gates + 2 * UNITS, g.to(gates_ptr.dtype.element_ty), mask=real)
    tl.store(gates + 3 * UNITS, o.to(gates_ptr.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["step"])
def _cell_back(
    g_ptr, recurrent_ptr, carried_ptr, gates_ptr, memories_ptr, slopes_ptr,
    step, steps, count, UNITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From the gradients of the state and of the memory after: those of the gates, and of the memory before."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = offs < count
    sample, unit = offs // UNITS, offs % UNITS
    line = (sample * steps + step) * UNITS + unit
    out = tl.load(g_ptr + line, mask=real).to(tl.float32) + tl.load(recurrent_ptr + offs, mask=real).to(tl.float32)
    place = (sample * steps + step) * 4 * UNITS + unit
    i = tl.load(gates_ptr + place, mask=real).to(tl.float32)
    f = tl.load(gates_ptr + place + UNITS, mask=real).to(tl.float32)
    new = tl.load(gates_ptr + place + 2 * UNITS, mask=real).to(tl.float32)
    o = tl.load(gates_ptr + place + 3 * UNITS, mask=real).to(tl.float32)
    lasting = _tanh(tl.load(memories_ptr + line, mask=real))
    before = tl.load(memories_ptr + line - UNITS, mask=real & (step > 0), other=0.0)
    memory = tl.load(carried_ptr + offs, mask=real) + out * o * (1 - lasting * lasting)
    kind = slopes_ptr.dtype.element_ty
    tl.store(slopes_ptr + place, (memory * new * i * (1 - i)).to(kind), mask=real)
    tl.store(slopes_ptr + place + UNITS, (memory * before * f * (1 - f)).to(kind), mask=real)
    tl.store(slopes_ptr + place + 2 * UNITS, (memory * i * (1 - new * new)).to(kind), mask=real)
    tl.store(slopes_ptr + place + 3 * UNITS, (out * lasting * o * (1 - o)).to(kind), mask=real)
    tl.store(carried_ptr + offs, memory * f, mask=real)


def cell(driven: Tensor, recurrent: Tensor, gates: Tensor, memories: Tensor, states: Tensor, step: int) -> None:
    """Take a step: write its gates, memories and states."""
    count = memories[:, :, 0].numel()
    _cell[(triton.cdiv(count, BLOCK),)](
        driven, recurrent, gates, memories, states, step, driven.shape[2], count,
        KEPT=memories.shape[2] > 1, UNITS=states.shape[3], BLOCK=BLOCK,
    )  # fmt: skip


def cell_back(
    g: Tensor, recurrent: Tensor, carried: Tensor, gates: Tensor, memories: Tensor, slopes: Tensor, step: int
) -> None:
    """Take a step back: write its slopes and what is carried on to the memory before."""
    count = carried.numel()
    _cell_back[(triton.cdiv(count, BLOCK),)](
        g, recurrent, carried, gates, memories, slopes, step, g.shape[2], count, UNITS=g.shape[3], BLOCK=BLOCK,
    )  # fmt: skip
