# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The two kernels of depthwise convolutions of many models (`depthwise`)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_M, BLOCK_C = 32, 64  # places and channels of one program


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
    M, C, H, W, OH, OW, x_row, g_row, y_row,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y[t, c] = Σ_m x[place(m, t), c] g[m, c], a program for each tap: they share what they read in the cache."""
    tap = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    for start in range(0, M, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        image = offs_m // (OH * OW)
        place = offs_m % (OH * OW)
        up = (place // OW) * STRIDE - PAD + tap // SIZE
        left = (place % OW) * STRIDE - PAD + tap % SIZE
        real = (offs_m < M)[:, None] & (offs_c < C)[None, :]
        inside = ((up >= 0) & (left >= 0) & (up < H) & (left < W))[:, None] & real
        place_x = ((image * H + up) * W + left) * C
        a = tl.load(x_ptr + row * x_row + place_x[:, None] + offs_c[None, :], mask=inside, other=0.0)
        g = tl.load(g_ptr + row * g_row + offs_m[:, None] * C + offs_c[None, :], mask=real, other=0.0)
        total += a.to(tl.float32) * g.to(tl.float32)
    y = tl.sum(total, 0)
    tl.store(y_ptr + row * y_row + tap * C + offs_c, y.to(y_ptr.dtype.element_ty), mask=offs_c < C)


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
    y = torch.empty(rows, size * size, channels, dtype=x.dtype, device=x.device)
    _filter_gradient[(size * size, triton.cdiv(channels, BLOCK_C), rows)](
        x, g, y, images * high * wide, channels, height, width, high, wide, x.stride(0), g.stride(0), y.stride(0),
        SIZE=size, STRIDE=stride, PAD=padding, BLOCK_M=BLOCK_M, BLOCK_C=BLOCK_C,
    )  # fmt: skip
    return y
