# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Convolutions of many models at once on a GPU: each row's own images with its own filters, in three Triton kernels.

Libraries run such a grouped convolution as one small kernel per model, or want the images unfolded in memory. Here each
kernel is one matrix product whose operand is gathered from the images on the fly (implicit GEMM), with the row as one
more axis of the grid. Layouts: images (R, B, H, W, C), filters (R, KH·KW·C, N), outputs (R, B, OH, OW, N).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.engine.kernels.conv import out_size
from coterie.engine.kernels.conv_blocks import filters_block, product_block


@triton.jit
def _gather_gemm(
    x_ptr, w_ptr, y_ptr,
    M, N, K, H, W, C, OH, OW, x_row, w_row, y_row,
    KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TRANSPOSED: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y[m, n] = Σ_k x[gather(m, k)] w[k, n]: a convolution, or with TRANSPOSED its gradient with respect to x."""
    row = tl.program_id(2).to(tl.int64)
    x_ptr += row * x_row
    w_ptr += row * w_row
    y_ptr += row * y_row
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    image = offs_m // (OH * OW)
    place = offs_m % (OH * OW)
    row_out = place // OW
    column_out = place % OW
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        tap = offs_k // C
        channel = offs_k % C
        if TRANSPOSED:
            up = row_out[:, None] + PAD - (tap // KW)[None, :]
            left = column_out[:, None] + PAD - (tap % KW)[None, :]
            inside = (up >= 0) & (left >= 0)
            if STRIDE > 1:
                inside = inside & (up % STRIDE == 0) & (left % STRIDE == 0)
                up = up // STRIDE
                left = left // STRIDE
        else:
            up = row_out[:, None] * STRIDE - PAD + (tap // KW)[None, :]
            left = column_out[:, None] * STRIDE - PAD + (tap % KW)[None, :]
            inside = (up >= 0) & (left >= 0)
        inside = inside & (up < H) & (left < W) & (offs_m < M)[:, None] & (offs_k < K)[None, :]
        place_x = ((image[:, None] * H + up) * W + left) * C + channel[None, :]
        a = tl.load(x_ptr + place_x, mask=inside, other=0.0)
        b_mask = (offs_k < K)[:, None] & (offs_n < N)[None, :]
        b = tl.load(w_ptr + offs_k[:, None] * N + offs_n[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee" if EXACT else "tf32")
    place_y = offs_m[:, None].to(tl.int64) * N + offs_n[None, :]
    tl.store(y_ptr + place_y, total.to(y_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


@triton.jit
def _filter_gradient(
    x_ptr, g_ptr, y_ptr,
    M, N, K, H, W, C, OH, OW, x_row, g_row, y_row,
    KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y[k, n] = Σ_m x[gather(m, k)] g[m, n]."""
    row = tl.program_id(2).to(tl.int64)
    x_ptr += row * x_row
    g_ptr += row * g_row
    y_ptr += row * y_row
    offs_k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tap = offs_k // C
    channel = offs_k % C
    down = tap // KW
    right = tap % KW
    total = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    for start in range(0, M, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        image = offs_m // (OH * OW)
        place = offs_m % (OH * OW)
        up = (place // OW)[None, :] * STRIDE - PAD + down[:, None]
        left = (place % OW)[None, :] * STRIDE - PAD + right[:, None]
        inside = (up >= 0) & (left >= 0) & (up < H) & (left < W) & (offs_m < M)[None, :] & (offs_k < K)[:, None]
        place_x = ((image[None, :] * H + up) * W + left) * C + channel[:, None]
        a = tl.load(x_ptr + place_x, mask=inside, other=0.0)
        g_mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
        b = tl.load(g_ptr + offs_m[:, None].to(tl.int64) * N + offs_n[None, :], mask=g_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee" if EXACT else "tf32")
    place_y = offs_k[:, None] * N + offs_n[None, :]
    tl.store(y_ptr + place_y, total.to(y_ptr.dtype.element_ty), mask=(offs_k < K)[:, None] & (offs_n < N)[None, :])


@triton.jit
def _columns(
    x_ptr, y_ptr,
    M, H, W, OH, OW, x_row, y_row,
    C: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y[m, k] = x[gather(m, k)], zero from the last tap to WIDE: whole lines of y are written at once."""
    row = tl.program_id(1).to(tl.int64)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K)
    image = offs_m // (OH * OW)
    place = offs_m % (OH * OW)
    tap = offs_k // C
    up = ((place // OW) * STRIDE - PAD)[:, None] + (tap // SIZE)[None, :]
    left = ((place % OW) * STRIDE - PAD)[:, None] + (tap % SIZE)[None, :]
    inside = (up >= 0) & (left >= 0) & (up < H) & (left < W) & (offs_k < SIZE * SIZE * C)[None, :]
    inside = inside & (offs_m < M)[:, None]
    place_x = ((image[:, None] * H + up) * W + left) * C + (offs_k % C)[None, :]
    a = tl.load(x_ptr + row * x_row + place_x, mask=inside, other=0.0)
    place_y = offs_m[:, None].to(tl.int64) * WIDE + offs_k[None, :]
    tl.store(y_ptr + row * y_row + place_y, a, mask=(offs_m < M)[:, None] & (offs_k < WIDE)[None, :])


def columns(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """The images unfolded: (R, B·OH·OW, KH·KW·C), with columns of zeros up to a multiple of 8."""
    rows, images, height, width, channels = x.shape
    high, wide = out_size(height, kernel, stride, padding), out_size(width, kernel, stride, padding)
    m, padded = images * high * wide, -(-kernel * kernel * channels // 8) * 8
    y = torch.empty(rows, m, padded, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(padded)
    lines = min(128, 16384 // block)
    _columns[(triton.cdiv(m, lines), rows)](
        x, y, m, height, width, high, wide, x.stride(0), y.stride(0),
        C=channels, SIZE=kernel, STRIDE=stride, PAD=padding, WIDE=padded, BLOCK_M=lines, BLOCK_K=block,
    )  # fmt: skip
    return y


def exact() -> bool:
    """Whether float32 means float32, as PyTorch's own switch says (it changes nothing for bf16)."""
    return torch.get_float32_matmul_precision() == "highest"


def _shared(x: Tensor) -> int:
    """Bytes of shared memory that a program may have on a tensor's GPU."""
    device = torch.cuda.get_device_properties(x.device)
    return int(getattr(device, "shared_memory_per_block_optin", device.shared_memory_per_block))


def convolve(x: Tensor, w: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """x (R, B, H, W, C) with filters w (R, K, N): (R, B, OH, OW, N)."""
    rows, images, height, width, channels = x.shape
    taps, filters = w.shape[1:]
    high, wide = out_size(height, kernel, stride, padding), out_size(width, kernel, stride, padding)
    y = torch.empty(rows, images, high, wide, filters, dtype=x.dtype, device=x.device)
    m, block = images * high * wide, product_block(filters, x.element_size(), _shared(x))
    grid = triton.cdiv(m, block["BLOCK_M"]), triton.cdiv(filters, block["BLOCK_N"]), rows
    _gather_gemm[grid](
        x, w, y, m, filters, taps, height, width, channels, high, wide, x.stride(0), w.stride(0), y.stride(0),
        KW=kernel, STRIDE=stride, PAD=padding, TRANSPOSED=False, EXACT=exact(), **block,
    )  # fmt: skip
    return y


def image_gradient(g: Tensor, w: Tensor, x_shape: tuple[int, ...], kernel: int, stride: int, padding: int) -> Tensor:
    """The gradient with respect to the images, from that of the outputs g (R, B, OH, OW, N)."""
    rows, images, height, width, channels = x_shape
    high, wide, filters = g.shape[2:]
    # (R, KH·KW·C, N) -> (R, KH·KW·N, C)
    turned = w.view(rows, kernel * kernel, channels, filters).transpose(2, 3).reshape(rows, -1, channels).contiguous()
    y = torch.empty(x_shape, dtype=g.dtype, device=g.device)
    m, block = images * height * width, product_block(channels, g.element_size(), _shared(g))
    grid = triton.cdiv(m, block["BLOCK_M"]), triton.cdiv(channels, block["BLOCK_N"]), rows
    _gather_gemm[grid](
        g, turned, y, m, channels, turned.shape[1], high, wide, filters, height, width,
        g.stride(0), turned.stride(0), y.stride(0),
        KW=kernel, STRIDE=stride, PAD=padding, TRANSPOSED=True, EXACT=exact(), **block,
    )  # fmt: skip
    return y


def filter_gradient(x: Tensor, g: Tensor, kernel: int, stride: int, padding: int, parts: int) -> Tensor:
    """The gradient with respect to the filters (R, KH·KW·C, N), as the sum of so many parts of the images."""
    rows, images, height, width, channels = x.shape
    high, wide, filters = g.shape[2:]
    taps = kernel * kernel * channels
    kind = x.dtype if parts == 1 else torch.float32
    y = torch.empty(rows * parts, taps, filters, dtype=kind, device=x.device)
    block = filters_block(filters, x.element_size(), _shared(x))
    grid = triton.cdiv(taps, block["BLOCK_K"]), triton.cdiv(filters, block["BLOCK_N"]), rows * parts
    _filter_gradient[grid](
        x, g, y, images // parts * high * wide, filters, taps, height, width, channels, high, wide,
        x.stride(0) // parts, g.stride(0) // parts, y.stride(0),
        KW=kernel, STRIDE=stride, PAD=padding, EXACT=exact(), **block,
    )  # fmt: skip
    return y if parts == 1 else y.view(rows, parts, taps, filters).sum(1).to(x.dtype)
