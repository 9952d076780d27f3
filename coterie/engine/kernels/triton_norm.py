# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The kernels of BatchNorm over rows (`norm`)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # numbers that a program holds of each tensor
ENOUGH = 2048  # programs that keep a large GPU's memory busy
FEWEST = 8  # tiles that a program should add up: fewer are not worth a sum of their own


@triton.jit
def _moments(
    x_ptr, y_ptr, n, C, each, parts,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums of the lines and of their squares, counted from the row's first line: large means cost no digits."""
    part = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    there = channel < C
    x_ptr += row * n * C
    origin = tl.load(x_ptr + channel, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    for start in range(0, each, BLOCK_M):
        inside = start + tl.arange(0, BLOCK_M)
        line = part * each + inside
        real = ((inside < each) & (line < n))[:, None] & there[None, :]
        x = tl.load(x_ptr + line[:, None].to(tl.int64) * C + channel[None, :], mask=real, other=0.0).to(tl.float32)
        x = tl.where(real, x - origin[None, :], 0.0)
        total += x
        squares += x * x
    y_ptr += (row * parts + part) * 2 * C + channel
    tl.store(y_ptr, tl.sum(total, 0), mask=there)
    tl.store(y_ptr + C, tl.sum(squares, 0), mask=there)


@triton.jit
def _normalized(
    x_ptr, sums_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, variance_ptr, n, C, eps, top,
    CUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    line = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = channel < C
    x_ptr += row * n * C
    origin = tl.load(x_ptr + channel, mask=there, other=0.0).to(tl.float32)
    first = tl.load(sums_ptr + row * 2 * C + channel, mask=there, other=0.0) / n
    second = tl.load(sums_ptr + row * 2 * C + C + channel, mask=there, other=0.0) / n
    variance = tl.maximum(second - first * first, 0.0)
    mean = origin + first
    head = there & (tl.program_id(0) == 0)
    tl.store(mean_ptr + row * C + channel, mean, mask=head)
    tl.store(variance_ptr + row * C + channel, variance, mask=head)
    scale = tl.load(w_ptr + row * C + channel, mask=there, other=0.0).to(tl.float32) / tl.sqrt(variance + eps)
    shift = tl.load(b_ptr + row * C + channel, mask=there, other=0.0).to(tl.float32) - mean * scale
    real = (line < n)[:, None] & there[None, :]
    place = line[:, None].to(tl.int64) * C + channel[None, :]
    x = tl.load(x_ptr + place, mask=real, other=0.0).to(tl.float32)
    y = x * scale[None, :] + shift[None, :]
    if CUT:
        y = tl.where(y < 0.0, 0.0, tl.where(y > top, top, y))
    tl.store(y_ptr + row * n * C + place, y.to(y_ptr.dtype.element_ty), mask=real)


@triton.jit
def _slopes(
    g_ptr, x_ptr, mean_ptr, variance_ptr, w_ptr, b_ptr, y_ptr, n, C, each, parts, eps, top,
    CUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """What the gradients with respect to scale and shift are sums of."""
    part = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    there = channel < C
    own = row * C + channel
    mean = tl.load(mean_ptr + own, mask=there, other=0.0)
    root = 1 / tl.sqrt(tl.load(variance_ptr + own, mask=there, other=1.0) + eps)
    w = tl.load(w_ptr + own, mask=there, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + own, mask=there, other=0.0).to(tl.float32)
    by_scale = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    by_shift = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    for start in range(0, each, BLOCK_M):
        inside = start + tl.arange(0, BLOCK_M)
        line = part * each + inside
        real = ((inside < each) & (line < n))[:, None] & there[None, :]
        place = row * n * C + line[:, None].to(tl.int64) * C + channel[None, :]
        x = (tl.load(x_ptr + place, mask=real, other=0.0).to(tl.float32) - mean[None, :]) * root[None, :]
        g = tl.load(g_ptr + place, mask=real, other=0.0).to(tl.float32)
        if CUT:
            y = x * w[None, :] + b[None, :]
            g = tl.where((y > 0.0) & (y < top), g, 0.0)
        by_scale += g * x
        by_shift += g
    y_ptr += (row * parts + part) * 2 * C + channel
    tl.store(y_ptr, tl.sum(by_scale, 0), mask=there)
    tl.store(y_ptr + C, tl.sum(by_shift, 0), mask=there)


@triton.jit
def _gradient(
    g_ptr, x_ptr, mean_ptr, variance_ptr, w_ptr, b_ptr, sums_ptr, y_ptr, n, C, eps, top,
    CUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    line = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = channel < C
    own = row * C + channel
    mean = tl.load(mean_ptr + own, mask=there, other=0.0)
    root = 1 / tl.sqrt(tl.load(variance_ptr + own, mask=there, other=1.0) + eps)
    w = tl.load(w_ptr + own, mask=there, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + own, mask=there, other=0.0).to(tl.float32)
    by_scale = tl.load(sums_ptr + row * 2 * C + channel, mask=there, other=0.0) / n
    by_shift = tl.load(sums_ptr + row * 2 * C + C + channel, mask=there, other=0.0) / n
    real = (line < n)[:, None] & there[None, :]
    place = row * n * C + line[:, None].to(tl.int64) * C + channel[None, :]
    x = (tl.load(x_ptr + place, mask=real, other=0.0).to(tl.float32) - mean[None, :]) * root[None, :]
    g = tl.load(g_ptr + place, mask=real, other=0.0).to(tl.float32)
    if CUT:
        y = x * w[None, :] + b[None, :]
        g = tl.where((y > 0.0) & (y < top), g, 0.0)
    d = (w * root)[None, :] * (g - by_shift[None, :] - x * by_scale[None, :])
    tl.store(y_ptr + place, d.to(y_ptr.dtype.element_ty), mask=real)


def normalized(x: Tensor, w: Tensor, bias: Tensor, eps: float, top: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """x (R, n, C) normalised, cut off below 0 and above `top` if that is given; mean and variance (R, C)."""
    rows, n, channels = x.shape
    grid, blocks, parts, each = _cut(x)
    sums = torch.empty(rows, parts, 2, channels, dtype=torch.float32, device=x.device)
    _moments[(parts, *grid[1:])](x, sums, n, channels, each, parts, **blocks)
    y, mean, variance = torch.empty_like(x), sums.new_empty(rows, channels), sums.new_empty(rows, channels)
    _normalized[grid](
        x, sums.sum(1), w, bias, y, mean, variance, n, channels, eps, top or 0.0, CUT=top is not None, **blocks
    )
    return y, mean, variance


def gradient(
    g: Tensor, x: Tensor, mean: Tensor, variance: Tensor, w: Tensor, bias: Tensor, eps: float, top: float | None
) -> tuple[Tensor, Tensor]:
    """The gradient with respect to x, and those with respect to scale and shift (R, 2, C)."""
    rows, n, channels = x.shape
    grid, blocks, parts, each = _cut(x)
    known, cut = (g, x, mean, variance, w, bias), {"CUT": top is not None, **blocks}
    sums = torch.empty(rows, parts, 2, channels, dtype=torch.float32, device=x.device)
    _slopes[(parts, *grid[1:])](*known, sums, n, channels, each, parts, eps, top or 0.0, **cut)
    y, whole = torch.empty_like(x), sums.sum(1)
    _gradient[grid](*known, whole, y, n, channels, eps, top or 0.0, **cut)
    return y, whole


def _cut(x: Tensor) -> tuple[tuple[int, int, int], dict[str, int], int, int]:
    """The tiles of each row's lines, their size, in how many parts lines are added up, and how many a part has."""
    rows, n, channels = x.shape
    wide = min(64, triton.next_power_of_2(channels))
    tall = TILE // wide
    tiles, across = triton.cdiv(n, tall), triton.cdiv(channels, wide)
    parts = max(1, min(triton.cdiv(ENOUGH, rows * across), tiles // FEWEST))
    return (tiles, across, rows), {"BLOCK_M": tall, "BLOCK_C": wide}, parts, triton.cdiv(n, parts)
