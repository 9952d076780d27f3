"""Convolutions of k models at once: each row's own images with its own filters, as matrix products.

Images are (k, b, H, W, C) and filters (k, KH·KW·C, N), so that a row is one more axis of a batched product. On a GPU
the operand is gathered from the images on the fly (`triton_conv`); elsewhere, and where images have too few channels
for that to pay, it is unfolded in memory first.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.engine.kernels.trusted import TRITON

GATHERED_CHANNELS = 8  # from here on, gathering on the fly beats unfolding
ALIGNED = 16  # channels of which a GPU loads several at once; with any other number it loads one by one
FULL = 264  # blocks of a product that keep a large GPU busy: two for each of its processors


def convolved(images: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """images (k, b, H, W, C) with filters w (k, N, C, K, K): (k, b, OH, OW, N)."""
    kernel, filters, outputs = w.shape[3], w.permute(0, 3, 4, 2, 1), w.shape[1]  # (k, K, K, C, N)
    if images.is_cuda and not _pointwise(kernel, stride, padding):
        channels = _missing(w.shape[2], ALIGNED) if w.shape[2] >= GATHERED_CHANNELS else 0
        images, filters = _grown(images, channels), _grown(filters, _missing(outputs, ALIGNED), channels)
    y: Tensor = row_conv(images, filters.flatten(1, 3), kernel, stride, padding)
    return y[..., :outputs]


def parts_of(blocks: int, length: int) -> int:
    """Into how many equal parts a sum is cut, so that so many blocks each make enough for a GPU."""
    parts = 1
    while blocks * parts < FULL and length % (2 * parts) == 0:
        parts *= 2
    return parts


def _missing(size: int, multiple: int) -> int:
    return -size % multiple


def _grown(t: Tensor, last: int, last_but_one: int = 0) -> Tensor:
    """With so many zeros more along its last axes."""
    return F.pad(t, (0, last, 0, last_but_one)) if last or last_but_one else t


def out_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """How many places a filter has along one side."""
    return (size + 2 * padding - kernel) // stride + 1


def _pointwise(kernel: int, stride: int, padding: int) -> bool:
    """Whether there is nothing to gather."""
    return (kernel, stride, padding) == (1, 1, 0)


def _gathers(x: Tensor, kernel: int, stride: int, padding: int) -> bool:
    enough = x.shape[-1] >= GATHERED_CHANNELS and not _pointwise(kernel, stride, padding)
    return x.is_cuda and enough and TRITON


def _unfolded(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """(k, b, H, W, C) -> (k, b·OH·OW, KH·KW·C), on a GPU with columns of zeros up to a multiple of 8."""
    if _pointwise(kernel, stride, padding):
        return x.flatten(1, 3)
    if x.is_cuda and TRITON:
        from coterie.engine.kernels import triton_conv

        return triton_conv.columns(x.contiguous(), kernel, stride, padding)
    k, b, height, width, channels = x.shape
    high, wide = out_size(height, kernel, stride, padding), out_size(width, kernel, stride, padding)
    x = F.pad(x, (0, 0, padding, padding, padding, padding)).contiguous()
    s = x.stride()
    windows = x.as_strided(
        (k, b, high, wide, kernel, kernel, channels), (s[0], s[1], s[2] * stride, s[3] * stride, s[2], s[3], s[4])
    )
    return windows.reshape(k, b * high * wide, kernel * kernel * channels)


def _folded(columns: Tensor, shape: list[int], kernel: int, stride: int, padding: int) -> Tensor:
    """The transpose of unfolding: what each window says of its pixels, added up."""
    if _pointwise(kernel, stride, padding):
        return columns.view(shape)
    k, b, height, width, channels = shape
    high, wide = out_size(height, kernel, stride, padding), out_size(width, kernel, stride, padding)
    parts = columns.reshape(k, b, high, wide, kernel, kernel, channels)
    total = columns.new_zeros(k, b, height + 2 * padding, width + 2 * padding, channels)
    for i in range(kernel):
        for j in range(kernel):
            total[:, :, i : i + high * stride : stride, j : j + wide * stride : stride] += parts[:, :, :, :, i, j]
    return total[:, :, padding : padding + height, padding : padding + width].contiguous()


@torch.library.custom_op("coterie::row_conv", mutates_args=())
def row_conv(x: Tensor, w: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """x (k, b, H, W, C) with filters w (k, KH·KW·C, N): (k, b, OH, OW, N)."""
    if _gathers(x, kernel, stride, padding):
        from coterie.engine.kernels import triton_conv

        return triton_conv.convolve(x.contiguous(), w.contiguous(), kernel, stride, padding)
    k, b, height, width, _ = x.shape
    columns = _unfolded(x, kernel, stride, padding)
    y = torch.bmm(columns, _grown(w, 0, columns.shape[2] - w.shape[1]))
    return y.view(k, b, out_size(height, kernel, stride, padding), out_size(width, kernel, stride, padding), w.shape[2])


@row_conv.register_fake
def _(x: Tensor, w: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    k, b, height, width, _ = x.shape
    return x.new_empty(
        k, b, out_size(height, kernel, stride, padding), out_size(width, kernel, stride, padding), w.shape[2]
    )


@torch.library.custom_op("coterie::row_conv_images", mutates_args=())
def row_conv_images(g: Tensor, w: Tensor, shape: list[int], kernel: int, stride: int, padding: int) -> Tensor:
    """The gradient with respect to the images, from that of the outputs g (k, b, OH, OW, N)."""
    g, w = g.contiguous(), w.contiguous()
    if _gathers(g, kernel, stride, padding):
        from coterie.engine.kernels import triton_conv

        return triton_conv.image_gradient(
            g, w, (shape[0], shape[1], shape[2], shape[3], shape[4]), kernel, stride, padding
        )
    columns = torch.bmm(g.view(len(g), -1, g.shape[-1]), w.transpose(1, 2))
    return _folded(columns, shape, kernel, stride, padding)


@row_conv_images.register_fake
def _(g: Tensor, w: Tensor, shape: list[int], kernel: int, stride: int, padding: int) -> Tensor:
    return g.new_empty(shape)


@torch.library.custom_op("coterie::row_conv_filters", mutates_args=())
def row_conv_filters(x: Tensor, g: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """The gradient with respect to the filters (k, KH·KW·C, N)."""
    g, taps, filters = g.contiguous(), kernel * kernel * x.shape[-1], g.shape[-1]
    if _gathers(x, kernel, stride, padding):
        from coterie.engine.kernels import triton_conv

        parts = parts_of(len(x) * -(-taps // 128) * -(-filters // 64), x.shape[1])
        return triton_conv.filter_gradient(x.contiguous(), g, kernel, stride, padding, parts)
    columns = _unfolded(x, kernel, stride, padding)
    blocks = len(x) * -(-taps // 128) * -(-filters // 128)
    parts = parts_of(blocks, columns.shape[1]) if x.is_cuda else 1
    whole = _summed_product(columns, g.view(len(g), -1, filters), parts)
    return whole[:, :taps].contiguous()


def _summed_product(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """aᵀb of each row of a (k, n, p) and b (k, n, q), as the sum of so many parts of n."""
    k = len(a)
    a, b = (t.reshape(k * parts, -1, t.shape[2]) for t in (a, b))
    whole = torch.bmm(a.transpose(1, 2), b)
    if parts == 1:
        return whole
    exact = torch.promote_types(whole.dtype, torch.float32)
    return whole.view(k, parts, *whole.shape[1:]).sum(1, dtype=exact).to(whole.dtype)


@row_conv_filters.register_fake
def _(x: Tensor, g: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    return x.new_empty(len(x), kernel * kernel * x.shape[-1], g.shape[-1])


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, w, ctx.kernel, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, w)


def _backward(ctx, g: Tensor):  # type: ignore[no-untyped-def]
    x, w = ctx.saved_tensors
    how = (ctx.kernel, ctx.stride, ctx.padding)
    images = row_conv_images(g, w, list(x.shape), *how) if ctx.needs_input_grad[0] else None
    filters = row_conv_filters(x, g, *how) if ctx.needs_input_grad[1] else None
    return images, filters, None, None, None


row_conv.register_autograd(_backward, setup_context=_remember)
