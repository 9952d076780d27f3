"""LSTM layers of k models at once: each step is one product for all rows, and what need not wait for it is one for all.

At every step a layer's input `driven` (k, b, t, 4h) and its own state before, by weights w (k, 4h, h), are added up to
the gates i, f, g, o.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.engine.kernels.trusted import right


@torch.library.custom_op("coterie::row_lstm", mutates_args=())
def row_lstm(driven: Tensor, w: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """States (k, b, t, h); of every step, or of the last unless they are kept, memories and the gates' values."""
    driven = driven.contiguous()
    states, memories, gates = _empty(driven, w, keep)
    recurrent, cell = torch.zeros_like(driven[:, :, 0], memory_format=torch.contiguous_format), _cells(driven)[0]
    for step in range(driven.shape[2]):
        if step:
            torch.bmm(states[:, :, step - 1], w.transpose(1, 2), out=recurrent)
        cell(driven, recurrent, gates, memories, states, step)
    return states, memories, gates


@row_lstm.register_fake
def _(driven: Tensor, w: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(driven, w, keep)


def _empty(driven: Tensor, w: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    k, b, steps, wide = driven.shape
    held, units = steps if keep else 1, w.shape[2]
    exact = torch.promote_types(driven.dtype, torch.float32)
    memories = torch.empty(k, b, held, units, dtype=exact, device=driven.device)
    return driven.new_empty(k, b, steps, units), memories, driven.new_empty(k, b, held, wide)


@torch.library.custom_op("coterie::row_lstm_back", mutates_args=())
def row_lstm_back(g: Tensor, states: Tensor, memories: Tensor, gates: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients with respect to `driven` and w, from that of the states."""
    slopes, carried = (
        torch.empty_like(gates),
        torch.zeros_like(memories[:, :, 0], memory_format=torch.contiguous_format),
    )
    g, recurrent = g.contiguous(), states.new_zeros(carried.shape)
    back = _cells(gates)[1]
    for step in reversed(range(g.shape[2])):
        back(g, recurrent, carried, gates, memories, slopes, step)
        if step:
            torch.bmm(slopes[:, :, step], w, out=recurrent)
    before = F.pad(states[:, :, :-1], (0, 0, 1, 0))
    return slopes, torch.bmm(slopes.flatten(1, 2).transpose(1, 2), before.flatten(1, 2))


@row_lstm_back.register_fake
def _(g: Tensor, states: Tensor, memories: Tensor, gates: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gates), torch.empty_like(w, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, inputs[1])


def _backward(ctx, g: Tensor, *unused: Tensor):  # type: ignore[no-untyped-def]
    return (*row_lstm_back(g, *ctx.saved_tensors), None)


row_lstm.register_autograd(_backward, setup_context=_remember)


def _cells(t: Tensor):  # type: ignore[no-untyped-def]
    """One step of all rows, and its gradient."""
    if right("lstm", t):
        from coterie.engine.kernels import triton_lstm

        return triton_lstm.cell, triton_lstm.cell_back
    return _cell, _cell_back


def _cell(driven: Tensor, recurrent: Tensor, gates: Tensor, memories: Tensor, states: Tensor, step: int) -> None:
    kept = gates.shape[2] > 1
    i, f, g, o = (driven[:, :, step] + recurrent).to(memories.dtype).chunk(4, -1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    memory = i * g
    if step:
        memory = memory + f * memories[:, :, step - 1 if kept else 0]
    place = step if kept else 0
    gates[:, :, place], memories[:, :, place] = torch.cat([i, f, g, o], -1), memory
    states[:, :, step] = o * torch.tanh(memory)


def _cell_back(
    g: Tensor, recurrent: Tensor, carried: Tensor, gates: Tensor, memories: Tensor, slopes: Tensor, step: int
) -> None:
    i, f, new, o = gates[:, :, step].to(carried.dtype).chunk(4, -1)
    out, lasting = (g[:, :, step] + recurrent).to(carried.dtype), torch.tanh(memories[:, :, step])
    memory = carried + out * o * (1 - lasting.square())
    before = memories[:, :, step - 1] if step else torch.zeros_like(memory)
    parts = (memory * new * i * (1 - i), memory * before * f * (1 - f), memory * i * (1 - new.square()),
             out * lasting * o * (1 - o))  # fmt: skip
    slopes[:, :, step] = torch.cat(parts, -1)
    torch.mul(memory, f, out=carried)
