# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The two kernels of max-pooling (`pool`)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # numbers that a program pools


@triton.jit
def _pooled(
    x_ptr, y_ptr, place_ptr, M, H, W, C, OH, OW,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    real = (offs_m < M)[:, None] & (channel < C)[None, :]
    line = offs_m // OW  # of all images
    first = ((line // OH * H + line % OH * SIZE) * W + offs_m % OW * SIZE) * C
    x_ptr += first[:, None] + channel[None, :]
    best = tl.load(x_ptr, mask=real, other=0.0)
    where = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.int8)
    for place in tl.static_range(1, SIZE * SIZE):
        x = tl.load(x_ptr + (place // SIZE * W + place % SIZE) * C, mask=real, other=0.0)
        larger = (x > best) | (x != x)
        best = tl.where(larger, x, best)
        where = tl.where(larger, place, where).to(tl.int8)
    out = offs_m[:, None] * C + channel[None, :]
    tl.store(y_ptr + out, best, mask=real)
    tl.store(place_ptr + out, where, mask=real)


@triton.jit
def _gradient(
    g_ptr, place_ptr, y_ptr, M, H, W, C, OH, OW,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    real = (offs_m < M)[:, None] & (channel < C)[None, :]
    line = offs_m // OW
    first = ((line // OH * H + line % OH * SIZE) * W + offs_m % OW * SIZE) * C
    given = offs_m[:, None] * C + channel[None, :]
    g = tl.load(g_ptr + given, mask=real, other=0.0)
    where = tl.load(place_ptr + given, mask=real, other=0)
    y_ptr += first[:, None] + channel[None, :]
    for place in tl.static_range(SIZE * SIZE):
        tl.store(y_ptr + (place // SIZE * W + place % SIZE) * C, tl.where(where == place, g, 0.0), mask=real)


def pooled(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The largest of each window of x (n, H, W, C), and its place there."""
    n, height, width, channels = x.shape
    high, wide = height // size, width // size
    y = torch.empty(n, high, wide, channels, dtype=x.dtype, device=x.device)
    places = torch.empty_like(y, dtype=torch.int8)
    grid, blocks = _cut(y)
    _pooled[grid](x, y, places, n * high * wide, height, width, channels, high, wide, SIZE=size, **blocks)
    return y, places


def gradient(g: Tensor, places: Tensor, height: int, width: int, size: int) -> Tensor:
    """The gradient with respect to images of that size."""
    n, high, wide, channels = g.shape
    made = torch.zeros if height % size or width % size else torch.empty  # what no window meets
    y = made(n, height, width, channels, dtype=g.dtype, device=g.device)
    grid, blocks = _cut(g)
    _gradient[grid](g, places, y, n * high * wide, height, width, channels, high, wide, SIZE=size, **blocks)
    return y


def _cut(pooled: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    channels = pooled.shape[3]
    across = min(64, triton.next_power_of_2(channels))
    tall = TILE // across
    lines = pooled.numel() // channels
    return (triton.cdiv(lines, tall), triton.cdiv(channels, across)), {"BLOCK_M": tall, "BLOCK_C": across}
