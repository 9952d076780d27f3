# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The two kernels of depthwise convolutions of many models (`depthwise`)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.engine.kernels.triton_norm import ENOUGH, FEWEST

BLOCK_M, BLOCK_C = 32, 64  # places and channels of one program
HELD = 8192  # products that a program of filters' gradients has in the making


@triton.jit
def _filtered(
    x_ptr, w_ptr, y_ptr,
    M, C, H, W, OH, OW, x_row, w_row, y_row,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y[m, c] = Σ_t x[place(m, t), c] w[t, c]: the convolution, or with TRANSPOSED its gradient with respect to x."""
    row = tl.program_id(2).to(tl.int64)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    image = offs_m // (OH * OW)
    place = offs_m % (OH * OW)
    row_out = place // OW
    column_out = place % OW
    total = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    for tap in tl.static_range(SIZE * SIZE):
        if TRANSPOSED:
            up = row_out + PAD - tap // SIZE
            left = column_out + PAD - tap % SIZE
            inside = (up >= 0) & (left >= 0)
            if STRIDE > 1:
                inside = inside & (up % STRIDE == 0) & (left % STRIDE == 0)
                up = up // STRIDE
                left = left // STRIDE
        else:
            up = row_out * STRIDE - PAD + tap // SIZE
            left = column_out * STRIDE - PAD + tap % SIZE
            inside = (up >= 0) & (left >= 0)
        inside = inside & (up < H) & (left < W) & (offs_m < M)
        place_x = ((image * H + up) * W + left) * C
        mask = inside[:, None] & (offs_c < C)[None, :]
        a = tl.load(x_ptr + row * x_row + place_x[:, None] + offs_c[None, :], mask=mask, other=0.0)
        f = tl.load(w_ptr + row * w_row + tap * C + offs_c, mask=offs_c < C, other=0.0)
        total += a.to(tl.float32) * f.to(tl.float32)[None, :]
    place_y = row * y_row + offs_m[:, None] * C + offs_c[None, :]
    tl.store(y_ptr + place_y, total.to(y_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_c < C)[None, :])


@triton.jit
def _filter_gradient(
    x_ptr, g_ptr, y_ptr,
    M, C, H, W, OH, OW, each, parts,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    TAPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y[t, c] = Σ_m x[place(m, t), c] g[m, c] over a part of the places, all taps side by side."""
    part = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    tap = tl.arange(0, TAPS)
    x_ptr += row * (M // (OH * OW)) * H * W * C
    g_ptr += row * M * C
    total = tl.zeros((TAPS, BLOCK_M, BLOCK_C), dtype=tl.float32)
    for start in range(0, each, BLOCK_M):
        inside = start + tl.arange(0, BLOCK_M)
        offs_m = part * each + inside
        image = offs_m // (OH * OW)
        place = offs_m % (OH * OW)
        up = ((place // OW) * STRIDE - PAD)[None, :] + (tap // SIZE)[:, None]
        left = ((place % OW) * STRIDE - PAD)[None, :] + (tap % SIZE)[:, None]
        real = (inside < each) & (offs_m < M)
        met = (up >= 0) & (left >= 0) & (up < H) & (left < W) & real[None, :] & (tap < SIZE * SIZE)[:, None]
        place_x = ((image[None, :] * H + up) * W + left) * C
        there = (offs_c < C)[None, :]
        g = tl.load(g_ptr + offs_m[:, None] * C + offs_c[None, :], mask=real[:, None] & there, other=0.0)
        x = tl.load(x_ptr + place_x[:, :, None] + offs_c[None, None, :], mask=met[:, :, None] & there[None], other=0.0)
        total += x.to(tl.float32) * g.to(tl.float32)[None]
    y_ptr += (row * parts + part) * SIZE * SIZE * C
    mask = (tap < SIZE * SIZE)[:, None] & (offs_c < C)[None, :]
    tl.store(y_ptr + tap[:, None] * C + offs_c[None, :], tl.sum(total, 1), mask=mask)


def filtered(
    x: Tensor, w: Tensor, shape: tuple[int, ...], size: int, stride: int, padding: int, transposed: bool
) -> Tensor:
    """Outputs of that shape from x (R, B, H, W, C) and filters w (R, K·K, C); transposed, images from outputs."""
    rows, images, high, wide, channels = shape
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    places = images * high * wide
    _filtered[(triton.cdiv(places, BLOCK_M), triton.cdiv(channels, BLOCK_C), rows)](
        x, w, y, places, channels, x.shape[2], x.shape[3], high, wide, x.stride(0), w.stride(0), y.stride(0),
        SIZE=size, STRIDE=stride, PAD=padding, TRANSPOSED=transposed, BLOCK_M=BLOCK_M, BLOCK_C=BLOCK_C,
    )  # fmt: skip
    return y


def filter_gradient(x: Tensor, g: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """The gradient with respect to the filters: (R, K·K, C)."""
    rows, images, height, width, channels = x.shape
    high, wide = g.shape[2:4]
    places, taps, across = images * high * wide, triton.next_power_of_2(size * size), triton.cdiv(channels, BLOCK_C)
    tall = max(1, HELD // (taps * BLOCK_C))
    parts = max(1, min(triton.cdiv(ENOUGH, rows * across), places // (FEWEST * tall)))
    y = torch.empty(rows, parts, size * size, channels, dtype=torch.float32, device=x.device)
    _filter_gradient[(parts, across, rows)](
        x, g, y, places, channels, height, width, high, wide, triton.cdiv(places, parts), parts,
        SIZE=size, STRIDE=stride, PAD=padding, TAPS=taps, BLOCK_M=tall, BLOCK_C=BLOCK_C,
    )  # fmt: skip
    return y.sum(1).to(x.dtype)
